"""Describe a table: its columns, what a row is, and how it is made from a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_instrument.analysis.tables.column import Column

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A table, which commands print, `--json` writes, and SQL and notebooks ask.

    Attributes:
        name: Its name; in SQL that of the view.
        row: What a row is, as the begin of a sentence: "a request, the slowest first".
        columns: Its columns, in order.
        commands: The commands that print it.
        option: The option that asks a command for it; "" if none has to.
        make: Returns it for a whole run, with at least the columns that have `frame`; None if it depends on
            options.
        is_stored: Whether `export --parquet` writes it and SQL has a view of it.
    """

    name: str
    row: str
    columns: tuple[Column, ...]
    commands: tuple[str, ...] = ()
    option: str = ""
    make: Callable[[Run], pl.DataFrame] | None = None
    is_stored: bool = False

    @property
    def title(self) -> str:
        """Its heading in `--explain`."""
        asked = f" ({self.option})" if self.option else ""
        return f"{self.name.replace('_', ' ')}{asked}: a row is {self.row}"

    def column(self, name: str) -> Column:
        """Return the column with a name."""
        return next(column for column in self.columns if column.name == name)

    def in_json(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """Return what `--json` prints of rows: the declared columns, in order."""
        return list(self.each_in_json(rows))

    def each_in_json(self, rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
        """Yield what `in_json` returns: for the many rows of a long run."""
        columns = [column for column in self.columns if column.json]
        for row in rows:
            yield {
                column.name: row[column.name]
                for column in columns
                if not column.optional or column.name in row
            }

    def frame(self, run: Run) -> pl.DataFrame:
        """Return this table of a run, with the declared columns and types.

        Raises:
            ValueError: It depends on options of a command.
        """
        if self.make is None:
            raise ValueError(f"{self.name} is made for options of a command")
        return self.fitted(self.make(run))

    def fitted(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows with the declared columns alone, in order and with their types."""
        import polars as pl

        return rows.select(pl.col(name).cast(kind) for name, kind in self.schema.items())

    def of_rows(self, rows: Iterable[Row]) -> pl.DataFrame:
        """Return rows as a table; strings that polars cannot hold, as of names not UTF-8, are replaced."""
        import orjson
        import polars as pl

        from sglang_instrument.analysis.answers.as_json import as_json

        return pl.DataFrame(orjson.loads(as_json(list(rows))), schema=self.schema, strict=False)

    @property
    def schema(self) -> dict[str, Any]:
        """The columns in SQL and the notebook, and their polars types."""
        types = polars_types()
        return {column.name: types[column.kind] for column in self.columns if column.frame}


def polars_types() -> dict[str, Any]:
    """Return the polars type of each kind of column."""
    import polars as pl

    return {
        **dict.fromkeys(("words", "list", "object", "value"), pl.String),
        **dict.fromkeys(("count", "id", "ordinal", "moment", "bytes"), pl.Int64),
        **dict.fromkeys(("number", "rounded", "share", "time", "fine time"), pl.Float64),
        "flag": pl.Boolean,
        "timestamp": pl.Datetime("us", "UTC"),
    }
