"""Count values that no column holds, such as a text for a number: each is left out alone, and named."""

from collections.abc import Iterable
from typing import Final

import msgspec

_MOST_NAMES: Final = 64  # of a file: its fields may have any names
_MOST_CHARACTERS: Final = 40
_OTHERS: Final = "other fields"


class Unfit(msgspec.Struct):
    """How many values of a field fit no column, and the first one as text."""

    count: int
    example: str


#: By the name of a field, or of a key of a line.
UnfitFields = dict[str, Unfit]


class NotFinite:
    """A number in JSON that no column holds: NaN, 1e400, an integer of thousands of digits."""

    __slots__ = ("digits",)

    def __init__(self, digits: str) -> None:
        self.digits = digits


def note_unfit(unfit: UnfitFields, name: str, text: str) -> None:
    """Count a value that fits no column."""
    key = name if name in unfit or len(unfit) < _MOST_NAMES else _OTHERS
    if key in unfit:
        unfit[key].count += 1
    else:
        cut = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
        unfit[key] = Unfit(1, cut)


def summed_unfit(parts: Iterable[UnfitFields]) -> UnfitFields:
    """Return what several pieces of a file hold together."""
    total: UnfitFields = {}
    for part in parts:
        for name, of_field in part.items():
            known = total.setdefault(name, Unfit(0, of_field.example))
            known.count += of_field.count
    return total


def add_seen(unfit: UnfitFields, seen: UnfitFields) -> None:
    """Add what another reading of the same lines saw; what both saw counts once."""
    for name, of_field in seen.items():
        if name not in unfit or unfit[name].count < of_field.count:
            unfit[name] = of_field
