"""Find the statements that a region's anchors describe.

Anchors are names, not line numbers, so a table fits several versions of a trainer. A statement *mentions* its
names, attributes, keyword names, nested functions' names and short strings, but nothing in the bodies of
nested functions and classes. A region lies in one block: the innermost list of statements that mentions all
its anchors in order.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

FunctionDef: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Block: TypeAlias = list[ast.stmt]
Anchor: TypeAlias = tuple[str, ...]

DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LONGEST_STRING: Final = 80
_ALTERNATIVE: Final = re.compile(r"[A-Za-z_]\w*|'[^']+'|\"[^\"]+\"")


class Anchors(NamedTuple):
    """The names that delimit a region: for each key a tuple of alternatives, empty if the key is absent.

    With `call` or `entering` the region is an expression; `rewriting/expression_regions.py` finds it.
    """

    start: Anchor = ()
    after: Anchor = ()
    through: Anchor = ()
    before: Anchor = ()
    at: Anchor = ()
    block: Anchor = ()
    call: Anchor = ()
    entering: Anchor = ()


class Statements(NamedTuple):
    """The statements `block[start:stop]`; empty where start equals stop."""

    block: Block
    start: int
    stop: int

    @property
    def lines(self) -> tuple[int, int]:
        """First and last line, counted from 1; an empty region gives the line of the next statement twice."""
        if self.start == self.stop:
            line = self.block[min(self.start, len(self.block) - 1)].lineno
            return line, line
        last = self.block[self.stop - 1]
        return self.block[self.start].lineno, last.end_lineno or last.lineno

    @property
    def nodes(self) -> Block:
        """The statements themselves."""
        return self.block[self.start : self.stop]


class Unresolved(Exception):  # noqa: N818 - a result of the search; callers catch it
    """The anchors describe no statements, or more than one place."""


class AnchorsMissing(Unresolved):
    """No block mentions all anchors in order."""


class AnchorsAmbiguous(Unresolved):
    """Two blocks mention all anchors, and neither block is inside the other."""


def parse_anchors(texts: Mapping[str, str]) -> Anchors:
    """Turn `{"from": "pad | 'text'"}` into anchors.

    Raises:
        ValueError: an anchor is not a name or a quoted string, or two keys exclude each other.
    """
    parsed = {key: _parse_anchor(key, text) for key, text in texts.items()}
    anchors = Anchors(start=parsed.pop("from", ()), **parsed)
    if (anchors.at or anchors.block or anchors.call or anchors.entering) and len(texts) > 1:
        raise ValueError(
            f"at, block, call and entering allow no other anchor, got {', '.join(sorted(texts))}"
        )
    for key, other in (("from", "after"), ("through", "before")):
        if key in texts and other in texts:
            raise ValueError(f"give {key} or {other}, not both")
    return anchors


def _parse_anchor(key: str, text: str) -> Anchor:
    alternatives = [alternative.strip() for alternative in text.split(" | ")]
    for alternative in alternatives:
        if not _ALTERNATIVE.fullmatch(alternative):
            raise ValueError(f"{key} must be a name or a quoted string, or several with ' | ', got {text!r}")
    return tuple(
        repr(alternative[1:-1]) if alternative[0] in "'\"" else alternative for alternative in alternatives
    )


class FunctionOutline:
    """A function's blocks and the names that their statements mention, computed once per function."""

    def __init__(self, definition: FunctionDef) -> None:
        self.definition = definition
        self._body_start = 0 if ast.get_docstring(definition, clean=False) is None else 1
        self._blocks = list(_blocks(definition.body, 0))
        self._mentions: dict[int, frozenset[str]] = {}

    def resolve(self, anchors: Anchors) -> Statements:
        """Return the statements that `anchors` describe; without anchors, the body except the docstring.

        Raises:
            AnchorsMissing: no block mentions all anchors in order.
            AnchorsAmbiguous: two blocks mention all anchors, and neither is inside the other.
        """
        if not any(anchors):
            return Statements(self.definition.body, self._body_start, len(self.definition.body))
        matches = [
            (depth, statements)
            for depth, block in self._blocks
            if (statements := self._within(block, anchors)) is not None
        ]
        if not matches:
            raise AnchorsMissing(self._what_is_missing(anchors))
        _, innermost = max(matches, key=lambda candidate: candidate[0])
        rivals = [statements for _, statements in matches if not _contains(statements.block, innermost.block)]
        if rivals:
            lines = sorted(region.lines[0] for region in (innermost, *rivals))
            raise AnchorsAmbiguous(f"lines {', '.join(map(str, lines))} match in separate blocks")
        return innermost

    def _within(self, block: Block, anchors: Anchors) -> Statements | None:
        first = self._body_start if block is self.definition.body else 0
        if anchors.block:
            return (
                None
                if self._find(anchors.block, block, first) is None
                else Statements(block, first, len(block))
            )
        if anchors.at:
            place = self._find(anchors.at, block, first)
            return None if place is None else Statements(block, place, place + 1)
        start = self._begin(anchors, block, first)
        stop = None if start is None else self._end(anchors, block, start)
        return None if start is None or stop is None else Statements(block, start, stop)

    def _begin(self, anchors: Anchors, block: Block, first: int) -> int | None:
        if not (anchors.start or anchors.after):
            return first
        place = self._find(anchors.start or anchors.after, block, first)
        return None if place is None else place + bool(anchors.after)

    def _end(self, anchors: Anchors, block: Block, start: int) -> int | None:
        if not (anchors.through or anchors.before):
            return len(block)
        # The first statement of the region cannot also be its `before` anchor.
        begin = start + bool(anchors.start and anchors.before)
        place = self._find(anchors.through or anchors.before, block, begin)
        return None if place is None else place + bool(anchors.through)

    def _find(self, anchor: Anchor, block: Block, begin: int) -> int | None:
        for place in range(begin, len(block)):
            if not self._mentioned(block[place]).isdisjoint(anchor):
                return place
        return None

    def _mentioned(self, statement: ast.stmt) -> frozenset[str]:
        known = self._mentions.get(id(statement))
        if known is None:
            known = self._mentions[id(statement)] = frozenset(_mentions(statement))
        return known

    def _what_is_missing(self, anchors: Anchors) -> str:
        everything = frozenset[str]().union(*map(self._mentioned, self.definition.body))
        absent = [anchor for anchor in anchors if anchor and everything.isdisjoint(anchor)]
        if absent:
            texts = [in_quotes(name) for anchor in absent for name in anchor if repr(name) in everything]
            hint = f"; it occurs as a string: write {', '.join(texts)}" if texts else ""
            return f"no statement mentions {', '.join(map(' | '.join, absent))}{hint}"
        return "no block mentions all anchors in this order"


def in_quotes(text: str) -> str:
    """Return a string anchor as a table writes it: quotes inside quotes."""
    return f"\"'{text}'\""


def statement_lists(statement: ast.stmt) -> Iterator[Block]:
    """Yield the lists of statements directly inside `statement`; none for a nested function or class."""
    if isinstance(statement, DEFINITIONS):
        return
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if block:
            yield block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _blocks(block: Block, depth: int) -> Iterator[tuple[int, Block]]:
    yield depth, block
    for statement in block:
        for inner in statement_lists(statement):
            yield from _blocks(inner, depth + 1)


def _contains(outer: Block, inner: Block) -> bool:
    return any(block is inner for _, block in _blocks(outer, 0))


def _mentions(statement: ast.stmt) -> Iterator[str]:
    for node in walk_own(statement, opaque=DEFINITIONS):
        if isinstance(node, DEFINITIONS):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and len(node.value) < _LONGEST_STRING
        ):
            yield repr(node.value)


def walk_own(node: ast.AST, opaque: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """Yield `node` and its descendants; yield nodes of the `opaque` kinds, but not their descendants."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        if not isinstance(current, opaque):
            waiting.extend(ast.iter_child_nodes(current))
