"""Generate the calls that hand a region's values to its probe: at its start, its end and every exit."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sglang_instrument.patching.places.anchors import Block, FunctionDef
from sglang_instrument.patching.places.bindings import Bindings
from sglang_instrument.patching.probes.contract import ProbeContract
from sglang_instrument.patching.probes.passed_items import PASS_ITEMS
from sglang_instrument.patching.rewriting.constants import Constants
from sglang_instrument.patching.tables.field_functions import UNBOUND

_RESULT: Final = "_sglang_instrument_result"
_LEAVING: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)

Node = TypeVar("Node", bound=ast.AST)
Names = frozenset[str]


def located(node: Node, place: ast.AST) -> Node:
    """Give `node` and its descendants the line of `place` if they have no line; return `node`."""
    for inner in ast.walk(node):
        located_alone(inner, place)
    return node


def located_alone(node: ast.AST, place: ast.AST) -> None:
    """Give a node, but not its descendants, the line of `place` if it has no line."""
    if isinstance(node, (ast.expr, ast.stmt, ast.excepthandler)) and not hasattr(node, "lineno"):
        node.lineno = node.end_lineno = place.lineno  # type: ignore[attr-defined]
        node.col_offset = node.end_col_offset = place.col_offset  # type: ignore[attr-defined]


@dataclass(eq=False)
class RegionHandover:
    """Generates the code of one region in a function that is being rewritten.

    `sure_at_start` and `sure_at_end` are the locals that surely have a value there; a `try` guards others.
    `sure_at_yields` holds such locals for each `yield`, by the id of its node. Generated code has the line
    of `located_as`. `counts_waiting`: the function is a coroutine that counts its awaits; so does the
    region's span.
    """

    number: int
    probe: ProbeContract
    constants: Constants
    bindings: Bindings
    sure_at_start: Names
    sure_at_end: Names
    sure_at_yields: Mapping[int, Names]
    located_as: ast.stmt
    captures: bool
    counts_waiting: bool = False
    node: ast.With | None = field(default=None, init=False)

    @property
    def local(self) -> str | None:
        """The name of the local that holds the open region; None if only the start hands values over."""
        probe = self.probe
        wanted = (
            self._guards_start
            or probe.exit_locals
            or probe.error_locals
            or probe.wants_result
            or probe.wants_items
        )
        return (
            f"_sglang_instrument_{self.number}"
            if not self.bindings.are_read and (wanted or self.captures)
            else None
        )

    def open_around(self, body: Block) -> Block:
        """Return the statements that open the region, with `body` inside.

        If a local may have no value, the code opens the region before the `with`: a guard around the `with`
        would catch the body's own errors.
        """
        names = self.probe.enter_locals
        if self.probe.assigns is not None:
            given = ast.Assign(
                [ast.Name(self.probe.assigns, ast.Store())], self._open(names, self.sure_at_start)
            )
            return [located(given, self.located_as), *body]
        if self.local is not None and self._guards_start:
            opened: ast.expr = ast.Name(self.local, ast.Load())
            guard = [self._guarded(self._open(names, None), self._open(names, self.sure_at_start))]
        else:
            opened = self._open(names, self.sure_at_start)
            guard = []
        if self.probe.is_instant and self.local is None:
            return [located(ast.Expr(opened), self.located_as), *body]
        stored = ast.Name(self.local, ast.Store()) if self.local is not None else None
        self.node = ast.With(items=[ast.withitem(opened, stored)], body=body)
        return [located(statement, self.located_as) for statement in (*guard, self.node)]

    def leave(self, sure: Names, result: ast.expr | None = None, *, is_early: bool = False) -> Block:
        """Return the statements that hand over the exit locals, and the result if a field reads it.

        `is_early`: code of the program runs before the region ends, and may drop what is handed over.
        """
        names = self.probe.exit_locals
        wanted = result is not None and self.probe.wants_result
        if self.local is None or not (names or wanted):
            return []
        method = ("leave_result" if wanted else "leave") + ("_early" if is_early else "")
        return self._hand(method, names, sure, [result] if result is not None and wanted else [])

    def item(self, node: ast.Yield) -> ast.Call:
        """Return the call that hands over a yielded item and the item locals.

        An expression cannot have a `try`: a local that may have no value is passed as UNBOUND.
        """
        item = node.value if node.value is not None else ast.Constant(None)
        sure = self.sure_at_yields.get(id(node), frozenset())
        return self.call("item", [item, *self._values(self.probe.item_locals, sure)])

    def passed_items(self, items: ast.expr) -> ast.Call:
        """Return the call that hands over each item that the generator passes on from `items`."""
        take = ast.Attribute(ast.Name(self.local or "", ast.Load()), "item", ast.Load())
        return ast.Call(self.constants.hold(PASS_ITEMS), [take, items], [])

    def handing_over_on_errors(self, body: Block) -> Block:
        """Return `body` in a `try` that hands over when a generator is closed or an exception passes."""
        handlers = [
            ast.ExceptHandler(self.constants.hold(kind), None, [*calls, ast.Raise()])
            for kind, calls in (
                (GeneratorExit, self.leave(self.sure_at_start) if self.probe.wants_items else []),
                (BaseException, self._hand("fail", self.probe.error_locals, self.sure_at_start)),
            )
            if calls
        ]
        return [ast.Try(body=body, handlers=handlers, orelse=[], finalbody=[])] if handlers else body

    def call(self, method: str, arguments: list[ast.expr]) -> ast.Call:
        """Return a call of a method of the open region."""
        local = ast.Name(self.local or "", ast.Load())
        return ast.Call(ast.Attribute(local, method, ast.Load()), arguments, [])

    def _hand(self, method: str, names: Sequence[str], sure: Names, first: Sequence[ast.expr] = ()) -> Block:
        """Return statements that call a method with `first` and the named locals; none without arguments."""
        if not (names or first):
            return []
        handed = ast.Expr(self.call(method, [*first, *self._values(names, None)]))
        if self._all_sure(names, sure):
            return [handed]
        return [self._try(handed, ast.Expr(self.call(method, [*first, *self._values(names, sure)])))]

    @property
    def _guards_start(self) -> bool:
        return not self._all_sure(self.probe.enter_locals, self.sure_at_start)

    def _all_sure(self, names: Iterable[str], sure: Names) -> bool:
        return all(name in sure or not self.bindings.has(name) for name in names)

    def _open(self, names: Iterable[str], sure: Names | None) -> ast.Call:
        probe = self.probe.counted() if self.counts_waiting else self.probe
        return ast.Call(self.constants.hold(probe), self._values(names, sure), [])

    def _values(self, names: Iterable[str], sure: Names | None) -> list[ast.expr]:
        """Return a node for each name: UNBOUND if it is no local, or not in `sure` when that is given."""
        return [
            ast.Name(name, ast.Load())
            if self.bindings.has(name) and (sure is None or name in sure)
            else self.constants.hold(UNBOUND)
            for name in names
        ]

    def _guarded(self, opened: ast.expr, with_sure: ast.expr) -> ast.Try:
        target = self.local or ""
        first, second = (ast.Assign([ast.Name(target, ast.Store())], value) for value in (opened, with_sure))
        return self._try(first, second)

    def _try(self, body: ast.stmt, fallback: ast.stmt) -> ast.Try:
        unbound = ast.ExceptHandler(self.constants.hold(NameError), None, [fallback])
        return ast.Try(body=[body], handlers=[unbound], orelse=[], finalbody=[])


class HandoverInserter(ast.NodeTransformer):
    """Insert the calls at the ends of regions, and at the returns, loop exits and yields in them."""

    def __init__(self, regions: Iterable[RegionHandover]) -> None:
        self._regions = {id(region.node): region for region in regions if region.local is not None}
        self._open: list[RegionHandover] = []
        self._loops: list[int] = []  # for each enclosing loop: how many regions were open outside it
        self._guards: list[int] = []  # the same for each `with`, and each `try` with a `finally`

    def over(self, definition: FunctionDef) -> None:
        """Insert the calls into a function whose regions are already `with` blocks."""
        if not self._regions:
            return
        definition.body[:] = self._visited(definition.body)

    def visit_With(self, node: ast.With) -> ast.With:
        """Visit the statements of a region as open, and add the hand-over after the last one."""
        region = self._regions.get(id(node))
        if region is None:
            self._visit_guard(node)
            return node
        self._open.append(region)
        self.generic_visit(node)
        self._open.pop()
        if not isinstance(node.body[-1], _LEAVING):
            node.body += region.leave(region.sure_at_end)
        node.body = [
            located(statement, region.located_as) for statement in region.handing_over_on_errors(node.body)
        ]
        return node

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AsyncWith:
        """Note that code runs when the block is left."""
        self._visit_guard(node)
        return node

    def visit_Try(self, node: ast.Try) -> ast.Try:
        """As a `with`, if it has a `finally`."""
        final, node.finalbody = node.finalbody, []
        if final:
            self._visit_guard(node)
            node.finalbody = self._visited(final)
        else:
            self.generic_visit(node)
        return node

    visit_TryStar = visit_Try  # noqa: N815 - a name of ast

    def visit_For(self, node: ast.For) -> ast.For:
        """Note the regions that a `break` in the loop does not leave."""
        node.iter = self.visit(node.iter)
        self._visit_loop(node)
        return node

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AsyncFor:
        """As a `for`."""
        node.iter = self.visit(node.iter)
        self._visit_loop(node)
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        """As a `for`."""
        node.test = self.visit(node.test)
        self._visit_loop(node)
        return node

    def visit_Break(self, node: ast.Break) -> ast.AST | list[ast.stmt]:
        """Hand over before a jump out of the regions inside the loop."""
        return [*self._leaving_loop(node), node]

    def visit_Continue(self, node: ast.Continue) -> ast.AST | list[ast.stmt]:
        """As a `break`."""
        return [*self._leaving_loop(node), node]

    def visit_Return(self, node: ast.Return) -> ast.AST | list[ast.stmt]:
        """Hand over after the returned value is computed and before the return."""
        self.generic_visit(node)
        # A generator's bare `return` must stay bare.
        result = ast.Name(_RESULT, ast.Load()) if node.value is not None else None
        calls = self._leave(0, result)
        if not calls:
            return node
        if node.value is None:
            return [*(located(statement, node) for statement in calls), node]
        stored = ast.Assign([ast.Name(_RESULT, ast.Store())], node.value)
        node.value = ast.Name(_RESULT, ast.Load())
        return [located(statement, node) for statement in (stored, *calls, node)]

    def visit_Yield(self, node: ast.Yield) -> ast.Yield:
        """Hand the yielded item to the open generator regions."""
        self.generic_visit(node)
        for region in reversed(self._open):
            if region.probe.wants_items:
                node.value = located(region.item(node), node)
        return node

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.YieldFrom:
        """Hand each item that passes to the open generator regions."""
        self.generic_visit(node)
        for region in reversed(self._open):
            if region.probe.wants_items:
                node.value = located(region.passed_items(node.value), node.value)
        return node

    def _visit_loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        self._loops.append(len(self._open))
        node.body = self._visited(node.body)
        self._loops.pop()
        node.orelse = self._visited(node.orelse)

    def _visited(self, block: Block) -> Block:
        visited = [self.visit(statement) for statement in block]
        return [statement for part in visited for statement in (part if isinstance(part, list) else [part])]

    def _visit_guard(self, node: ast.AST) -> None:
        self._guards.append(len(self._open))
        self.generic_visit(node)
        self._guards.pop()

    def _leaving_loop(self, statement: ast.stmt) -> Block:
        calls = self._leave(self._loops[-1] if self._loops else 0)
        return [located(call, statement) for call in calls]

    def _leave(self, outermost: int, result: ast.expr | None = None) -> Block:
        """Return the statements that leave the open regions, from the innermost to `outermost`."""
        innermost_guard = self._guards[-1] if self._guards else 0
        calls: Block = []
        for place in range(len(self._open) - 1, outermost - 1, -1):
            region, is_early = self._open[place], place < innermost_guard
            calls += region.leave(region.sure_at_start, result, is_early=is_early)
        return calls

    def _opaque(self, node: Node) -> Node:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _opaque  # noqa: N815 - names of ast
