"""Find an anchor that means exactly the wanted statements, as the rewriter would read it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from sglang_instrument.patching.places.anchors import (
    DEFINITIONS,
    Block,
    FunctionDef,
    FunctionOutline,
    Unresolved,
    parse_anchors,
    walk_own,
)

_TOO_COMMON: Final = frozenset(
    {"self", "cls", "args", "kwargs", "len", "list", "dict", "str", "int", "print"}
)


def anchor_at(function: FunctionDef, statement: ast.stmt, preferred: str) -> dict[str, str] | None:
    """Return the anchor `at` of one statement, None if no name marks it; `preferred` is tried first."""
    outline = FunctionOutline(function)
    for name in [preferred, *_names(statement)]:
        if _lines(outline, {"at": name}) == _span([statement]):
            return {"at": name}
    return None


def anchor_block(function: FunctionDef, block: Block, preferred: str) -> dict[str, str] | None:
    """Return the anchor `block` of a list of statements, such as a loop's body."""
    outline = FunctionOutline(function)
    names = [preferred, *(name for statement in block for name in _names(statement))]
    for name in dict.fromkeys(names):
        if _lines(outline, {"block": name}) == _span(block):
            return {"block": name}
    return None


def _names(statement: ast.stmt) -> Iterator[str]:
    """Yield what marks a statement: names of calls first, then other names."""
    nodes = list(walk_own(statement, opaque=DEFINITIONS))
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    for node in [*calls, *nodes]:
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name and name not in _TOO_COMMON:
            yield name


def _lines(outline: FunctionOutline, texts: dict[str, str]) -> tuple[int, int] | None:
    try:
        return outline.resolve(parse_anchors(texts)).lines
    except (Unresolved, ValueError):
        return None


def _span(statements: Block) -> tuple[int, int]:
    return statements[0].lineno, statements[-1].end_lineno or statements[-1].lineno
