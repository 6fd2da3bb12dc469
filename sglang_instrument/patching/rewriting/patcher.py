"""Apply tables to the modules of this process, imported already or later, and undo all of it."""

import sys
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from sglang_instrument.patching.places.targets import ResolvedTarget, find_target
from sglang_instrument.patching.places.versions import installed_version
from sglang_instrument.patching.probes.contract import Probe
from sglang_instrument.patching.rewriting.apply import (
    Applier,
    MakeProbe,
    garbage_collection_paused,
    resume_garbage_collection,
)
from sglang_instrument.patching.rewriting.imports import ImportWatch
from sglang_instrument.patching.rewriting.sites import RegionRequest, Site, best_sites, without_function
from sglang_instrument.patching.rewriting.swap import SwappedCode, SwappedEntry
from sglang_instrument.patching.tables.regions import Origin, Patch, Table, Target
from sglang_instrument.recording.safety.guard import reraise_if_programs_own

Wrap = Callable[[Callable[..., Any], Probe], Callable[..., Any]]


@dataclass(eq=False)
class _Job:
    """A function and the regions to place in it."""

    function: FunctionType
    wanted: list[RegionRequest] = field(default_factory=list)

    def add(self, wanted: Iterable[RegionRequest]) -> None:
        """Add regions that are not in the job yet; two targets may name the same function."""
        known = {one.region.origin for one in self.wanted}
        self.wanted += [one for one in wanted if one.region.origin not in known]


class Patcher:
    """Keeps probes in the functions that tables name, from `install()` to `uninstall()`.

    Any thread may call both at any time and repeatedly. No method raises because of a target: the patcher
    leaves a target that it cannot patch unchanged, and `results()` says why.

    Args:
        tables: the tables to apply.
        make_probe: makes the probe of a region; may raise TableError.
        wrap: wraps a function without source in a probe; without it, such targets stay unpatched.
        patched: called after the search for a module's targets, whether found or not.
    """

    def __init__(
        self,
        tables: Iterable[Table],
        *,
        make_probe: MakeProbe,
        wrap: Wrap | None = None,
        patched: Callable[[], object] | None = None,
    ) -> None:
        self._tables = tuple(tables)
        self._make_probe = make_probe
        self._wrap = wrap
        self._on_patched = patched
        self._lock = (
            threading.RLock()
        )  # the import callback takes it, so never import a target while holding it
        self._watch = ImportWatch(self._on_import)
        self._installed = False
        self._swaps: dict[int, tuple[SwappedCode, _Job]] = {}
        self._entries: list[SwappedEntry] = []
        self._patched: dict[str, ModuleType] = {}
        self._sites: dict[tuple[Target, Origin], Site] = {}
        self._results: tuple[Site, ...] | None = None  # None: the sites have changed since
        #: Names of the modules that hold targets.
        self.modules = frozenset(name for table in self._tables for name in table.modules)

    def install(self) -> None:
        """Patch the modules that are imported already, and later ones after their import."""
        with self._lock:
            self._installed = True
            self._watch.start(self.modules)
            self._patch_ready()

    def restart_in_child(self) -> None:
        """Reset the lock in a forked child: another thread of the parent may have held it."""
        self._lock = threading.RLock()
        resume_garbage_collection()

    def uninstall(self) -> list[str]:
        """Restore everything; return a message for each target that other code has changed since."""
        with self._lock:
            self._installed = False
            self._watch.stop()
            left = [swap.restore() for swap, _ in self._swaps.values()]
            left += [entry.restore() for entry in reversed(self._entries)]
            self._swaps.clear()
            self._entries.clear()
            self._patched.clear()
            self._sites.clear()
            self._results = None
            return [reason for reason in left if reason is not None]

    def results(self) -> tuple[Site, ...]:
        """Return the sites of each region: all where it was found, else its candidates' best result.

        Until a site changes, the same object is returned: callers may keep what they made of it.
        """
        with self._lock:
            if self._installed:
                self._patch_ready()
            if self._results is None:
                self._results = tuple(
                    site
                    for table in self._tables
                    for patch in table.patches
                    for site in best_sites(patch, self._sites_of(table, patch))
                )
            return self._results

    def _sites_of(self, table: Table, patch: Patch) -> list[Site]:
        sites: list[Site] = []
        for target in patch.targets:
            if target.module not in self._patched:
                sites += without_function(_wanted(table, patch, target), "pending", "not imported yet")
            for region in patch.regions:
                site = self._sites.get((target, region.origin))
                sites += [] if site is None else [site]
        return sites

    def _on_import(self, module: ModuleType) -> None:
        with self._lock:
            if self._installed:
                self._patched.pop(module.__name__, None)  # a reload runs the callback again
                self._results = None
                self._patch_ready(module)

    def _patch_ready(self, *also: ModuleType) -> None:
        """Patch modules that are imported and not patched yet; modules being imported call back later."""
        loaded = (sys.modules.get(name) for name in self.modules)
        ready = [module for module in loaded if isinstance(module, ModuleType) and not _is_importing(module)]
        self._patch([module for module in {*ready, *also} if module.__name__ not in self._patched])

    def _patch(self, modules: Collection[ModuleType]) -> None:
        jobs: dict[int, _Job] = {}
        for module in modules:
            self._patched[module.__name__] = module
            self._results = None
            for table in self._tables:
                for patch in table.patches:
                    self._find(module, table, patch, jobs)
        if modules and self._on_patched is not None:  # it calls results(), which calls this method again
            self._on_patched()
        if not jobs:
            return
        applier = Applier(self._make_probe)
        with garbage_collection_paused():
            # An enclosing function comes before its nested functions: see Applier.
            for job in sorted(jobs.values(), key=lambda job: job.function.__qualname__.count("<locals>")):
                self._apply(applier, job)

    def _find(self, module: ModuleType, table: Table, patch: Patch, jobs: dict[int, _Job]) -> None:
        """Add the first candidate that exists in `module` to the jobs."""
        candidates = [target for target in patch.targets if target.module == module.__name__]
        for target in candidates:
            found = find_target(module, target.name)
            if found is None:
                continue
            wanted = _wanted(table, patch, target)
            if found.function is None:
                self._note(self._wrapped(found, wanted))
            else:
                self._job_of(found.function, jobs).add(wanted)
            return
        for target in candidates[:1]:
            note = f"{module.__name__} has no {' or '.join(one.name for one in candidates)}"
            self._note(without_function(_wanted(table, patch, target), "missing", note))

    def _job_of(self, function: FunctionType, jobs: dict[int, _Job]) -> _Job:
        """Return the job of a function; undo a finished job, so that it is done again with more regions."""
        if id(function) not in jobs:
            swap, job = self._swaps.pop(id(function), (None, _Job(function)))
            if swap is not None:
                swap.restore()
            jobs[id(function)] = job
        return jobs[id(function)]

    def _apply(self, applier: Applier, job: _Job) -> None:
        function = job.function
        try:
            sites, code = applier.apply(function.__code__, function.__globals__, job.wanted)
        except BaseException as error:  # training must go on, whatever the target's source contains
            reraise_if_programs_own()
            sites, code = without_function(job.wanted, "refused", f"the rewriter failed: {error!r}"), None
        self._note(sites)
        if code is not None:
            self._swaps[id(function)] = (SwappedCode.put(function, code), job)

    def _wrapped(self, found: ResolvedTarget, wanted: list[RegionRequest]) -> list[Site]:
        """Wrap a target without Python code: its whole-call regions are measured, others are not."""
        if self._wrap is None or not callable(found.raw):
            return without_function(wanted, "no-source", "built into C: no Python code to patch")
        whole = [one for one in wanted if one.region.is_whole_body and not one.region.generator]
        parts = [one for one in wanted if one not in whole]
        try:
            ours = found.raw
            for one in reversed(whole):
                ours = self._wrap(ours, self._make_probe(one.region))
            if whole:
                self._entries.append(SwappedEntry.put(found.owner, found.name, found.raw, ours))
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


def _wanted(table: Table, patch: Patch, target: Target) -> list[RegionRequest]:
    return [
        RegionRequest(region, target, None if region.requires is None else installed_version(table.package))
        for region in patch.regions
    ]


def _is_importing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
