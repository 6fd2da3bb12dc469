"""Rewrite a coroutine so that it counts its awaits: they go through `recording.measure.waiting`."""

import ast
from collections.abc import Callable
from typing import TypeVar

from sglang_instrument.patching.pickling import PassThrough
from sglang_instrument.patching.places.anchors import FunctionDef
from sglang_instrument.patching.rewriting.constants import Constants
from sglang_instrument.patching.rewriting.handover import located
from sglang_instrument.recording.measure.waiting import waited, waited_context, waited_iterator

Node = TypeVar("Node", bound=ast.AST)


def count_awaits(definition: FunctionDef, constants: Constants) -> None:
    """Rewrite each `await`, `async for` and `async with` of a coroutine function, but not of nested ones."""
    counter = _AwaitCounter(constants)
    for statement in definition.body:
        counter.visit(statement)


class _AwaitCounter(ast.NodeTransformer):
    def __init__(self, constants: Constants) -> None:
        self._constants = constants

    def visit_Await(self, node: ast.Await) -> ast.Await:
        self.generic_visit(node)
        node.value = self._through(waited, node.value)
        return node

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AsyncFor:
        self.generic_visit(node)
        node.iter = self._through(waited_iterator, node.iter)
        return node

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AsyncWith:
        self.generic_visit(node)
        for item in node.items:
            item.context_expr = self._through(waited_context, item.context_expr)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        if node.is_async:
            node.iter = self._through(waited_iterator, node.iter)
        return node

    def _through(self, function: Callable[..., object], value: ast.expr) -> ast.expr:
        return located(ast.Call(self._constants.hold(PassThrough(function)), [value], []), value)

    def _opaque(self, node: Node) -> Node:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _opaque  # noqa: N815 - names of ast
    visit_Lambda = _opaque  # noqa: N815 - as above

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.GeneratorExp:
        """Count only in the first iterable: the coroutine evaluates it; the rest may run elsewhere."""
        node.generators[0].iter = self.visit(node.generators[0].iter)
        return node
