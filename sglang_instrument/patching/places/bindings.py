"""Find a function's locals, where each surely has a value, and whether the function reads `locals()`."""

import ast
import builtins
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from types import CodeType
from typing import Any, Final

from sglang_instrument.patching.places.anchors import (
    DEFINITIONS,
    Block,
    FunctionDef,
    statement_lists,
    walk_own,
)

_OWN_SCOPES: Final = (*DEFINITIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
#: Built-ins that show a caller its own locals: the caller would see a local that the rewriter adds.
_SHOWING: Final = frozenset({"locals", "vars", "dir", "eval", "exec"})
#: Attributes that give a function its own frame, or a frame's locals.
_FRAME: Final = frozenset({"currentframe", "_getframe", "f_locals"})
_SHOW: Final = (*(getattr(builtins, name) for name in _SHOWING), inspect.currentframe, sys._getframe)


class Bindings:
    """The locals of one function.

    Args:
        definition: the function.
        free: names that it takes from enclosing functions.
        aliases: other names by which it may call `locals` and the like; see `aliases_in`.
    """

    def __init__(
        self, definition: FunctionDef, free: Iterable[str] = (), aliases: Iterable[str] = ()
    ) -> None:
        self._definition = definition
        #: Whether the function reads its own locals; then the rewriter may add none.
        self.are_read = any(_shows_locals(node, {*_SHOWING, *aliases}) for node in _own_nodes(definition))
        self._parameters = frozenset(_parameters(definition.args))
        stored, lost, foreign = _stores(definition.body)
        # Of a name of an enclosing function, any function that shares it may end the value at any time.
        self._unbound_again = lost | _lost_within(definition) | frozenset(free)
        self._names = (self._parameters | stored | frozenset(free)) - (foreign - frozenset(free))

    def is_of(self, scope: ast.AST) -> bool:
        """Say whether these are the locals of `scope` itself, not of an enclosing scope."""
        return scope is self._definition

    def has(self, name: str) -> bool:
        """Say whether `name` is a local of the function or of an enclosing function."""
        return name in self._names

    def is_always(self, name: str) -> bool:
        """Say whether `name` is a parameter that always has a value."""
        return name in self._parameters - self._unbound_again

    def is_always_within(self, name: str) -> bool:
        """Say whether `name` is such a parameter and no nested scope binds it again."""
        return self.is_always(name) and name not in self._bound_within

    @cached_property
    def _bound_within(self) -> frozenset[str]:
        scopes = (node for node in ast.walk(self._definition) if isinstance(node, _OWN_SCOPES))
        inner = (scope for scope in scopes if scope is not self._definition)
        return frozenset(name for scope in inner for node in ast.walk(scope) for name in _named_by(node))

    def sure_at(self, block: Block, place: int) -> frozenset[str]:
        """Return the locals that always have a value when control reaches the statement `block[place]`."""
        path = _bound_on_the_way(self._definition.body, block, place, self._parameters)
        return (path if path is not None else self._parameters) - self._unbound_again

    def sure_at_yields(self) -> dict[int, frozenset[str]]:
        """Return the locals that have a value at each `yield`, by the id of its node."""
        return self._sure_at_yields(self._definition.body)

    def _sure_at_yields(self, block: Block) -> dict[int, frozenset[str]]:
        sure_by_yield = dict[int, frozenset[str]]()
        for place, statement in enumerate(block):
            sure = self.sure_at(block, place)
            nodes = walk_own(statement, opaque=_OWN_SCOPES)
            sure_by_yield |= {id(node): sure for node in nodes if isinstance(node, ast.Yield)}
            for inner in statement_lists(statement):  # more names have a value there
                sure_by_yield |= self._sure_at_yields(inner)
        return sure_by_yield


def aliases_in(names: Iterable[str], module_globals: Mapping[str, Any]) -> list[str]:
    """Return those of `names` that a module uses for a function that shows locals, as in `show = vars`."""
    return [name for name in names if any(module_globals.get(name) is show for show in _SHOW)]


def may_show_locals(code: CodeType, module_globals: Mapping[str, Any]) -> bool:
    """Say whether running code may read its own locals, without its source."""
    return not (_SHOWING | _FRAME).isdisjoint(code.co_names) or bool(
        aliases_in(code.co_names, module_globals)
    )


def _named_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node of a nested scope may bind or unbind."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    # The attributes that hold a name in parameters, handlers, definitions, imports and patterns.
    for attribute in ("arg", "name", "asname", "rest"):
        name = getattr(node, attribute, None)
        if isinstance(name, str):
            yield name


def _own_nodes(definition: FunctionDef) -> Iterator[ast.AST]:
    for statement in definition.body:
        yield from walk_own(statement, opaque=DEFINITIONS)


def _shows_locals(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names
    if not isinstance(node, ast.Attribute):
        return False
    is_builtin = isinstance(node.value, ast.Name) and node.value.id == "builtins"
    return node.attr in _FRAME or (is_builtin and node.attr in _SHOWING)


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield argument.arg
    for star in (arguments.vararg, arguments.kwarg):
        if star is not None:
            yield star.arg


def _stores(body: Block) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return three sets: the names bound, those that may be unbound again, those global or nonlocal."""
    stored, lost, foreign = set[str](), set[str](), set[str]()
    for statement in body:
        for node in walk_own(statement, opaque=_OWN_SCOPES):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stored.add(node.id)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
                lost.add(node.id)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                stored.add(node.name)
                lost.add(node.name)  # `except E as name` unbinds it at its end
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                foreign.update(node.names)
            elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
                stored.add(node.name)
            elif isinstance(node, (*DEFINITIONS, ast.Import, ast.ImportFrom)):
                stored.update(_bound_by(node))
    return frozenset(stored), frozenset(lost), frozenset(foreign)


def _lost_within(definition: FunctionDef) -> frozenset[str]:
    """Return the names that a nested function declares as `nonlocal` and may unbind again."""
    nested = (
        node for node in ast.walk(definition) if isinstance(node, DEFINITIONS) and node is not definition
    )
    unbound = set[str]()
    for scope in nested:
        _, lost, foreign = _stores(scope.body)
        unbound |= lost & foreign
    return frozenset(unbound)


def _bound_on_the_way(
    block: Block, target: Block, place: int, bound: frozenset[str]
) -> frozenset[str] | None:
    """Return the names that are bound when control reaches `target[place]` from the start of `block`.

    None if `target` does not lie in `block`.
    """
    for index, statement in enumerate(block):
        if block is target and index == place:
            return bound
        header = bound | frozenset(_bound_by_header(statement))
        for inner in statement_lists(statement):
            entered = header if inner is getattr(statement, "body", None) else bound
            names = _bound_on_the_way(inner, target, place, entered)
            if names is not None:
                return names
        bound |= frozenset(_bound_by(statement))
    return bound if block is target else None


def _bound_by(statement: ast.AST) -> Iterator[str]:
    """Yield the names that have a value after `statement`, whichever branch it takes."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from _names(target)
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)) and statement.value is not None:
        yield from _names(statement.target)
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, DEFINITIONS):
        yield statement.name


def _bound_by_header(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a loop or a `with` binds before its body runs."""
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        yield from _names(statement.target)
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        for item in statement.items:
            if item.optional_vars is not None:
                yield from _names(item.optional_vars)


def _names(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
