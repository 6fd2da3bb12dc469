"""Make new code for running functions: from their source, once that is known to be what runs."""

import ast
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import CodeType
from typing import Any, Final

from sglang_instrument.errors import TableError
from sglang_instrument.patching.places.bindings import Bindings, aliases_in
from sglang_instrument.patching.places.source import Chain, Source, definition_of, read_source
from sglang_instrument.patching.probes.contract import Probe
from sglang_instrument.patching.rewriting.constants import Constants
from sglang_instrument.patching.rewriting.rewrite import Placement, is_coroutine, name_locals_in_order, rewrite
from sglang_instrument.patching.rewriting.sites import Placed, Site, Wanted, place, without_function
from sglang_instrument.patching.rewriting.unreadable_fields import with_unreadable_fields
from sglang_instrument.patching.tables.regions import Region
from sglang_instrument.recording.measure.waiting import marked

MakeProbe = Callable[[Region], Probe]

#: What rewriting may not change, for others look at it.
_UNCHANGED: Final = (
    *("co_name", "co_flags", "co_freevars", "co_cellvars", "co_firstlineno"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
)


class Applier:
    """Makes new code for the functions of one batch; each file is read and parsed once.

    Functions that hold others are given first: what is changed in an inner one would show in the outer.
    """

    def __init__(self, make_probe: MakeProbe) -> None:
        self._make_probe = make_probe
        self._sources: dict[str, Source | None] = {}
        self._rewritten: set[int] = set()  # ids: equal code may stand in two files

    def apply(
        self, code: CodeType, module_globals: Mapping[str, Any], wanted: Sequence[Wanted]
    ) -> tuple[list[Site], CodeType | None]:
        """Return what became of each region, and the code to run instead; None if nothing changes."""
        if id(code) in self._rewritten:  # another closure of one definition, whose tree is changed already
            self._sources.pop(code.co_filename, None)
        source = self._source(code.co_filename, module_globals)
        if source is None:
            return without_function(wanted, "no-source", f"no source at {code.co_filename!r}"), None
        chain = source.chain_of(code)
        if chain is None or not source.matches(chain, code):
            reason = "the source on disk is not what runs: edited since, or patched by somebody else"
            return without_function(wanted, "changed", reason), None
        aliases = aliases_in(code.co_names, module_globals)
        bindings = Bindings(definition_of(chain), code.co_freevars, aliases)
        placed, placements = self._placements(chain, wanted, bindings)
        if not placements:
            return [one.site for one in placed], None
        self._rewritten.add(id(code))
        try:
            return [one.site for one in placed], _compiled(source, chain, placements, bindings, code)
        except (SyntaxError, ValueError) as error:
            # 20 nested blocks are the compiler's limit, and each region is one.
            return without_function(wanted, "refused", f"the compiler refuses the probes: {error}"), None

    def _source(self, filename: str, module_globals: Mapping[str, Any]) -> Source | None:
        if filename not in self._sources:
            text = read_source(filename, module_globals)
            try:
                self._sources[filename] = None if text is None else Source(text, filename)
            except (SyntaxError, ValueError):
                self._sources[filename] = None
        return self._sources[filename]

    def _placements(
        self, chain: Chain, wanted: Sequence[Wanted], bindings: Bindings
    ) -> tuple[list[Placed], list[Placement]]:
        placed: list[Placed] = []
        placements: list[Placement] = []
        for one in place(definition_of(chain), wanted, bindings):
            region = one.site.region
            if not one.is_found:
                placed.append(one)
                continue
            try:
                probe = self._make_probe(region)
                placements.append(Placement(one.statements, probe, region.capture, one.expressions))
                placed.append(replace(one, site=with_unreadable_fields(one.site, bindings)))
            except TableError as error:
                placed.append(one.refused(str(error)))
        return placed, placements


_paused = False


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Keep the collector from going over all the new syntax nodes again and again, 80 % of the time."""
    global _paused
    _paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        resume_garbage_collection()


def resume_garbage_collection() -> None:
    """End a pause; in a forked child it may be one of a thread that does not exist there."""
    global _paused
    if _paused:
        _paused = False
        gc.enable()


def _compiled(
    source: Source, chain: Chain, placements: Sequence[Placement], bindings: Bindings, running: CodeType
) -> CodeType:
    constants = Constants()
    definition = definition_of(chain)
    rewrite(definition, placements, constants, bindings)
    code = source.compile(chain)
    order = [name for name in running.co_varnames if bindings.has(name)]
    if [name for name in code.co_varnames if name in order] != order:
        place = 0 if ast.get_docstring(definition, clean=False) is None else 1
        definition.body.insert(place, name_locals_in_order(order, definition.body[place]))
        code = source.compile(chain)
    code = constants.fill(code)
    for name in _UNCHANGED:
        if getattr(code, name) != getattr(running, name):
            raise ValueError(f"{name} would change")
    return marked(code) if is_coroutine(definition) else code
