"""Read the spans that MLflow keeps in files: a SQLite database, or a folder of `traces.json`."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from sglang_instrument.analysis.foreign.json_lines import fitting
from sglang_instrument.analysis.foreign.rows import is_whole, printable
from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import demand_regular, read_regular

_MOST_BYTES: Final = 2**30  # of one traces.json
_TAG_BYTES: Final = 4096
_DATABASE: Final = b"SQLite format 3\0"
TRACES: Final = "traces.json"
TAGS: Final = ("step", "sample_index", "rollout_n", "validate")
# Only calls of the engine have values that we use, and prompts are long.
_SPANS: Final = """
select trace_id, span_id, parent_span_id, name, status, start_time_unix_nano, end_time_unix_nano,
       case when name like '%.generate' then content end
from spans order by trace_id, start_time_unix_nano, end_time_unix_nano desc
"""
_TAGS: Final = """
select request_id, key, value from trace_tags where key in ('step', 'sample_index', 'rollout_n', 'validate')
"""
_INVALID: Final = (ValueError, TypeError, msgspec.MsgspecError, RecursionError)


class Attributes(msgspec.Struct, gc=False):
    """What the traced function got and returned, each as JSON in a string."""

    inputs: Any = msgspec.field(name="mlflow.spanInputs", default=None)
    outputs: Any = msgspec.field(name="mlflow.spanOutputs", default=None)


class _Status(msgspec.Struct, gc=False):
    code: str | None = None


class Span(msgspec.Struct, gc=False):
    """A span; times are Unix nanoseconds."""

    span_id: str
    name: str
    start_time_unix_nano: int
    end_time_unix_nano: int | None = None
    parent_span_id: str | None = None
    status: _Status = msgspec.field(default_factory=_Status)
    attributes: Attributes = msgspec.field(default_factory=Attributes)

    @property
    def failed(self) -> bool:
        """Whether the traced function raised."""
        return self.status.code in ("STATUS_CODE_ERROR", "ERROR")


class _Content(msgspec.Struct, gc=False):
    """A span as the database keeps it."""

    attributes: Attributes = msgspec.field(default_factory=Attributes)


class _File(msgspec.Struct, gc=False):
    spans: list[Span]


_CONTENT: Final = msgspec.json.Decoder(_Content)
_FILE: Final = msgspec.json.Decoder(_File)


@dataclass
class Trace:
    """The spans of one trace, in the order of their starts, and verl's tags."""

    name: str
    spans: list[Span]
    tags: dict[str, str]


def is_spans(path: Path, head: bytes) -> bool:
    """Return whether a file holds MLflow's spans."""
    if head.startswith(_DATABASE):
        return _has_tables(path)
    return (
        path.name == TRACES and path.parent.name == "artifacts" and head[:40].lstrip().startswith(b'{"spans"')
    )


def read_traces(path: Path) -> Iterator[Trace]:
    """Yield the traces of a file.

    Raises:
        OSError: It cannot be read.
        LogError: It is damaged.
    """
    if path.name == TRACES:
        yield _read_file(path)
        return
    try:
        with closing(_connect(path)) as connection:
            yield from _read_database(connection)
    except sqlite3.Error as error:
        raise LogError(f"not a readable database of MLflow: {error}") from None


def _read_file(path: Path) -> Trace:
    try:
        raw = read_regular(path, _MOST_BYTES)
        spans = _spans_of(raw)
    except _INVALID as error:
        raise LogError(f"not whole: {error}") from None
    spans.sort(key=lambda span: (span.start_time_unix_nano, -(span.end_time_unix_nano or 0)))
    home = path.parents[1]
    tags = {name: value for name in TAGS if (value := _tag(home / "tags" / name)) is not None}
    return Trace(home.name, spans, tags)


def _spans_of(raw: bytes) -> list[Span]:
    try:
        return _FILE.decode(raw).spans
    except _INVALID:
        listed = json.loads(raw)["spans"]
        spans = [fitting(Span, one) for one in listed if isinstance(one, dict)]
        needed = ("span_id", "name", "start_time_unix_nano")
        return [Span(**one) for one in spans if all(name in one for name in needed)]


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
            query = (
                "select count(*) from sqlite_master where type = 'table' and name in ('spans', 'trace_tags')"
            )
            return bool(connection.execute(query).fetchone()[0] == 2)
    except (OSError, sqlite3.Error):
        return False


def _read_database(connection: sqlite3.Connection) -> Iterator[Trace]:
    tags: dict[str, dict[str, str]] = {}
    for trace, key, value in connection.execute(_TAGS):
        if isinstance(value, str):
            tags.setdefault(str(trace), {})[str(key)] = value
    current: Trace | None = None
    for trace, *row in connection.execute(_SPANS):
        if current is None or current.name != trace:
            if current is not None:
                yield current
            current = Trace(trace, [], tags.get(trace, {}))
        span = _span(row)
        if span is not None:
            current.spans.append(span)
    if current is not None:
        yield current


def _span(row: list[Any]) -> Span | None:
    span_id, parent, name, status, start, end, content = row
    if not is_whole(start) or type(name) is not str or type(span_id) is not str:
        return None
    attributes = Attributes()
    if type(content) is str:
        try:
            attributes = _CONTENT.decode(content).attributes
        except _INVALID:
            pass
    code = status if type(status) is str else None
    return Span(
        span_id, printable(name), start, end if is_whole(end) else None, parent, _Status(code), attributes
    )


def digits(text: str | None) -> int | None:
    """Return the number in a tag."""
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,9}", text.strip()) else None
