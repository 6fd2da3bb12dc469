"""Put probes around the regions of a function, in its syntax tree; nothing is compiled here."""

import ast
from collections.abc import Sequence
from typing import Final, NamedTuple

from sglang_instrument.patching.places.anchors import DEFINITIONS, Block, FunctionDef, Statements, walk_own
from sglang_instrument.patching.places.bindings import Bindings
from sglang_instrument.patching.probes.contract import ProbeContract
from sglang_instrument.patching.rewriting.awaits import count_awaits
from sglang_instrument.patching.rewriting.constants import Constants
from sglang_instrument.patching.rewriting.expression_regions import MeasuredExpression, put_probe
from sglang_instrument.patching.rewriting.handover import HandoverInserter, RegionHandover, located
from sglang_instrument.patching.tables.regions import KeywordCapture

SCOPES: Final = (*DEFINITIONS, ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)


class Placement(NamedTuple):
    """Statements or expressions, and the probe that measures them."""

    statements: Statements | None
    probe: ProbeContract
    captures: tuple[KeywordCapture, ...] = ()
    expressions: tuple[MeasuredExpression, ...] = ()


class _PlacedStatements(NamedTuple):
    statements: Statements
    handover: RegionHandover


def rewrite(
    definition: FunctionDef, placements: Sequence[Placement], constants: Constants, bindings: Bindings
) -> None:
    """Put each placement's statements into a `with` of its probe, and wrap its expressions, in place.

    Args:
        definition: the function; this changes its tree.
        placements: regions that do not overlap; of equal regions the first becomes the outer one.
        constants: gets the probes.
        bindings: the function's locals.
    """
    counts = is_coroutine(definition)
    regions = [  # all before the tree changes: indices refer to the original statements
        _region(number, placement.statements, placement, bindings, constants, counts)
        for number, placement in enumerate(placements)
        if placement.statements is not None
    ]
    for placement in reversed(
        placements
    ):  # of two placements on one expression the first is the outer one, as for statements
        for measured in placement.expressions:
            put_probe(measured, measured.probe_kind(placement.probe), bindings, constants)
    blocks: dict[int, list[_PlacedStatements]] = {}
    for region in regions:
        blocks.setdefault(id(region.statements.block), []).append(region)
    for together in blocks.values():
        block = together[0].statements.block
        block[:] = _nested(block, 0, len(block), together)
    HandoverInserter(region.handover for region in regions).over(definition)
    if counts:
        count_awaits(definition, constants)


def is_coroutine(definition: FunctionDef) -> bool:
    """Say whether the function is a coroutine: async, and not a generator."""
    return isinstance(definition, ast.AsyncFunctionDef) and not any(
        isinstance(node, ast.Yield)
        for statement in definition.body
        for node in walk_own(statement, opaque=SCOPES)
    )


def overlaps(region: Statements, other: Statements) -> bool:
    """Say whether two regions of one block overlap and neither contains the other."""
    if region.block is not other.block:
        return False
    first, second = sorted((region[1:], other[1:]))
    return first[0] < second[0] < first[1] < second[1]


def find_captured(statements: Statements, capture: KeywordCapture) -> list[ast.keyword]:
    """Return the keyword arguments that a capture describes, except in nested scopes."""
    return [
        keyword
        for statement in statements.nodes
        for node in walk_own(statement, opaque=SCOPES)
        if isinstance(node, ast.Call) and _called_name(node) == capture.callee
        for keyword in node.keywords
        if keyword.arg == capture.argument
    ]


def _region(
    number: int,
    statements: Statements,
    placement: Placement,
    bindings: Bindings,
    constants: Constants,
    counts_waiting: bool,
) -> _PlacedStatements:
    probe, captures = placement.probe, placement.captures
    block, start, stop = statements
    handover = RegionHandover(
        number=number,
        probe=probe,
        constants=constants,
        bindings=bindings,
        sure_at_start=bindings.sure_at(block, start),
        sure_at_end=bindings.sure_at(block, stop),
        sure_at_yields=bindings.sure_at_yields() if probe.item_locals else {},
        located_as=block[min(start, len(block) - 1)],
        captures=bool(captures),
        counts_waiting=counts_waiting,
    )
    for capture in captures:
        for keyword in find_captured(statements, capture):
            passed = [ast.Constant(capture.field), keyword.value]
            keyword.value = located(handover.call("capture", passed), keyword.value)
    return _PlacedStatements(statements, handover)


def _nested(block: Block, begin: int, end: int, regions: Sequence[_PlacedStatements]) -> Block:
    """Return `block[begin:end]` with its regions in their `with` blocks."""
    result: Block = []
    waiting = list(regions)
    while waiting:
        # The region that starts first; then the longest; then the first in the table.
        outer = min(waiting, key=lambda region: (region.statements.start, -region.statements.stop))
        _, start, stop = outer.statements
        within = [
            inner for inner in waiting if inner is not outer and _lies_in(inner.statements, outer.statements)
        ]
        waiting = [inner for inner in waiting if inner is not outer and inner not in within]
        body = _nested(block, start, stop, within)
        result += block[begin:start] + outer.handover.open_around(
            body or [located(ast.Pass(), outer.handover.located_as)]
        )
        begin = stop
    return result + block[begin:end]


def _lies_in(inner: Statements, outer: Statements) -> bool:
    if outer.start == outer.stop:
        return False
    if inner.start == inner.stop == outer.stop:  # an empty region after the outer one's last statement
        return outer.stop == len(outer.block)
    return outer.start <= inner.start and inner.stop <= outer.stop


def _called_name(call: ast.Call) -> str | None:
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    return name if isinstance(name, str) else None
