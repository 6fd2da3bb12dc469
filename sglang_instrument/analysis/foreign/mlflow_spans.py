"""Read the spans that MLflow keeps in files: a SQLite database, or a folder of `traces.json`."""

import json
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import polars as pl

from sglang_instrument.analysis.foreign.stores.engine_call_texts import EngineCall, EngineCallTexts
from sglang_instrument.analysis.reading.records.decoding import fitting, loaded
from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import demand_regular, read_regular

_MOST_BYTES: Final = 2**28  # of one traces.json, which has one sample
_MOST_LENIENT_BYTES: Final = 2**20  # of one that is decoded by json
_MOST_CONTENT_BYTES: Final = 2**26  # of a span, or of the spans in memory at once
_ROW_BYTES: Final = 8  # a span has more
_TAG_BYTES: Final = 4096
_DATABASE: Final = b"SQLite format 3\0"
_TRACES: Final = "traces.json"
_TAGS: Final = ("step", "sample_index", "rollout_n", "validate")
_ROWS: Final = 500  # in memory at once: each call of the engine holds its prompt
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
# A virtual table or a view could compute for ever, and a generated column gigabytes.
_TABLES: Final = """
select count(*) from sqlite_master
where type = 'table' and name in ('spans', 'trace_tags') and sql like 'create table%'
"""
_GENERATED: Final = """
select name from pragma_table_xinfo(?) where hidden = 2 and name in (
    'trace_id', 'span_id', 'parent_span_id', 'name', 'status', 'start_time_unix_nano', 'end_time_unix_nano',
    'content', 'request_id', 'key', 'value'
)
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
_IN_JSON: Final = EngineCallTexts(b'\\"')
TAGS: Final[dict[str, Any]] = {"trace": pl.String, "key": pl.String, "value": pl.String}
_Tables = tuple[pl.DataFrame, pl.DataFrame]


class _MlflowAttributes(msgspec.Struct, gc=False):
    inputs: msgspec.Raw = msgspec.field(name="mlflow.spanInputs", default=msgspec.Raw(b"null"))
    outputs: msgspec.Raw = msgspec.field(name="mlflow.spanOutputs", default=msgspec.Raw(b"null"))


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


class _RawFile(msgspec.Struct, gc=False):
    """The same, with spans that may hold a wrong value."""

    spans: list[msgspec.Raw]


_FILE: Final = msgspec.json.Decoder(_MlflowFile)
_RAW_FILE: Final = msgspec.json.Decoder(_RawFile)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
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
            _demand_stored(connection)
            connection.text_factory = bytes
            size = _limited(connection, path)
            for tags in _portions(connection.execute(_SELECT_TAGS), size):
                yield pl.DataFrame(schema=SPANS), _tags(tags)
            for spans in _portions(connection.execute(_SPANS), size):
                yield _spans(spans), pl.DataFrame(schema=TAGS)
    except sqlite3.Error as error:
        raise LogError(f"not a readable database of MLflow: {error}") from None


def _demand_stored(connection: sqlite3.Connection) -> None:
    """Raise if a column that is read is computed, and not stored: a few bytes would stand for gigabytes."""
    for table in ("spans", "trace_tags"):
        for (name,) in connection.execute(_GENERATED, (table,)):
            raise LogError(f"its column {table}.{name} is computed, which MLflow's is not")


def _limited(connection: sqlite3.Connection, path: Path) -> int:
    """Let no value be longer than the file, where Python can, and return how many bytes that has."""
    log = path.with_name(f"{path.name}-wal")  # what was not yet moved into the file itself
    size = path.stat().st_size + (log.stat().st_size if log.is_file() else 0)
    if sys.version_info >= (3, 11):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(size, 2**30))
    return size


def _portions(cursor: sqlite3.Cursor, size: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows, some at a time.

    Args:
        cursor: Yields the rows.
        size: Bytes of the file. Its pages may refer to one another so that few bytes are many rows.

    Raises:
        LogError: The rows have more bytes than the file.
    """
    rows: list[tuple[Any, ...]] = []
    read_bytes = portion_bytes = 0
    for row in cursor:
        row_bytes = _ROW_BYTES + sum(len(value) for value in row if isinstance(value, bytes))
        read_bytes += row_bytes
        if read_bytes > size:
            raise LogError(f"its rows have more than the {size:,} bytes of the file")
        if rows and (len(rows) == _ROWS or portion_bytes + row_bytes > _MOST_CONTENT_BYTES):
            yield rows
            rows, portion_bytes = [], 0
        rows.append(row)
        portion_bytes += row_bytes
    if rows:
        yield rows


def _spans(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    columns = list(zip(*rows, strict=True))
    calls = list(map(_IN_JSON.call_of, columns.pop()))
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
            *_IN_JSON.call_of(_text(span) if span.name.endswith(".generate") else None),
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
    return b"%b %b" % (bytes(span.attributes.inputs), bytes(span.attributes.outputs))


def _spans_of(raw: bytes) -> list[_MlflowSpan]:
    try:
        return _FILE.decode(raw).spans
    except _INVALID:
        spans = [_fields_of(span) for span in _RAW_FILE.decode(_valid(raw)).spans]
        needed = {"span_id", "name", "start_time_unix_nano"}
        return [_MlflowSpan(**fields) for fields in spans if needed <= fields.keys()]


def _valid(raw: bytes) -> bytes:
    """Return JSON without NaN, which Python writes and JSON has not; of a large file, as it is."""
    if len(raw) > _MOST_LENIENT_BYTES:  # each list of two bytes becomes an object
        return raw
    return json.dumps(json.loads(raw, parse_constant=lambda _: None)).encode()


def _fields_of(span: msgspec.Raw) -> dict[str, Any]:
    """Return those fields of a span that have the right type."""
    try:
        fields = _FIELDS.decode(span)
    except _INVALID:
        return {}
    valid = {}
    for field in msgspec.structs.fields(_MlflowSpan):
        if field.encode_name in fields:
            try:
                valid[field.name] = msgspec.json.decode(fields[field.encode_name], type=field.type)
            except _INVALID:
                text = bytes(fields[field.encode_name])[:_MOST_LENIENT_BYTES]
                valid |= fitting(_MlflowSpan, {field.encode_name: loaded(text)}) if text[:1] == b'"' else {}
    return valid


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
