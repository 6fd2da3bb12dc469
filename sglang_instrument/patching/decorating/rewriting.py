"""Rewrite decorated functions; code that many functions share is rewritten once."""

import sys
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Final
from weakref import ref

from sglang_instrument.patching.decorating.notes import Decoration, FunctionNote, decorations_of
from sglang_instrument.patching.decorating.regions import region_of_call
from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.rewriting.apply import Applier, garbage_collection_paused
from sglang_instrument.patching.rewriting.sites import RegionRequest
from sglang_instrument.patching.tables.regions import Target
from sglang_instrument.recording.safety.notices import notice

_codes: dict[int, "tuple[ref[CodeType], dict[tuple[Decoration, ...], CodeType | None]]"] = {}
_local: Final = threading.local()  # `applier`: (file, applier) while this thread imports the file


def _none(function: FunctionType) -> list[RegionRequest]:
    return []


_requests_of_tables: Callable[[FunctionType], list[RegionRequest]] = _none


def rewritten_code(function: FunctionType, note: FunctionNote) -> CodeType | None:
    """Return the rewritten code of a decorated function; None if there is none, which is said once."""
    code = function.__code__
    known = _codes.get(id(code))
    if known is None or known[0]() is not code:
        place = id(code)
        known = _codes[place] = (ref(code, lambda _: _codes.pop(place, None)), {})
    codes = known[1]
    if note.template is not None:  # regions of tables come and go
        return _rewrite(function, [*requests_of(function), *_requests_of_tables(note.template)])
    if note.decorations not in codes:
        codes[note.decorations] = _rewrite(function, requests_of(function))
    return codes[note.decorations]


def ask_for_tables(requests: Callable[[FunctionType], list[RegionRequest]] | None) -> None:
    """Ask `requests` for the regions that tables have in a function which is copied by `instrument`."""
    global _requests_of_tables
    _requests_of_tables = requests or _none


def requests_of(function: FunctionType) -> list[RegionRequest]:
    """Return the regions that the decorations of a function ask for; the outer one first."""
    target = Target(function.__module__, function.__qualname__)
    return [
        RegionRequest(region_of_call(function, decoration), target) for decoration in decorations_of(function)
    ]


def _rewrite(function: FunctionType, wanted: list[RegionRequest]) -> CodeType | None:
    applier = _applier_of(function)
    with garbage_collection_paused():
        sites, code = applier.apply(function.__code__, function.__globals__, wanted)
    for site in sites:
        if site.state != "found":
            text = f"@instrument of {site.target}: {site.state}: {site.note}; its calls are not recorded"
            notice(f"instrument: {site.target}: {site.region.event}", text)
    return code


def _applier_of(function: FunctionType) -> Applier:
    """Return an applier; while a module is imported, the one that has parsed its file already."""
    filename = function.__code__.co_filename
    known: tuple[str, Applier] | None = getattr(_local, "applier", None)
    applier = known[1] if known is not None and known[0] == filename else Applier(probes_for([]))
    spec = getattr(sys.modules.get(function.__module__), "__spec__", None)
    _local.applier = (filename, applier) if getattr(spec, "_initializing", False) else None
    return applier
