"""Read a class, or the functions of a module, and find which calls which, and which reach the engine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from sglang_instrument.patching.places.anchors import DEFINITIONS, Block, FunctionDef, statement_lists
from sglang_instrument.patching.suggest.kinds import Kind, dotted, kind_of_call

_INNER: Final = (*DEFINITIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_STARTERS: Final = frozenset({"create_task", "ensure_future", "gather", "submit", "run_coroutine_threadsafe"})


@dataclass(frozen=True)
class CallSite:
    """A call in a function.

    Attributes:
        call: The call.
        name: Its last name.
        kind: What it does by its name; None if that does not tell, or if the function is one of ours.
        own: The function of the class that it calls, if it calls one.
        is_nested: Whether it stands in a nested function, whose statements no anchor reaches.
        is_many: Whether it stands where one caller starts many: in a comprehension, a nested function, a
            task.
    """

    call: ast.Call
    name: str
    kind: Kind | None
    callee: str | None
    is_nested: bool
    is_many: bool


@dataclass(frozen=True)
class Methods:
    """The functions of a class, or of a module.

    Attributes:
        module: The module's name.
        owner: The class; empty for the functions of a module.
        functions: By name.
        first: The function that a user named, of a module's functions.
        bases: The base classes that are imported, each as its module and its name.
    """

    module: str
    owner: str
    functions: dict[str, FunctionDef]
    first: str | None = None
    bases: tuple[tuple[str, str], ...] = ()

    def target(self, name: str) -> str:
        """Return a function's name as a table's target."""
        return f"{self.owner}.{name}" if self.owner else name

    @cached_property
    def calls(self) -> dict[str, list[CallSite]]:
        """The calls in each function, in the order of the source."""
        return {
            name: sorted(self._calls_in(function), key=_place) for name, function in self.functions.items()
        }

    def _calls_in(self, function: FunctionDef) -> Iterator[CallSite]:
        waiting: list[tuple[ast.AST, bool, bool]] = [(statement, False, False) for statement in function.body]
        while waiting:
            node, nested, many = waiting.pop()
            if isinstance(node, ast.Call):
                callee = self._callee_of(node)
                name = dotted(node.func).rpartition(".")[2]
                yield CallSite(node, name, None if callee else kind_of_call(node), callee, nested, many)
                many = many or name in _STARTERS
            nested = nested or isinstance(node, DEFINITIONS)
            many = many or isinstance(node, _INNER)
            waiting.extend((child, nested, many) for child in ast.iter_child_nodes(node))

    def _callee_of(self, call: ast.Call) -> str | None:
        holder, _, name = dotted(call.func).rpartition(".")
        wanted = ("self", "cls", self.owner) if self.owner else ("",)
        return name if name in self.functions and holder in wanted else None

    @cached_property
    def reaching(self) -> frozenset[str]:
        """The functions that ask the engine, themselves or by functions of the class that they call."""
        return self._reaching_from(
            {name for name, of in self.calls.items() if any(c.kind == "engine" for c in of)}
        )

    def _reaching_from(self, reaching: set[str]) -> frozenset[str]:
        while True:
            more = {
                name for name, of in self.calls.items() if any(call.callee in reaching for call in of)
            } - reaching
            if not more:
                return frozenset(reaching)
            reaching |= more

    def reached(self, name: str) -> list[str]:
        """Return a function, and those of the class that it reaches, each once, callers first."""
        names = [name]
        for caller in names:
            names += [call.callee for call in self.calls[caller] if call.callee and call.callee not in names]
        return list(dict.fromkeys(names))

    def asks(self, call: CallSite) -> bool:
        """Return whether a call ends at the engine."""
        return call.kind == "engine" or call.callee in self.reaching

    def entries(self) -> list[str]:
        """Return the functions that reach the engine and are called by no other that does."""
        called = {call.callee for name in self.reaching for call in self.calls[name] if call.callee != name}
        names = [name for name in self.functions if name in self.reaching and name not in called]
        names = names or [name for name in self.functions if name in self.reaching]
        if self.first in self.reaching:
            names = [str(self.first)]
        return names


def _place(site: CallSite) -> tuple[int, int]:
    return site.call.lineno, site.call.col_offset


@dataclass(frozen=True)
class Spot:
    """A statement, the block that it stands in, the loops and branches around, the innermost last."""

    statement: ast.stmt
    block: Block
    around: tuple[ast.stmt, ...]


def spots_of(function: FunctionDef) -> Iterator[Spot]:
    """Yield each statement of a function, except those in nested functions, in the order of the source."""
    yield from _spots(function.body, ())


def _spots(block: Block, around: tuple[ast.stmt, ...]) -> Iterator[Spot]:
    for statement in block:
        yield Spot(statement, block, around)
        for inner in statement_lists(statement):
            yield from _spots(inner, (*around, statement))


def spot_of(function: FunctionDef, call: ast.Call) -> Spot | None:
    """Return the smallest statement that holds a call; None if it stands in a nested function."""
    smallest = None
    for spot in spots_of(function):
        if not isinstance(spot.statement, DEFINITIONS) and any(
            node is call for node in ast.walk(spot.statement)
        ):
            smallest = spot
    return smallest
