"""Make the views that SQL asks: one of each table, of the records, and what is made of these."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.dataset.columns import SPANS, TABLES, VIEWS, schema_of
from sglang_instrument.analysis.dataset.record_files import RecordFile
from sglang_instrument.analysis.store.packing import PACKED, UNPACKED_SQL
from sglang_instrument.analysis.store.records import COLUMNS_OF_RECORDS
from sglang_instrument.analysis.tables.registry import stored_tables
from sglang_instrument.analysis.tables.run.spans import FIELDS

_TYPES: Final[dict[Any, str]] = {
    pl.Int64: "BIGINT",
    pl.Float64: "DOUBLE",
    pl.String: "VARCHAR",
    pl.Boolean: "BOOLEAN",
    pl.Datetime("us", "UTC"): "TIMESTAMPTZ",
}
#: How the view makes columns of records that the store packs.
_OF_RECORDS: Final = {**UNPACKED_SQL, "timestamp": f"make_timestamptz({UNPACKED_SQL['end_us']})"}
#: A row for each event, field and type of its values in JSON.
_FIELDS: Final = """
CREATE VIEW fields AS
WITH objects AS (
    SELECT event, extra AS object FROM spans UNION ALL SELECT event, other_keys FROM spans),
members AS (
    SELECT event, key, type, value FROM objects, json_each(object) WHERE json_type(object) = 'OBJECT'),
typed AS (
    SELECT event, key, value, CASE
        WHEN type IN ('UBIGINT', 'BIGINT', 'HUGEINT', 'UHUGEINT', 'DOUBLE') THEN 'number'
        WHEN type = 'VARCHAR' THEN 'string'
        ELSE lower(type) END AS type
    FROM members)
SELECT event, key AS field, type, count(*) AS count,
    max(CASE WHEN type = 'number' THEN try_cast(value AS DOUBLE) END) AS example
FROM typed GROUP BY event, key, type ORDER BY event, key, type"""


def make_views(connection: Any, folder: Path, records: Sequence[RecordFile]) -> None:
    """Make a view of each table, and those of `VIEWS`.

    Args:
        connection: A connection of DuckDB.
        folder: A folder with tables.
        records: Where the spans are.
    """
    for name in TABLES:
        view = _view_of_records(records) if name == SPANS and records else _view(folder, name)
        connection.execute(view)
    connection.execute(_FIELDS)


def add_comments(connection: Any) -> None:
    """Add to the views what their rows and columns are: `duckdb_views()` and `duckdb_columns()` list it."""
    rows = {name: table.row for name, table in {**stored_tables(), FIELDS.name: FIELDS}.items()}
    kinds = dict(
        connection.execute("SELECT table_name, table_type FROM information_schema.tables").fetchall()
    )
    for name, columns in {**TABLES, **VIEWS}.items():
        kind = "VIEW" if kinds[name] == "VIEW" else "TABLE"
        connection.execute(f"COMMENT ON {kind} {name} IS {_text(f'a row is {rows[name]}')}")
        for column in columns.values():
            meaning = _text("; ".join(filter(None, (column.meaning, column.unit))))
            connection.execute(f'COMMENT ON COLUMN {name}."{column.name}" IS {meaning}')


def _view_of_records(records: Sequence[RecordFile]) -> str:
    """Return the statement that makes `spans` of a run's records."""
    columns = ", ".join(f'{_OF_RECORDS.get(name, quoted_name(name))} AS "{name}"' for name in TABLES[SPANS])
    kinds = {**COLUMNS_OF_RECORDS, **PACKED}
    nulls = ", ".join(f'CAST(NULL AS {_TYPES[kind]}) AS "{name}"' for name, kind in kinds.items())
    sources = [f"SELECT {nulls} WHERE false"]  # a part of another version may lack columns
    if whole := [file.path for file in records if file.only is None]:
        sources.append(f"FROM read_parquet([{', '.join(map(pattern, whole))}], union_by_name = true)")
    for file in records:
        if file.only:
            rows = ", ".join(f"({quoted(path)}, {quoted(run_id or '')})" for path, run_id in file.only)
            counting = f"(file, coalesce(run_id, '')) IN (VALUES {rows})"
            sources.append(f"FROM read_parquet({pattern(file.path)}) WHERE {counting}")
    return f"CREATE VIEW spans AS SELECT {columns} FROM ({' UNION ALL BY NAME '.join(sources)})"  # noqa: S608


def quoted_name(name: str) -> str:
    """Return a name of a column as SQL takes it."""
    return f'"{name}"'


def _view(folder: Path, name: str) -> str:
    """Return the statement that makes a view; of a table without a file, an empty table."""
    if (folder / f"{name}.parquet").exists():
        return f"CREATE VIEW {name} AS FROM read_parquet({pattern(folder, f'{name}.parquet')})"
    types = ", ".join(f'"{column}" {_TYPES[kind]}' for column, kind in schema_of(name).items())
    return f"CREATE TABLE {name} ({types})"


def pattern(folder: Path, below: str = "") -> str:
    """Return a pattern in quotes; the characters of the folder's own path match themselves alone."""
    return quoted(Path(re.sub(r"([*?\[])", r"[\1]", str(folder.absolute())), below))


def quoted(path: Path | str) -> str:
    """Return a path, or another text, as a text of SQL."""
    return _text(str(path))


def _text(words: str) -> str:
    return "'" + words.replace("'", "''") + "'"
