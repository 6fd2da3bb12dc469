"""Check the fields that a region reads of other regions through `inside`, `before`, `last`: do they exist?"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from sglang_instrument.errors import TableError
from sglang_instrument.patching.tables.field_language import (
    BEFORE,
    INSIDE,
    LAST,
    Expression,
    Moment,
    Path,
    parsed,
)

if TYPE_CHECKING:
    from sglang_instrument.patching.tables.regions import Region

#: Fields of every finished region's record; the turn is there if one is bound.
_OF_ALL: Final = frozenset({"duration_sec", "turn"})
_OF_GENERATORS: Final = frozenset({"items", "first_item_sec"})


def unknown_fields(regions: Iterable[Region]) -> Iterator[tuple[Region, str]]:
    """Yield each region that reads a field which no region of the table can have, and the message.

    An event without a region in this table may belong to another table: it is not checked.
    """
    regions = list(regions)
    had: dict[str, set[str]] = {}
    for region in regions:
        if region.emit == "span":  # instant events are not kept
            had.setdefault(region.event, set()).update(_fields_of(region))
    for region in regions:
        for name, path in _paths_of(region):
            event = str(path.steps[0].name)
            for field in _read_fields(path):
                if event in had and field not in had[event]:
                    yield region, f"{name}: {_correction(event, field, had[event])}"


def _fields_of(region: Region) -> set[str]:
    named = {*region.enter, *region.exit, *region.always, *(capture.field for capture in region.capture)}
    return named | _OF_ALL | (_OF_GENERATORS if region.generator else set())


def _paths_of(region: Region) -> Iterator[tuple[str, Path]]:
    """Yield each field of the region that reads other regions' records, and the path that it reads."""
    leaving: Moment = "item" if region.generator else "exit"
    read: dict[str, tuple[Mapping[str, str], Moment]] = {
        "enter": (region.enter, "enter"),
        "bind": (region.bind, "enter"),
        "exit": (region.exit, leaving),
        "always": (region.always, leaving),
    }
    for key, (fields, moment) in read.items():
        for name, text in fields.items():
            expression = _parsed(text, moment)
            for path in () if expression is None else expression.paths:
                if (
                    path.root in (INSIDE, BEFORE, LAST)
                    and expression is not None
                    and expression.is_root(path)
                ):
                    yield f"{key}.{name}", path


def _parsed(text: str, moment: Moment) -> Expression | None:
    if not any(f"{root}." in text for root in (INSIDE, BEFORE, LAST)):  # most fields: saves start-up time
        return None
    try:
        return parsed(text, moment)
    except TableError:  # reported when the region's probe is made
        return None


def _read_fields(path: Path) -> Iterator[str]:
    """Yield the fields that a path reads of one record; `[*]`, `[?field]` or an index selects the record."""
    if path.root == LAST:  # one record, not several
        yield from (str(step.name) for step in path.steps[1:2])
        return
    for place, step in enumerate(path.steps[1:], 1):
        if step.kind == "each" and step.name:
            yield str(step.name)
        if step.kind == "each" or isinstance(step.name, int):
            continue
        if place > 1:
            yield from [old for _, old in step.names] if step.kind == "pick" else [str(step.name)]
        return


def _correction(event: str, field: str, known: set[str]) -> str:
    near = difflib.get_close_matches(field, known, 1)
    right = f"did you mean {near[0]!r}? " if near else ""
    fields = ", ".join(sorted(known))
    return f"no region {event} of this table has a field {field!r}; {right}the fields are {fields}"
