"""Encode indented JSON piece by piece: the rows of a long run take gigabytes as Python's objects."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import orjson

from sglang_instrument.analysis.answers.as_json import as_json

_AT_ONCE: Final = 2_000  # rows
_INDENT: Final = "  "  # that of OPT_INDENT_2


class JsonRows:
    """A list of an answer that is made while it is printed, once.

    Args:
        rows: The rows.
    """

    def __init__(self, rows: Iterable[Any]) -> None:
        self.rows = rows


def pieces_of_json(answer: Any) -> Iterator[str]:
    """Yield `answer` as indented JSON that ends with a line end, as if each `JsonRows` in it were a list."""
    lists: dict[int, JsonRows] = {}  # by identity: a second attempt meets them again
    mark = os.urandom(16).hex()  # no string of the answer is this one

    def marked(value: Any) -> str:
        if not isinstance(value, JsonRows):
            raise TypeError(f"no JSON for {type(value).__name__}")
        lists[id(value)] = value
        return mark

    text = as_json(answer, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE, marked).decode()
    first, *others = text.split(f'"{mark}"')
    yield first
    before = first
    for rows, following in zip(lists.values(), others, strict=True):
        line = before.rpartition("\n")[2]
        yield from _pieces_of_rows(rows, (len(line) - len(line.lstrip(" "))) // len(_INDENT))
        yield following
        before = following


def _pieces_of_rows(listed: JsonRows, depth: int) -> Iterator[str]:
    """Yield a list that lies in so many other values; without rows, it is `[]`."""
    opened = "".join(f"{_INDENT * level}[\n" for level in range(depth + 1))
    closed = "".join(f"\n{_INDENT * level}]" for level in reversed(range(depth + 1)))
    yield "["
    ends = ""
    for rows in _some_at_a_time(listed.rows):
        nested: list[Any] = rows
        for _ in range(depth):
            nested = [nested]
        text = as_json(nested, orjson.OPT_INDENT_2).decode()
        yield ("," if ends else "") + "\n" + text[len(opened) : -len(closed)]
        ends = f"\n{_INDENT * depth}"
    yield f"{ends}]"


def _some_at_a_time(rows: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(rows)
    while some := list(islice(iterator, _AT_ONCE)):
        yield some
