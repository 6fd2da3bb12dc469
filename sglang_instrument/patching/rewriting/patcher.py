"""Apply tables to the modules of this process, imported already or later, and undo all of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from sglang_instrument.patching.code_constants import original_of
from sglang_instrument.patching.places.loaded_modules import loaded_module, why_not_loaded
from sglang_instrument.patching.places.main_module import main_with_targets
from sglang_instrument.patching.places.targets import ResolvedTarget, find_target
from sglang_instrument.patching.places.versions import installed_version
from sglang_instrument.patching.probes.contract import ProbeContract
from sglang_instrument.patching.rewriting.apply import (
    Applier,
    MakeProbe,
    garbage_collection_paused,
    resume_garbage_collection,
)
from sglang_instrument.patching.rewriting.import_ends import ImportEnds
from sglang_instrument.patching.rewriting.imports import ImportWatch
from sglang_instrument.patching.rewriting.overrides import FoundOverride, Overrides, origins_of, shared
from sglang_instrument.patching.rewriting.sites import RegionRequest, Site, best_sites, without_function
from sglang_instrument.patching.rewriting.swap import SwappedCode, SwappedEntry
from sglang_instrument.patching.tables.regions import Origin, Patch, PatchTable, Target, targets_in
from sglang_instrument.recording.safety.exception_origins import name_of_type
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.recording.safety.static_lookup import is_class
from sglang_instrument.recording.safety.unpatched import RLock

Wrap = Callable[[Callable[..., Any], ProbeContract], Callable[..., Any]]


@dataclass(eq=False)
class _FunctionPatch:
    """A function and the regions to place in it."""

    function: FunctionType
    wanted: list[RegionRequest] = field(default_factory=list)

    def add(self, wanted: Iterable[RegionRequest]) -> None:
        """Add regions that are not in the job yet; two targets may name the same function."""
        known = origins_of(self.wanted)
        self.wanted += [request for request in wanted if request.region.origin not in known]

    def share(self, override: FoundOverride) -> None:
        """Record regions that an override has, too, only where no run of the override is open."""
        receiver = self.function.__code__.co_varnames[:1]
        origins = origins_of(override.requests)
        self.wanted = [
            request._replace(region=shared(request.region, request.target, *receiver))
            if receiver and request.region.origin in origins and request.region.overriding is None
            else request
            for request in self.wanted
        ]


class Patcher:
    """Keeps probes in the functions that tables name, from `install()` to `uninstall()`.

    Any thread may call both at any time and repeatedly. No method raises because of a target: the patcher
    leaves a target that it cannot patch unchanged, and `results()` says why.

    Args:
        tables: the tables to apply.
        make_probe: makes the probe of a region; may raise TableError.
        wrap: wraps a function without source in a probe; without it, such targets stay unpatched.
        decorated: returns further regions of a function, those of its decorators.
        patched: called after the search for a module's targets, whether found or not.
    """

    def __init__(
        self,
        tables: Iterable[PatchTable],
        *,
        make_probe: MakeProbe,
        wrap: Wrap | None = None,
        decorated: Callable[[FunctionType], Sequence[RegionRequest]] | None = None,
        patched: Callable[[], object] | None = None,
    ) -> None:
        self._tables = tuple(tables)
        self._make_probe = make_probe
        self._wrap = wrap
        self._decorated = decorated
        self._on_patched = patched
        self._lock = RLock()  # the import callback takes it, so never import a target while holding it
        self._overrides = Overrides(self._tables)
        self._import_ends = ImportEnds(self.find_overrides)
        self._watch = ImportWatch(self._on_import, self._on_other_import)
        self._installed = False
        self._swaps: dict[int, tuple[SwappedCode, _FunctionPatch]] = {}
        self._entries: list[SwappedEntry] = []
        self._patched: dict[str, ModuleType] = {}
        self._sites: dict[tuple[Target, Origin], Site] = {}
        self._override_sites: dict[tuple[Target, Origin], Site] = {}
        self._results: tuple[Site, ...] | None = None  # None: the sites have changed since
        #: Names of the modules that hold targets.
        self.modules = frozenset(name for table in self._tables for name in table.modules)
        self._main = partial(main_with_targets, self.modules, partial(targets_in, self._tables))

    def install(self) -> None:
        """Patch the modules that are imported already, and later ones after their import."""
        with self._lock:
            self._installed = True
            self._watch.start(self.modules)
            self._patch_ready()

    def restart_in_child(self) -> None:
        """Reset the lock in a forked child: another thread of the parent may have held it."""
        self._lock = RLock()
        resume_garbage_collection()

    def uninstall(self) -> list[str]:
        """Restore everything; return a message for each target that other code has changed since."""
        with self._lock:
            self._installed = False
            self._watch.stop()
            self._import_ends.stop()
            self._overrides.forget()
            left = [swap.restore() for swap, _ in self._swaps.values()]
            left += [entry.restore() for entry in reversed(self._entries)]
            self._swaps.clear()
            self._entries.clear()
            self._patched.clear()
            self._sites.clear()
            self._override_sites.clear()
            self._results = None
            return [reason for reason in left if reason is not None]

    def results(self) -> tuple[Site, ...]:
        """Return the sites of each region: all where it was found, else its candidates' best result.

        Until a site changes, the same object is returned: callers may keep what they made of it.
        """
        with self._lock:
            if self._installed:
                self._patch_ready()
                self._patch_overrides()
            if self._results is None:
                self._results = tuple(
                    site
                    for table in self._tables
                    for patch in table.patches
                    for site in (
                        *best_sites(patch, self._sites_of(table, patch)),
                        *self._sites_of_overrides(patch),
                    )
                )
            return self._results

    def _sites_of(self, table: PatchTable, patch: Patch) -> list[Site]:
        sites: list[Site] = []
        for target in patch.targets:
            if target.module not in self._patched:
                state, note = why_not_loaded(target.module)
                sites += without_function(_wanted(table, patch, target), state, note)
            for region in patch.regions:
                site = self._sites.get((target, region.origin))
                sites += [] if site is None else [site]
        return sites

    def _sites_of_overrides(self, patch: Patch) -> list[Site]:
        """Return the sites in overriding methods; the trainer's own events do not depend on them."""
        origins = {region.origin for region in patch.regions}
        sites = [
            site
            for (target, origin), site in (self._override_sites | self._sites).items()
            if origin in origins and (target, origin) in self._override_sites
        ]
        return [site if site.state == "found" else replace(site, expected=False) for site in sites]

    def find_overrides(self) -> None:
        """Measure methods of new subclasses that override a target, unless another thread patches now."""
        self._unless_busy(self._patch_overrides)

    def _unless_busy(self, work: Callable[[], None]) -> None:
        """To wait could be forever: the caller may be inside an import that the other thread needs."""
        if self._lock.acquire(blocking=False):
            try:
                if self._installed:
                    work()
            finally:
                self._lock.release()

    def _on_other_import(self, name: str) -> None:
        if self._overrides.is_watching:
            self._import_ends.expect(name)
        if self._main().keys() - self._patched:
            self._unless_busy(self._patch_ready)

    def _on_import(self, name: str, module: ModuleType) -> None:
        with self._lock:
            if self._installed:
                self._patched.pop(name, None)  # a reload runs the callback again
                self._results = None
                self._patch_ready({name: module})

    def _patch_ready(self, also: Mapping[str, ModuleType] = MappingProxyType({})) -> None:
        """Patch modules that are imported and not patched yet; modules being imported call back later."""
        loaded = {name: module for name in self.modules if (module := loaded_module(name)) is not None}
        ready = {**loaded, **self._main(), **also}
        self._patch({name: module for name, module in ready.items() if name not in self._patched})

    def _patch_overrides(self) -> None:
        jobs: dict[int, _FunctionPatch] = {}
        for override in self._overrides.new():
            sites = [*override.refused, *without_function(override.requests, "pending", "")]
            self._override_sites |= {(site.target, site.region.origin): site for site in sites}
            if override.requests:
                self._job_of(override.function, jobs).add(override.requests)
            for function in override.overridden:
                if id(function) in self._swaps or id(function) in jobs:
                    self._job_of(function, jobs).share(override)
        self._apply_all(jobs)
        if jobs and self._on_patched is not None:
            self._on_patched()

    def _patch(self, modules: Mapping[str, ModuleType]) -> None:
        jobs: dict[int, _FunctionPatch] = {}
        for name, module in modules.items():
            self._patched[name] = module
            self._results = None
            for table in self._tables:
                for patch in table.patches:
                    targets = [target for target in patch.targets if target.module == name]
                    self._find_or_note(module, table, patch, targets, jobs)
        if modules and self._on_patched is not None:  # it calls results(), which calls this method again
            self._on_patched()
        self._apply_all(jobs)
        self._patch_overrides()

    def _apply_all(self, jobs: Mapping[int, _FunctionPatch]) -> None:
        if not jobs:
            return
        self._results = None
        applier = Applier(self._make_probe)
        with garbage_collection_paused():
            # An enclosing function comes before its nested functions: see Applier.
            for job in sorted(jobs.values(), key=lambda job: job.function.__qualname__.count("<locals>")):
                self._apply(applier, job)

    def _find_or_note(
        self,
        module: ModuleType,
        table: PatchTable,
        patch: Patch,
        targets: list[Target],
        jobs: dict[int, _FunctionPatch],
    ) -> None:
        try:
            self._find(module, table, patch, targets, jobs)
        except BaseException as error:  # one patch that fails costs no other
            reraise_if_programs_own()
            wanted = [RegionRequest(region, targets[0]) for region in patch.regions]
            note = f"the search for it failed: {name_of_type(type(error))}"
            self._note(without_function(wanted, "refused", note))

    def _find(
        self,
        module: ModuleType,
        table: PatchTable,
        patch: Patch,
        targets: list[Target],
        jobs: dict[int, _FunctionPatch],
    ) -> None:
        """Add the first of the patch's targets that exists in `module` to the jobs."""
        for target in targets:
            resolved = find_target(module, target.name)
            if resolved is None:
                continue
            wanted = _wanted(table, patch, target)
            if resolved.function is None:
                self._note(self._wrapped(resolved, wanted))
            else:
                self._job_of(resolved.function, jobs).add(wanted)
                if is_class(resolved.owner):
                    self._overrides.watch(resolved.owner, patch, wanted, resolved.function)
            return
        for target in targets[:1]:
            note = f"{target.module} has no {' or '.join(target.name for target in targets)}"
            self._note(without_function(_wanted(table, patch, target), "missing", note))

    def _job_of(self, function: FunctionType, jobs: dict[int, _FunctionPatch]) -> _FunctionPatch:
        """Return the job of a function; undo a finished job, so that it is done again with more regions."""
        if id(function) not in jobs:
            swap, job = self._swaps.pop(id(function), (None, _FunctionPatch(function)))
            if swap is not None:
                swap.restore()
            jobs[id(function)] = job
        return jobs[id(function)]

    def _apply(self, applier: Applier, job: _FunctionPatch) -> None:
        function = job.function
        try:
            original = original_of(function.__code__)  # a decorator may have rewritten it
            more = self._decorated(function) if self._decorated is not None else ()
            sites, code = applier.apply(original, function.__globals__, [*more, *job.wanted])
        except BaseException as error:  # training must go on, whatever the target's source contains
            reraise_if_programs_own()
            sites, code = without_function(job.wanted, "refused", f"the rewriter failed: {error!r}"), None
        self._note(
            site for site in sites if site.region.origin in {request.region.origin for request in job.wanted}
        )
        if code is not None:
            self._swaps[id(function)] = (SwappedCode.put(function, code, original), job)

    def requests_of(self, function: FunctionType) -> list[RegionRequest]:
        """Return the regions that tables have in a function."""
        with self._lock:
            _, job = self._swaps.get(id(function), (None, _FunctionPatch(function)))
            return list(job.wanted)

    def _wrapped(self, target: ResolvedTarget, wanted: list[RegionRequest]) -> list[Site]:
        """Wrap a target without Python code: its whole-call regions are measured, others are not."""
        if target.stand_in:
            note = f"is a {target.stand_in}, whose own code answers for its attributes: left alone"
            return without_function(wanted, "no-source", note)
        if self._wrap is None or not callable(target.raw):
            return without_function(wanted, "no-source", "built into C: no Python code to patch")
        whole = [
            request for request in wanted if request.region.is_whole_body and not request.region.generator
        ]
        parts = [request for request in wanted if request not in whole]
        try:
            ours = target.raw
            for request in reversed(whole):
                ours = self._wrap(ours, self._make_probe(request.region))
            if whole:
                self._entries.append(SwappedEntry.put(target.owner, target.name, target.raw, ours))
        except BaseException as error:  # a class built into C refuses new attributes
            reraise_if_programs_own()
            return without_function(wanted, "no-source", f"built into C, and cannot be wrapped: {error}")
        return [
            *without_function(whole, "found", "built into C: wrapped"),
            *without_function(parts, "no-source", "built into C: only the whole call can be measured"),
        ]

    def _note(self, sites: Iterable[Site]) -> None:
        self._results = None
        for site in sites:
            self._sites[site.target, site.region.origin] = site


def _wanted(table: PatchTable, patch: Patch, target: Target) -> list[RegionRequest]:
    return [
        RegionRequest(region, target, None if region.requires is None else installed_version(table.package))
        for region in patch.regions
    ]
