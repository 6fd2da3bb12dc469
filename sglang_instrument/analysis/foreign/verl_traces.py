"""Read the rollout traces that verl writes with MLflow: `actor_rollout_ref.rollout.trace.backend=mlflow`.

`verl/utils/rollout_trace.py` makes a trace of each sample: a span of the agent loop, of each call of the
engine and of each tool. The tags of a trace have the step.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.foreign.mlflow_spans import (
    Attributes,
    Span,
    Trace,
    digits,
    is_spans,
    read_traces,
)
from sglang_instrument.analysis.foreign.rows import ForeignLog, printable, to_rows
from sglang_instrument.analysis.reading.lines import Integer
from sglang_instrument.errors import LogError

NAME: Final = "verl's rollout traces in MLflow"
FILES: Final = "mlruns.db, or mlruns/.../traces.json"
_CANNOT_SHOW: Final = [
    "which worker had a request: all are shown on worker 0",
    "why replies ended, rewards' values, and what the trainer does",
    "samples beyond trace.max_samples_per_step_per_worker",
]
_OPEN: Final = "{count:,} spans that did not end"
_REQUEST: Final = "async_rollout_request_complete"
_CALL: Final = "turn_engine_call"
#: Our event and its phase for each method of verl's, by the end of its name; others keep their names.
_METHODS: Final = {
    "generate": (_CALL, "generate"),
    "execute": ("tool_call", "tool"),
    "extract_tool_calls": ("turn_tool_parsing", "postprocess"),
    "calc_reward": ("reward_calculation", "reward"),
    "run": ("main_loop", "loop"),
}
_COLUMNS: Final[dict[str, Any]] = {
    "event": pl.String,
    "phase": pl.String,
    "step": pl.Int64,
    "validate": pl.Boolean,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "task": pl.Int64,
    "request_id": pl.String,
    "turn": pl.Int64,
    "tool": pl.String,
    "error": pl.String,
    "response_tokens": pl.Int64,
    "prompt_tokens": pl.Int64,
    "preempted": pl.Int64,
    "turns": pl.Int64,
    "group": pl.String,
    "sample": pl.String,
    "weight_version": pl.String,
}
_BUFFERED: Final = 100_000  # rows that are turned into columns at once
_Row = dict[str, Any]


class _ExtraFields(msgspec.Struct, gc=False):
    global_steps: Integer | None = None


class _Output(msgspec.Struct, gc=False):
    """What the engine returned."""

    token_ids: list[int] | None = None
    num_preempted: Integer | None = None
    extra_fields: _ExtraFields | None = None


class _Input(msgspec.Struct, gc=False):
    """What the engine was given."""

    request_id: str | Integer | None = None
    prompt_ids: list[int] | None = None


_OUTPUT: Final = msgspec.json.Decoder(_Output)
_INPUT: Final = msgspec.json.Decoder(_Input)


def claims(path: Path, head: bytes) -> bool:
    """Return whether a file holds such traces."""
    return is_spans(path, head)


def read(paths: Sequence[Path]) -> ForeignLog:
    """Return a request for each trace, and its spans."""
    log = ForeignLog(pl.DataFrame(), [], list(_CANNOT_SHOW))
    rows: list[_Row] = []
    tables = []
    number = unended = 0
    for path in paths:
        log.files.append(path)
        try:
            for trace in read_traces(path):
                number += 1
                made = list(_rows_of(trace, number))
                unended += sum(span.end_time_unix_nano is None for span in trace.spans)
                rows += made
                if len(rows) > _BUFFERED:
                    tables.append(_table(rows))
                    rows = []
        except (OSError, LogError) as error:
            log.unreadable[path.name] = str(error)
    log.rows = to_rows(pl.concat([*tables, _table(rows)]))
    if unended:
        log.cannot_show.append(_OPEN.format(count=unended))
    return log


def _table(rows: list[_Row]) -> pl.DataFrame:
    return pl.DataFrame(
        [pl.Series(name, [row.get(name) for row in rows], kind) for name, kind in _COLUMNS.items()]
    )


def _rows_of(trace: Trace, number: int) -> Iterator[_Row]:
    """Yield the rows of a trace: the root is the request; without one, what lies around all spans."""
    spans = [span for span in trace.spans if span.end_time_unix_nano is not None]
    if not spans:
        return
    same = _place(trace, number)
    calls: list[_Row] = []
    generates: set[str] = set()
    given: _Input | None = None
    for span in spans:
        method = span.name.rpartition(".")[2]
        event, phase = _METHODS.get(method, (span.name, None))
        if span.parent_span_id is None and event == span.name:
            continue  # the root: below, with what all its spans tell
        row: _Row = {**same, "event": event, "phase": phase, **_times(span, span)}
        if event == _CALL:
            is_inner = span.parent_span_id in generates  # a client that calls the one of its base class
            generates.add(span.span_id)
            given = given or _decoded(_INPUT, span.attributes.inputs)
            row |= {"turn": max(0, len(calls) - is_inner), **_told(span.attributes)}
            if not is_inner:
                calls.append(row)
        elif event == "tool_call":
            row |= {"turn": max(0, len(calls) - 1), "tool": span.name.rpartition(".")[0]}
        if span.failed:
            row["error"] = "error"
        yield row
    yield _request(trace, spans, calls, same, given)


def _place(trace: Trace, number: int) -> _Row:
    """Return what all rows of a trace share."""
    sample, rollout = (printable(trace.tags.get(name, "")) for name in ("sample_index", "rollout_n"))
    return {
        "step": digits(trace.tags.get("step")),
        "validate": trace.tags.get("validate", "").strip() == "True",
        "task": number,
        "request_id": f"{sample}-{rollout}-{trace.name[-8:]}" if sample else trace.name,
        "group": sample or None,
    }


def _times(first: Span, last: Span) -> _Row:
    end = last.end_time_unix_nano
    return {"start_us": first.start_time_unix_nano // 1000, "end_us": None if end is None else end // 1000}


def _told(attributes: Attributes) -> _Row:
    """Return the numbers of a call of the engine."""
    output = _decoded(_OUTPUT, attributes.outputs)
    given = _decoded(_INPUT, attributes.inputs)
    told: _Row = {}
    if output is not None and output.token_ids is not None:
        told["response_tokens"] = len(output.token_ids)
        told["preempted"] = output.num_preempted
        if output.extra_fields is not None and output.extra_fields.global_steps is not None:
            told["weight_version"] = str(output.extra_fields.global_steps)
    if given is not None and given.prompt_ids is not None:
        told["prompt_tokens"] = len(given.prompt_ids)
    return told


def _decoded(decoder: Any, text: Any) -> Any:
    """Return a Struct from JSON in a string; None if it is none, or is of another kind."""
    if type(text) is not str:
        return None
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _request(trace: Trace, spans: list[Span], calls: list[_Row], same: _Row, given: _Input | None) -> _Row:
    """Return the row of the whole request."""
    last = max(spans, key=lambda span: span.end_time_unix_nano or 0)
    tokens = [call.get("response_tokens") for call in calls]
    known = [one for one in tokens if one is not None]
    versions = [call["weight_version"] for call in calls if call.get("weight_version")]
    return {
        **same,
        **_times(spans[0], last),
        "event": _REQUEST,
        "turns": len(calls),
        "response_tokens": sum(known) if known and len(known) == len(tokens) else None,
        "error": "error" if any(span.failed and span.parent_span_id is None for span in spans) else None,
        "sample": None if given is None or given.request_id is None else printable(str(given.request_id)),
        "weight_version": versions[-1] if versions else None,
    }
