"""Make new code for functions from their source, after a check that the source is what runs."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import CO_ITERABLE_COROUTINE
from types import CodeType
from typing import Any, Final

from sglang_instrument.errors import TableError
from sglang_instrument.patching.places.anchors import Block
from sglang_instrument.patching.places.bindings import Bindings, aliases_in
from sglang_instrument.patching.places.source import Chain, ParsedSource, definition_of, read_source
from sglang_instrument.patching.probes.contract import ProbeContract
from sglang_instrument.patching.rewriting.branches import both_branches, copied
from sglang_instrument.patching.rewriting.constants import Constants
from sglang_instrument.patching.rewriting.rewrite import (
    Placement,
    is_coroutine,
    rewrite,
)
from sglang_instrument.patching.rewriting.sites import (
    PlacedRegion,
    RegionRequest,
    Site,
    place,
    without_function,
)
from sglang_instrument.patching.rewriting.unreadable_fields import with_unreadable_fields
from sglang_instrument.patching.tables.regions import Region
from sglang_instrument.recording.measure.waiting import MARK
from sglang_instrument.recording.safety.unpatched import RLock

MakeProbe = Callable[[Region], ProbeContract]

#: Attributes that rewriting must not change, because other code reads them.
_UNCHANGED: Final = (
    *("co_name", "co_flags", "co_freevars", "co_cellvars", "co_firstlineno"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
)


class Applier:
    """Makes new code for the functions of one batch; each file is read and parsed once."""

    def __init__(self, make_probe: MakeProbe) -> None:
        self._make_probe = make_probe
        self._sources: dict[str, ParsedSource | None] = {}

    def apply(
        self, code: CodeType, module_globals: Mapping[str, Any], wanted: Sequence[RegionRequest]
    ) -> tuple[list[Site], CodeType | None]:
        """Return the site of each region, and the new code; the code is None if nothing changes."""
        source = self._source(code.co_filename, module_globals)
        if source is None:
            return without_function(wanted, "no-source", f"no source at {code.co_filename!r}"), None
        chain = source.chain_of(code)
        if chain is None or not source.matches(chain, code):
            reason = "the source on disk differs from the running code: the file or the function was changed"
            return without_function(wanted, "changed", reason), None
        definition = definition_of(chain)
        original, definition.body = definition.body, [copied(statement) for statement in definition.body]
        try:
            return self._rewritten(source, chain, code, module_globals, wanted, original)
        except (SyntaxError, ValueError) as error:
            # The compiler allows 20 nested blocks, and each region adds one.
            return without_function(
                wanted, "refused", f"Python cannot compile the function with probes: {error}"
            ), None
        finally:
            definition.body = original

    def _rewritten(
        self,
        source: ParsedSource,
        chain: Chain,
        code: CodeType,
        module_globals: Mapping[str, Any],
        wanted: Sequence[RegionRequest],
        original: Block,
    ) -> tuple[list[Site], CodeType | None]:
        aliases = aliases_in(code.co_names, module_globals)
        bindings = Bindings(definition_of(chain), code.co_freevars, aliases)
        is_awaited = bool(code.co_flags & CO_ITERABLE_COROUTINE)
        placed, placements = self._placements(chain, wanted, bindings, is_awaited)
        sites = [placed_region.site for placed_region in placed]
        if not placements:
            return sites, None
        return sites, _compiled(source, chain, placements, bindings, code, original)

    def _source(self, filename: str, module_globals: Mapping[str, Any]) -> ParsedSource | None:
        if filename not in self._sources:
            text = read_source(filename, module_globals)
            try:
                self._sources[filename] = None if text is None else ParsedSource(text, filename)
            except (SyntaxError, ValueError):
                self._sources[filename] = None
        return self._sources[filename]

    def _placements(
        self, chain: Chain, wanted: Sequence[RegionRequest], bindings: Bindings, is_awaited: bool
    ) -> tuple[list[PlacedRegion], list[Placement]]:
        placed: list[PlacedRegion] = []
        placements: list[Placement] = []
        for placed_region in place(definition_of(chain), wanted, bindings, is_awaited):
            region = placed_region.site.region
            if not placed_region.is_found:
                placed.append(placed_region)
                continue
            try:
                probe = self._make_probe(region)
                placements.append(
                    Placement(placed_region.statements, probe, region.capture, placed_region.expressions)
                )
                placed.append(
                    replace(placed_region, site=with_unreadable_fields(placed_region.site, bindings))
                )
            except TableError as error:
                placed.append(placed_region.refused(str(error)))
        return placed, placements


_pausing = RLock()
_pauses = 0  # of all threads
_was_enabled = False


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection: it would visit the many new syntax nodes, 80 % of the time spent here."""
    global _pauses, _was_enabled
    with _pausing:
        if not _pauses:
            _was_enabled = gc.isenabled()
        _pauses += 1
        gc.disable()
    try:
        yield
    finally:
        with _pausing:
            _pauses -= 1
            if not _pauses and _was_enabled:
                gc.enable()


def resume_garbage_collection() -> None:
    """End all pauses in a forked child, where the threads that paused may not exist."""
    global _pausing, _pauses
    _pausing = RLock()
    if _pauses and _was_enabled:
        gc.enable()
    _pauses = 0


def _compiled(
    source: ParsedSource,
    chain: Chain,
    placements: Sequence[Placement],
    bindings: Bindings,
    running: CodeType,
    original: Block,
) -> CodeType:
    constants = Constants()
    definition = definition_of(chain)
    rewrite(definition, placements, constants, bindings)
    definition.body = both_branches(definition, original, definition.body, constants)
    counts = (MARK,) if is_coroutine(definition) else ()
    code = constants.fill(source.compile(chain), running, *counts)
    code = code.replace(co_flags=code.co_flags | (running.co_flags & CO_ITERABLE_COROUTINE))
    for name in _UNCHANGED:
        if getattr(code, name) != getattr(running, name):
            raise ValueError(f"the probes would change {name}")
    return code
