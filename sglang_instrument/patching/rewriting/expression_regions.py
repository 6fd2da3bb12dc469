"""Find and rewrite regions that are expressions: calls of a function, or the entering of `with` blocks."""

import ast
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from sglang_instrument.patching.places.anchors import DEFINITIONS, Anchor, Anchors, FunctionDef, walk_own
from sglang_instrument.patching.places.bindings import Bindings
from sglang_instrument.patching.probes.expression_probes import CallProbe, EnterProbe, ExpressionProbe
from sglang_instrument.patching.rewriting.branches import copied
from sglang_instrument.patching.rewriting.constants import Constants
from sglang_instrument.patching.rewriting.handover import located
from sglang_instrument.patching.tables.field_functions import UNBOUND

_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES: Final = (*DEFINITIONS, ast.Lambda, *_COMPREHENSIONS)
_WITH: Final = (ast.With, ast.AsyncWith)


class MeasuredExpression(NamedTuple):
    """An expression to measure, in a `scope` of the function: a call, or the context that a `with` enters."""

    owner: ast.Call | ast.withitem
    scope: ast.AST

    @property
    def node(self) -> ast.expr:
        """The expression that is called or entered."""
        return self.owner.func if isinstance(self.owner, ast.Call) else self.owner.context_expr

    @property
    def probe_kind(self) -> type[ExpressionProbe]:
        """The kind of probe that measures it."""
        return EnterProbe if isinstance(self.owner, ast.withitem) else CallProbe


def find_expressions(definition: FunctionDef, anchors: Anchors) -> list[MeasuredExpression]:
    """Return the expressions that `anchors` describe, also in nested functions and comprehensions."""
    return [
        measured
        for scope in _scopes(definition)
        for node in _own_nodes(scope)
        for measured in _expressions_in(node, anchors, scope)
    ]


def lines_of(expressions: Iterable[MeasuredExpression]) -> tuple[int, int]:
    """Return the first and the last line of the expressions."""
    nodes = [measured.node for measured in expressions]
    return min(node.lineno for node in nodes), max(node.end_lineno or node.lineno for node in nodes)


def put_probe(
    measured: MeasuredExpression, probe: ExpressionProbe, bindings: Bindings, constants: Constants
) -> None:
    """Replace the expression by `PROBE(expression, values)`.

    For a call, the expression is the whole call: the same frame still calls the function.
    """
    seen = {node.id for node in _own_nodes(measured.scope) if isinstance(node, ast.Name)}
    is_always = bindings.is_always if bindings.is_of(measured.scope) else bindings.is_always_within
    values: list[ast.expr] = [
        ast.Name(name, ast.Load()) if name in seen and is_always(name) else constants.hold(UNBOUND)
        for name in probe.locals
    ]
    owner, is_nested = measured.owner, not bindings.is_of(measured.scope)
    if isinstance(owner, ast.withitem):
        owner.context_expr = _probed(owner.context_expr, probe, values, constants, is_nested)
        return
    node: Any = owner  # changed in place; another region may have changed it already
    called: Any = ast.Constant(None)
    called.__class__, called.__dict__ = type(node), node.__dict__
    replaced = _probed(called, probe, values, constants, is_nested)
    node.__class__, node.__dict__ = type(replaced), dict(vars(replaced))


def _probed(
    value: ast.expr, probe: ExpressionProbe, values: list[ast.expr], constants: Constants, is_nested: bool
) -> ast.expr:
    """Return `PROBE(value, values)`; in a nested scope, compilers of bytecode see `value` alone."""
    call: ast.expr = ast.Call(constants.hold(probe), [value, *values], [])
    if is_nested:  # the rewritten function around it may run while a compiler sees only the nested one
        call = ast.IfExp(constants.is_compiler(), copied(value), call)
    return located(call, value)


def _expressions_in(node: ast.AST, anchors: Anchors, scope: ast.AST) -> Iterator[MeasuredExpression]:
    if anchors.call and isinstance(node, ast.Call) and _names(node.func) & {*anchors.call}:
        yield MeasuredExpression(node, scope)
    if anchors.entering and isinstance(node, _WITH):
        for item in node.items:
            if _mentions(item.context_expr, anchors.entering):
                yield MeasuredExpression(item, scope)


def _names(called: ast.expr) -> set[str]:
    name = getattr(called, "attr", None) or getattr(called, "id", None)
    return {name} if isinstance(name, str) else set()


def _mentions(expression: ast.expr, anchor: Anchor) -> bool:
    return any(
        not {getattr(node, "id", None), getattr(node, "attr", None)}.isdisjoint(anchor)
        for node in walk_own(expression, opaque=_SCOPES)
    )


def _scopes(definition: ast.AST) -> Iterator[ast.AST]:
    """Yield the function and its nested scopes, except classes, whose bodies have their own names."""
    yield definition
    for node in _own_nodes(definition):
        if isinstance(node, _SCOPES) and not isinstance(node, ast.ClassDef):
            yield from _scopes(node)


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run in this scope; of a nested scope, only its node and what runs out here."""
    waiting = list(_inside(scope))
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, _COMPREHENSIONS):
            waiting.append(node.generators[0].iter)
        elif not isinstance(node, _SCOPES):
            waiting.extend(ast.iter_child_nodes(node))


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    if isinstance(scope, DEFINITIONS):
        yield from scope.body
    elif isinstance(scope, ast.Lambda):
        yield scope.body
    elif isinstance(scope, _COMPREHENSIONS):
        for child in ast.iter_child_nodes(scope):
            parts = ast.iter_child_nodes(child) if isinstance(child, ast.comprehension) else (child,)
            # The first iterable runs in the enclosing scope.
            yield from (part for part in parts if part is not scope.generators[0].iter)
