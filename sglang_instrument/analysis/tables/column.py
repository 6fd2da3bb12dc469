"""Describe a column once: its name, type, unit and meaning, and how a terminal shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple


class Styled(NamedTuple):
    """Words in a colour."""

    words: str
    style: str


Cell = str | int | float | Styled | None
Kind = Literal[
    "words",
    "count",
    "rounded",
    "id",
    "ordinal",
    "number",
    "share",
    "time",
    "fine time",
    "moment",
    "bytes",
    "flag",
    "timestamp",
    "list",
    "object",
    "value",
]
#: The type of each kind in JSON.
TYPES: Final[Mapping[str, str]] = {
    "words": "string",
    "count": "integer",
    "rounded": "number",
    "id": "integer",
    "ordinal": "integer",
    "number": "number",
    "share": "number",
    "time": "number",
    "fine time": "number",
    "moment": "integer",
    "bytes": "integer",
    "flag": "boolean",
    "timestamp": "string",
    "list": "array",
    "object": "object",
    "value": "boolean or number or string",
}
#: The unit of each kind, where the name of the kind does not say it.
UNITS: Final[Mapping[str, str]] = {
    "ordinal": "from 0; the terminal counts from 1",
    "share": "1 is 100 %",
    "time": "seconds",
    "fine time": "seconds",
    "moment": "microseconds since the Unix epoch, UTC",
}
_UNITS_IN_NAMES: Final = ("_sec", "_us", "_share")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its name in JSON, SQL, CSV and the notebook. A quantity ends in its unit.
        meaning: What `--explain` and the reference say.
        kind: What the cells are: words; whole numbers; numbers that are printed as whole ones; whole numbers
            that name something, such as steps; numbers that count from 0 where programs read and from 1 where
            people do; numbers with up to three decimals; shares, which are printed in percent; seconds; Unix
            microseconds; bytes, which are printed as 1.4 MB; true or false. The cells of a "time" are alike:
            the largest one decides how many decimals all have. Those of a "fine time" differ: the smallest
            one can be read, too.
        gives_way: A narrow terminal leaves out the columns with a number, 1 first.
        title: The header, without a unit, where the name is too long for one.
        styles: Colours of words.
        cell: Makes the cell of the terminal from a row; None if the row holds it by the name.
        terminal: Whether a terminal shows it.
        json: Whether `--json` prints it.
        frame: Whether it is a column in SQL, CSV and the notebook.
        optional: Whether it is there only if an option asks for it.
        if_any: Whether the terminal shows it only if a row has a value that is not 0.
        shown_as: What the cells of the terminal are, where `cell` makes something else of the value.
        field: The field of the log that it is of all spans of the row: NAME, or NAME:max, NAME:mean. Numbers
            are summed; of texts it is the last one. `from_fields` fills it.
        formerly: Its name in earlier versions.
        former_title: Its header in earlier versions.
    """

    name: str
    meaning: str
    kind: Kind = "words"
    gives_way: int = 0
    title: str = ""
    styles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cell: Callable[[Mapping[str, Any]], Cell] | None = None
    terminal: bool = True
    json: bool = True
    frame: bool = True
    optional: bool = False
    if_any: bool = False
    shown_as: Kind | None = None
    field: str = ""
    formerly: str = ""
    former_title: str = ""

    @property
    def header(self) -> str:
        """The header, without a unit: by default the name in words."""
        if self.title:
            return self.title
        name = next((self.name.removesuffix(end) for end in _UNITS_IN_NAMES if self.name.endswith(end)), "")
        return (name or self.name).replace("_", " ")

    @property
    def printed(self) -> Kind:
        """The kind of the cells on a terminal."""
        return self.shown_as or self.kind

    @property
    def unit(self) -> str:
        """The unit, in words; "" for words and whole numbers."""
        return UNITS.get(self.kind, "")

    def cell_of(self, row: Mapping[str, Any]) -> Cell:
        """Return what a terminal shows of a row."""
        if self.cell is not None:
            return self.cell(row)
        value: Cell = row.get(self.name) if self.optional else row[self.name]
        if self.kind == "ordinal" and isinstance(value, int):
            return str(value + 1)
        return str(value).lower() if value is not None and self.kind in ("id", "flag") else value
