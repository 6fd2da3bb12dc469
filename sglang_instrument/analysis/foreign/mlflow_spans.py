"""Read the spans that MLflow keeps in files: a SQLite database, or a folder of `traces.json`."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import polars as pl

from sglang_instrument.analysis.foreign.stores.engine_call_texts import EngineCall, EngineCallTexts
from sglang_instrument.analysis.reading.records.decoding import fitting
from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import demand_regular, read_regular

_MOST_BYTES: Final = 2**30  # of one traces.json
_TAG_BYTES: Final = 4096
_DATABASE: Final = b"SQLite format 3\0"
_TRACES: Final = "traces.json"
_TAGS: Final = ("step", "sample_index", "rollout_n", "validate")
_ROWS: Final = 500  # taken from a database at once: each call of the engine holds its prompt
# Only calls of the engine have values that we use. SQLite lets any column hold any type.
_SPANS: Final = """
select cast(trace_id as blob), cast(span_id as blob), cast(parent_span_id as blob), cast(name as blob),
       cast(status as blob),
       case when typeof(start_time_unix_nano) = 'integer' then start_time_unix_nano end,
       case when typeof(end_time_unix_nano) = 'integer' then end_time_unix_nano end,
       case when name like '%.generate' then cast(content as blob) end
from spans
"""
_SELECT_TAGS: Final = """
select cast(request_id as blob), cast(key as blob), cast(value as blob) from trace_tags
where key in ('step', 'sample_index', 'rollout_n', 'validate')
"""
_TABLES: Final = """
select count(*) from sqlite_master where type = 'table' and name in ('spans', 'trace_tags')
"""
#: Columns of spans. Times are Unix nanoseconds; the last columns are those of `EngineCall`.
SPANS: Final[dict[str, Any]] = {
    "trace": pl.String,
    "span_id": pl.String,
    "parent": pl.String,
    "name": pl.String,
    "status": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "response_tokens": pl.Int64,
    "prompt_tokens": pl.Int64,
    "preempted": pl.Int64,
    "weight_version": pl.String,
    "sample": pl.String,
}
_OF_CALL: Final = len(EngineCall._fields)
_IN_DATABASE: Final = EngineCallTexts(b'\\"')
_IN_FILE: Final = EngineCallTexts(b'"')
TAGS: Final[dict[str, Any]] = {"trace": pl.String, "key": pl.String, "value": pl.String}
_Tables = tuple[pl.DataFrame, pl.DataFrame]


class _MlflowAttributes(msgspec.Struct, gc=False):
    inputs: Any = msgspec.field(name="mlflow.spanInputs", default=None)
    outputs: Any = msgspec.field(name="mlflow.spanOutputs", default=None)


class _Status(msgspec.Struct, gc=False):
    code: str | None = None


class _MlflowSpan(msgspec.Struct, gc=False):
    """A span in traces.json."""

    span_id: str
    name: str
    start_time_unix_nano: int
    end_time_unix_nano: int | None = None
    parent_span_id: str | None = None
    status: _Status = msgspec.field(default_factory=_Status)
    attributes: _MlflowAttributes = msgspec.field(default_factory=_MlflowAttributes)


class _MlflowFile(msgspec.Struct, gc=False):
    spans: list[_MlflowSpan]


_FILE: Final = msgspec.json.Decoder(_MlflowFile)
_INVALID: Final = (ValueError, TypeError, KeyError, msgspec.MsgspecError, RecursionError)


def is_spans(path: Path, head: bytes) -> bool:
    """Return whether a file holds MLflow's spans."""
    if head.startswith(_DATABASE):
        return _has_tables(path)
    return (
        path.name == _TRACES
        and path.parent.name == "artifacts"
        and head[:40].lstrip().startswith(b'{"spans"')
    )


def read_spans(path: Path) -> Iterator[_Tables]:
    """Yield spans and tags of a file, a part at a time, with the columns of `SPANS` and `TAGS`.

    Raises:
        OSError: It cannot be read.
        LogError: It is damaged.
    """
    if path.name == _TRACES:
        yield _of_file(path)
        return
    try:
        with closing(_connect(path)) as connection:
            connection.text_factory = bytes
            yield pl.DataFrame(schema=SPANS), _tags(connection.execute(_SELECT_TAGS).fetchall())
            cursor = connection.execute(_SPANS)
            while rows := cursor.fetchmany(_ROWS):
                yield _spans(rows), pl.DataFrame(schema=TAGS)
    except sqlite3.Error as error:
        raise LogError(f"not a readable database of MLflow: {error}") from None


def _spans(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    columns = list(zip(*rows, strict=True))
    calls = list(map(_IN_DATABASE.call_of, columns.pop()))
    names = list(SPANS)
    of_spans = [_column(name, values) for name, values in zip(names, columns, strict=False)]
    of_calls = zip(names[-_OF_CALL:], zip(*calls, strict=True), strict=True)
    return pl.DataFrame([*of_spans, *(pl.Series(name, values, SPANS[name]) for name, values in of_calls)])


def _column(name: str, values: Sequence[Any]) -> pl.Series:
    """Return a column of a database; bytes that are not UTF-8 are replaced."""
    if SPANS.get(name, pl.String) != pl.String:
        return pl.Series(name, values, SPANS[name])
    column = pl.Series(name, values, pl.Binary)
    try:
        text: pl.Series = column.cast(pl.String)
    except pl.exceptions.PolarsError:
        decoded = [None if value is None else value.decode("utf-8", "replace") for value in values]
        text = pl.Series(name, decoded, pl.String)
    return text


def _tags(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    columns = zip(*rows, strict=True) if rows else ([] for _ in TAGS)
    return pl.DataFrame([_column(name, values) for name, values in zip(TAGS, columns, strict=True)])


def _of_file(path: Path) -> _Tables:
    try:
        spans = _spans_of(read_regular(path, _MOST_BYTES))
    except _INVALID as error:
        raise LogError(f"not whole: {error}") from None
    home = path.parents[1]
    rows = [
        (
            home.name,
            span.span_id,
            span.parent_span_id,
            span.name,
            span.status.code,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            *_IN_FILE.call_of(_text(span) if span.name.endswith(".generate") else None),
        )
        for span in spans
        if abs(span.start_time_unix_nano) < 2**62 and abs(span.end_time_unix_nano or 0) < 2**62
    ]
    tags = [(home.name, name, value) for name in _TAGS if (value := _tag(home / "tags" / name)) is not None]
    return (
        pl.DataFrame(rows, schema=SPANS, orient="row"),
        pl.DataFrame(tags, schema=TAGS, orient="row"),
    )


def _text(span: _MlflowSpan) -> bytes:
    return f"{span.attributes.inputs} {span.attributes.outputs}".encode("utf-8", "replace")


def _spans_of(raw: bytes) -> list[_MlflowSpan]:
    try:
        return _FILE.decode(raw).spans
    except _INVALID:
        listed = json.loads(raw)["spans"]
        spans = [fitting(_MlflowSpan, fields) for fields in listed if isinstance(fields, dict)]
        needed = {"span_id", "name", "start_time_unix_nano"}
        return [_MlflowSpan(**fields) for fields in spans if needed <= fields.keys()]


def _tag(path: Path) -> str | None:
    try:
        return read_regular(path, _TAG_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def _connect(path: Path) -> sqlite3.Connection:
    demand_regular(path)
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
    connection.execute("pragma trusted_schema = off")
    return connection


def _has_tables(path: Path) -> bool:
    """Return whether a database has the tables, as tables: a view could compute for ever."""
    try:
        with closing(_connect(path)) as connection:
            return bool(connection.execute(_TABLES).fetchone()[0] == 2)
    except (OSError, sqlite3.Error):
        return False
