"""A table that is drawn anew many times a second at little cost: only the lines in sight are made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from sglang_instrument.plain_text import plain

_GAP: Final = 2  # spaces between columns
_HEADER: Final = Style(bold=True, underline=True)
_CURSOR: Final = Style(reverse=True)
_WIDEST: Final = 40  # characters of a cell


@dataclass(frozen=True)
class Cell:
    """What a cell shows, without control characters; numbers stand on the right."""

    text: str
    style: str = ""
    right: bool = False

    def __post_init__(self) -> None:
        """Escape control characters: textual writes them to the terminal as they are."""
        object.__setattr__(self, "text", plain(self.text))


Row = tuple[Cell, ...]


class LiveTable(ScrollView, can_focus=True):
    """A table of rows with keys; the cursor stays with its row while rows come and go."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
    ]

    def __init__(self, columns: Sequence[str], **named: Any) -> None:
        super().__init__(**named)
        self._columns = [Cell(name) for name in columns]
        self._rows: dict[str, Row] = {}
        self._keys: list[str] = []
        self._widths = [len(name) for name in columns]
        self._cursor = 0

    def show(self, rows: Mapping[str, Row]) -> None:
        """Show these rows, in this order."""
        if rows == self._rows and list(rows) == self._keys:
            return
        chosen = self.chosen()
        self._rows, self._keys = dict(rows), list(rows)
        self._cursor = self._keys.index(chosen) if chosen in self._rows else self._cursor
        self._cursor = max(0, min(self._cursor, len(self._keys) - 1))
        self._widths = [
            min(_WIDEST, max(map(cell_len, {cell.text for cell in column})))
            for column in zip(self._columns, *self._rows.values(), strict=True)
        ]
        size = Size(sum(self._widths) + _GAP * len(self._widths), len(self._keys) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        self.refresh()

    def chosen(self) -> str | None:
        """Return the key of the row under the cursor."""
        return self._keys[self._cursor] if self._cursor < len(self._keys) else None

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        self._choose(self._cursor + rows)

    def on_click(self, event: Click) -> None:
        """Move the cursor to what is clicked."""
        if event.y > 0:
            self._choose(event.y - 1 + self.scroll_offset.y)

    def _choose(self, row: int) -> None:
        self._cursor = max(0, min(row, len(self._keys) - 1))
        first, height = self.scroll_offset.y, self.size.height - 1
        if self._cursor < first or self._cursor >= first + height:
            to = self._cursor if self._cursor < first else self._cursor - height + 1
            self.scroll_to(y=to, animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return a line: the header stays, rows scroll."""
        base, number = self.rich_style, y - 1 + self.scroll_offset.y
        if y == 0:
            segments = self._segments(self._columns, base + _HEADER)
        elif number < len(self._keys):
            chosen = number == self._cursor and self.has_focus
            segments = self._segments(self._rows[self._keys[number]], base + _CURSOR if chosen else base)
        else:
            segments = []
        left = self.scroll_offset.x
        return Strip(segments).crop_extend(left, left + self.size.width, base)

    def _segments(self, cells: Sequence[Cell], base: Style) -> list[Segment]:
        segments = []
        for cell, width in zip(cells, self._widths, strict=True):
            text = cell.text.rjust(width) if cell.right and cell.text.isascii() else cell.text
            style = base + Style.parse(cell.style) if cell.style else base
            segments.append(Segment(set_cell_size(text, width) + " " * _GAP, style))
        return segments
