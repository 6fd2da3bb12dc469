"""A table whose rows change in place: only cells that differ are drawn again."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text
from textual.widgets import DataTable

Row = tuple[Text, ...]


class LiveTable(DataTable[Text]):
    """A table of rows with keys; the cursor stays with its row."""

    def __init__(self, columns: Sequence[str], **named: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, **named)
        self._names = columns
        self._shown: dict[str, Row] = {}

    def on_mount(self) -> None:
        """Add the columns."""
        for name in self._names:
            self.add_column(name, key=name)

    def show(self, rows: Mapping[str, Row]) -> None:
        """Show these rows, in this order."""
        if list(rows) != list(self._shown):
            chosen = self.chosen()
            self.clear()
            for key, row in rows.items():
                self.add_row(*row, key=key)
            if chosen is not None and chosen in rows:
                self.move_cursor(row=self.get_row_index(chosen), animate=False)
        else:
            for key, row in rows.items():
                for name, cell, before in zip(self._names, row, self._shown[key], strict=True):
                    if cell != before:
                        self.update_cell(key, name, cell, update_width=len(cell) > len(before))
        self._shown = dict(rows)

    def chosen(self) -> str | None:
        """Return the key of the row under the cursor."""
        keys = list(self._shown)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None
