"""Ask a run in SQL, by DuckDB, which may read the tables and records of this run and nothing else."""

import re
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.dataset.columns import SPANS, TABLES, VIEWS
from sglang_instrument.analysis.dataset.export import writing
from sglang_instrument.analysis.dataset.record_files import RecordFile, record_files
from sglang_instrument.analysis.dataset.tables import MADE, make_table
from sglang_instrument.analysis.dataset.views import add_comments, make_views, pattern, quoted
from sglang_instrument.analysis.digests.parquet import save_parquet
from sglang_instrument.analysis.executors.executor import Progress
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.store.records import RECORDS
from sglang_instrument.errors import InstrumentError
from sglang_instrument.extras import install_extra
from sglang_instrument.safe_files.folder import SafeFolder

#: The days since 1970 of 0001-01-02 and 9999-12-30: time zones shift by up to a day.
_FIRST_DAY: Final = -719_161
_LAST_DAY: Final = 2_932_895
_LARGE: Final = "DECIMAL(38, 0)"  # Parquet has no integers of 128 bits
_WORD: Final = re.compile(r"\w+")
_COMMENTS: Final = re.compile(r"\bcomment\b|\bduckdb_(columns|views|tables)\b", re.IGNORECASE)
_CONFIG: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # a table's name never means a variable of the caller
}


def ask(run: Run, query: str, progress: Progress | None = None) -> pl.DataFrame:
    """Return the rows of a query over the tables of a run.

    Tables that the query names are made first. Records that the run's store lacks are added to it: the next
    query answers at once. Those of a small run are written into a temporary folder.

    Args:
        run: The run.
        query: One SELECT.
        progress: Called with the number of log files read so far and the number of files to read.

    Raises:
        InstrumentError: The query is wrong, or DuckDB is not installed.
    """
    duckdb = _duckdb()
    statement = _select(duckdb, query)
    named = _named(query)
    with tempfile.TemporaryDirectory() as scratch:
        tables = SafeFolder(Path(scratch), ("tables",))
        records = _written(run, tables, named, progress)
        return _answer(duckdb, tables.path, records, statement, Path(scratch, "result.parquet"))


def asks_records_alone(query: str) -> bool:
    """Return whether a query names no table but those that are made of records alone."""
    return set(_named(query)) == {SPANS}


def _named(query: str) -> list[str]:
    """Return the tables that a query may name."""
    words = set(_WORD.findall(query.lower()))  # `steps_sec` is not the table `steps`
    return [*filter(words.__contains__, TABLES), *(SPANS for name in VIEWS if name in words)]


def _written(
    run: Run, target: SafeFolder, tables: Collection[str], progress: Progress | None
) -> list[RecordFile]:
    """Write tables of a run into a temporary folder; return where its records are, if they are needed."""
    with writing(target.path):
        target.make()
        for name in MADE:
            if name in tables:
                save_parquet(target, f"{name}.parquet", make_table(run, name))
        return record_files(run, target / RECORDS, progress) if SPANS in tables else []


def _answer(
    duckdb: Any, tables: Path, records: Sequence[RecordFile], statement: str, result: Path
) -> pl.DataFrame:
    """Return the rows of a statement, by way of a Parquet file: this needs no pyarrow."""
    try:
        with duckdb.connect(config=_CONFIG) as connection:
            make_views(connection, tables, records)
            if _COMMENTS.search(statement):
                add_comments(connection)  # a tenth of a second
            _lock(connection, tables, [result, *(file.path for file in records)])
            rows = f"FROM (\n{statement}\n)"
            columns = connection.execute(f"DESCRIBE {rows}").fetchall()
            chosen = ", ".join(_plain(position, *column[:2]) for position, column in enumerate(columns, 1))
            connection.execute(f"COPY (SELECT {chosen} {rows}) TO {quoted(result)} (FORMAT parquet)")
    except duckdb.Error as error:
        raise InstrumentError(_message(error)) from None
    return _with_plain_integers(pl.read_parquet(result, glob=False))


def _with_plain_integers(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the integers of `_plain` as 64 bits, but for columns in which one needs more."""
    wide = [name for name, kind in rows.schema.items() if isinstance(kind, pl.Decimal)]
    narrow = rows.select(pl.col(wide).cast(pl.Int64, strict=False))
    fitting = [name for name in wide if narrow[name].null_count() == rows[name].null_count()]
    return rows.with_columns(narrow.select(fitting))


def without_odd_times(rows: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return rows with null in place of dates that Python cannot hold, and how many there were by column."""
    left_out = {}
    for name, kind in rows.schema.items():
        if kind == pl.Date:
            per_day = 1
        elif isinstance(kind, pl.Datetime):
            per_day = 86_400 * {"ms": 10**3, "us": 10**6, "ns": 10**9}[kind.time_unit]
        else:
            continue
        number = rows[name].to_physical().cast(pl.Int64)
        odd = ~number.is_between(_FIRST_DAY * per_day, _LAST_DAY * per_day).fill_null(True)
        if odd.any():
            left_out[name] = odd.sum()
            rows = rows.with_columns(rows[name].set(odd, None))
    return rows, left_out


def _lock(connection: Any, tables: Path, others: Sequence[Path]) -> None:
    """Allow a folder and some other files, but no further file and no network, from here on."""
    # DuckDB checks the pattern of a view, too, as if it were a path.
    allowed = f"{quoted(tables.absolute())}, {pattern(tables)}"
    connection.execute(f"SET allowed_directories = [{allowed}]")
    paths = [name for path in others for name in (quoted(path), pattern(path))]
    connection.execute(f"SET allowed_paths = [{', '.join(paths)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError as missing:
        raise InstrumentError(f"SQL needs {missing.name}: {install_extra('sql')}") from missing
    return duckdb


def _select(duckdb: Any, query: str) -> str:
    """Return the one SELECT of a query, without what follows it."""
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise InstrumentError(_message(error)) from None
    if len(statements) != 1:
        raise InstrumentError(f"one query at a time, got {len(statements)} statements")
    if statements[0].type != duckdb.StatementType.SELECT:
        kind = statements[0].type.name
        raise InstrumentError(f"only SELECT, WITH, DESCRIBE and SUMMARIZE, not {kind}")
    text: str = statements[0].query
    return text.strip().rstrip(";")


def _plain(position: int, name: str, kind: str) -> str:
    """Return a column of the result as a type that all readers have: intervals seconds, decimals floats.

    Sums of integers become decimals without a fraction, which alone stay decimals: `_with_plain_integers`.
    """
    name = '"' + name.replace('"', '""') + '"'
    if kind == "INTERVAL":
        return f"epoch(#{position}) AS {name}"
    cast = _LARGE if kind == "HUGEINT" else "DOUBLE" if kind.startswith("DECIMAL") else None
    return f"#{position} AS {name}" if cast is None else f"CAST(#{position} AS {cast}) AS {name}"


def _message(error: Exception) -> str:
    """Return DuckDB's message in one line, without its drawing of the place; and which tables exist."""
    message = " ".join(str(error).partition("\n\nLINE ")[0].split())
    message = message.partition(" Candidate functions:")[0]
    if "Table with name" in message:
        return f"{message} (the tables are {', '.join([*TABLES, *VIEWS])})"
    if "column" in message:
        return f"{message} (`describe TABLE` lists the columns of a table)"
    return message
