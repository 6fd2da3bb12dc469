"""Say which methods of subclasses override a target, and which of its regions they get.

An override may do anything, so ranges of its statements are not looked for: only regions of the whole body
are placed. A method that a table names itself is measured as that table says.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Final

from sglang_instrument.errors import TableError
from sglang_instrument.patching.places.subclasses import (
    Override,
    Subclasses,
    inherited_functions,
    is_subclass,
    override_in,
)
from sglang_instrument.patching.rewriting.sites import RegionRequest, Site, without_function
from sglang_instrument.patching.tables.field_language import parsed
from sglang_instrument.patching.tables.regions import Origin, Overriding, Patch, PatchTable, Region, Target
from sglang_instrument.recording.safety.notices import notice

#: Methods that are measured beside the targets; a program may make classes without an end.
_MOST: Final = 500


@dataclass(frozen=True, eq=False)
class _Method:
    """A method that a table names, and the class that has it."""

    owner: type
    patch: Patch
    requests: list[RegionRequest]
    function: FunctionType


@dataclass(frozen=True, eq=False)
class FoundOverride:
    """A method that overrides a target of `patch`.

    `requests` are the regions to place in it, `refused` the sites of the others. `overridden` are the methods
    of its base classes, which it may call.
    """

    patch: Patch
    target: Target
    function: FunctionType
    requests: list[RegionRequest] = field(default_factory=list)
    refused: list[Site] = field(default_factory=list)
    overridden: list[FunctionType] = field(default_factory=list)


class Overrides:
    """Finds the overrides of targets in classes that are made later.

    Args:
        tables: the tables in use.
    """

    def __init__(self, tables: Iterable[PatchTable]) -> None:
        self._named = frozenset(
            target for table in tables for patch in table.patches for target in patch.targets
        )
        self._methods: list[_Method] = []
        self._subclasses = Subclasses()
        self._count = 0

    @property
    def is_watching(self) -> bool:
        """Whether there is a class whose subclasses may override a target."""
        return self._subclasses.is_watching

    def watch(self, owner: type, patch: Patch, requests: list[RegionRequest], function: FunctionType) -> None:
        """Look for overrides of this method of `owner`; `requests` are its regions."""
        whole = [request for request in requests if request.region.is_whole_body]
        if whole:
            self._methods.append(_Method(owner, patch, whole, function))
            self._subclasses.watch(owner)

    def new(self) -> list[FoundOverride]:
        """Return the overrides in classes that are new."""
        overrides = [
            override
            for subclass in self._subclasses.new()
            for method in self._methods
            if is_subclass(subclass, method.owner)
            for override in self._overrides_in(subclass, method)
        ]
        self._count += len(overrides)
        if self._count > _MOST:
            notice("overrides", f"more than {_MOST} methods override targets; the others are not measured")
            return []
        return overrides

    def forget(self) -> None:
        """Look for no overrides any more."""
        self._methods.clear()
        self._subclasses.forget()
        self._count = 0

    def _overrides_in(self, subclass: type, method: _Method) -> Iterator[FoundOverride]:
        name = method.requests[0].target.name.rpartition(".")[2]
        override = override_in(subclass, name)
        if override is None or Target(override.module, override.name) in self._named:
            return
        target = Target(override.module, override.name)
        placed = FoundOverride(method.patch, target, override.function)
        for request in method.requests:
            wanted = request._replace(region=shared(request.region, target, override.receiver), target=target)
            reason = _objection(request.region, override, method)
            if reason:
                placed.refused.extend(
                    without_function([wanted], "refused", f"overrides {request.target}: {reason}")
                )
            else:
                placed.requests.append(wanted)
        placed.overridden.extend(inherited_functions(subclass, name) if placed.requests else ())
        yield placed


def shared(region: Region, target: Target, receiver: str) -> Region:
    """Return the region of a method that overrides, or is overridden."""
    if region.generator or region.emit != "span":
        return region
    return replace(region, overriding=Overriding(str(target), receiver))


def _objection(region: Region, override: Override, method: _Method) -> str:
    """Say why an override is not measured as the region of the method that it overrides; "" if it is."""
    if not override.is_like(method.function):
        return "one of both is a coroutine or a generator, and the other is not"
    if not override.calls_super:
        return ""
    if region.generator or region.emit != "span":
        return "calls that method, which is measured"
    lost = sorted(name for name in _deciding_locals(region) if override.lacks(name, method.function))
    return f"calls that method, which is measured, and has no parameter {lost[0]}" if lost else ""


def _deciding_locals(region: Region) -> frozenset[str]:
    """Return the locals that say which ids a run binds, and whether it is recorded."""
    texts = [*region.bind.values(), *region.process.values(), region.when, region.leader]
    try:
        return frozenset(name for text in texts if text for name in parsed(text, "enter").locals)
    except TableError:  # reported when the region's probe is made
        return frozenset()


def origins_of(requests: Iterable[RegionRequest]) -> frozenset[Origin]:
    """Return the places of regions in the tables."""
    return frozenset(request.region.origin for request in requests)
