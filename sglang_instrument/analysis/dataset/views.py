"""Make the views of a dataset that SQL asks: one of each table's files, and what is made of these."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.dataset.columns import TABLES, VIEWS, schema_of
from sglang_instrument.analysis.dataset.record_files import RecordFile
from sglang_instrument.analysis.run.span_files import NULL_PARTITION, SPANS
from sglang_instrument.analysis.tables.registry import stored_tables
from sglang_instrument.analysis.tables.run.spans import FIELDS
from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import demand_regular

_TYPES: Final[dict[Any, str]] = {
    pl.Int64: "BIGINT",
    pl.Float64: "DOUBLE",
    pl.String: "VARCHAR",
    pl.Boolean: "BOOLEAN",
    pl.Datetime("us", "UTC"): "TIMESTAMPTZ",
}
#: DuckDB before 2.0 does not know the name of the partition for null, and cannot cast it.
_KINDS: Final = "SELECT table_name, table_type FROM information_schema.tables"
_PARTITIONS: Final = {
    "run_id": f"nullif(run_id, '{NULL_PARTITION}')",
    "step": "try_cast(step AS BIGINT)",
}
_END_US: Final = "(start_us + CAST(trunc(coalesce(duration_sec, 0.0) * 1e6) AS BIGINT))"
#: What the store's records leave out, see `COLUMNS_OF_RECORDS`.
_OF_RECORDS: Final = {
    "end_us": _END_US,
    "timestamp": f"make_timestamptz({_END_US})",
    "self_sec": "coalesce(self_sec, duration_sec)",
    "wall_sec": "coalesce(wall_sec, self_sec, duration_sec)",
}
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


def make_views(connection: Any, dataset: Path, records: Sequence[RecordFile] | None) -> None:
    """Make a view of each table, and those of `VIEWS`.

    Args:
        connection: A connection of DuckDB.
        dataset: A folder with tables.
        records: Where the spans are; None for the dataset itself.
    """
    for name in TABLES:
        if name == SPANS and records:
            connection.execute(_view_of_records(records))
        else:
            connection.execute(_view(connection, dataset, name))
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
    whole = [file.path for file in records if not file.left_out]
    sources = [f"read_parquet([{', '.join(map(pattern, whole))}])"] if whole else []
    for file in records:
        if file.left_out:
            rows = ", ".join(f"({quoted(path)}, {quoted(run_id or '')})" for path, run_id in file.left_out)
            left_out = f"(file, coalesce(run_id, '')) NOT IN (VALUES {rows})"
            sources.append(f"read_parquet({pattern(file.path)}) WHERE {left_out}")
    selects = " UNION ALL ".join(f"SELECT {columns} FROM {source}" for source in sources)  # noqa: S608
    return f"CREATE VIEW spans AS {selects}"


def quoted_name(name: str) -> str:
    """Return a name of a column as SQL takes it."""
    return f'"{name}"'


def _view(connection: Any, dataset: Path, name: str) -> str:
    """Return the statement that makes a view; of a table without files, an empty table."""
    below = f"{SPANS}/*/*/*.parquet" if name == SPANS else f"{name}.parquet"
    if not _regular_files(dataset, below):
        types = ", ".join(f'"{column}" {_TYPES[kind]}' for column, kind in schema_of(name).items())
        return f"CREATE TABLE {name} ({types})"
    options = ", hive_partitioning = true, hive_types_autocast = false" if name == SPANS else ""
    source = f"read_parquet({pattern(dataset, below)}{options})"
    written = {column for column, *_ in connection.execute(f"DESCRIBE FROM {source}").fetchall()}
    columns = ", ".join(f'{_read(name, column, written)} AS "{column}"' for column in TABLES[name])
    return f"CREATE VIEW {name} AS SELECT {columns} FROM {source}"  # noqa: S608 - names and paths of ours


def _read(table: str, column: str, written: set[str]) -> str:
    """Return what a column of a table is; one that a dataset of an earlier version lacks is null."""
    formerly = TABLES[table][column].formerly
    if column not in written:
        return f'"{formerly}"' if formerly in written else f"CAST(NULL AS {_TYPES[schema_of(table)[column]]})"
    partition = _PARTITIONS.get(column) if table == SPANS else None
    return partition or f'"{column}"'  # `group` is a word of SQL


def _regular_files(dataset: Path, below: str) -> bool:
    """Return whether a pattern has files; raise LogError if DuckDB would wait for one, such as a FIFO."""
    paths = list(dataset.glob(below))
    try:
        for path in paths:
            demand_regular(path)
    except OSError as error:
        raise LogError(str(error)) from None
    return bool(paths)


def pattern(dataset: Path, below: str = "") -> str:
    """Return a pattern in quotes; the characters of the dataset's own path match themselves alone."""
    return quoted(Path(re.sub(r"([*?\[])", r"[\1]", str(dataset.absolute())), below))


def quoted(path: Path | str) -> str:
    """Return a path, or another text, as a text of SQL."""
    return _text(str(path))


def _text(words: str) -> str:
    return "'" + words.replace("'", "''") + "'"
