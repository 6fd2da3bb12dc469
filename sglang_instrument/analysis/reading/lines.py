"""Decode the lines of a log, ours or the reference's, complete or torn, into typed Structs."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from sglang_instrument.analysis.reading.decoding import decode_lines, fitting

# Columns hold 64 bits; a line with a larger number is decoded leniently and loses only that field.
Integer = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Seconds = Annotated[float, Meta(ge=0)]


class Extra(Struct, gc=False, omit_defaults=True):
    """The fields of `extra` that columns and control records use; the decoder skips all others."""

    request_id: str | Integer | None = None
    turn: Integer | None = None
    turns: Integer | None = None
    finish_reason: str | None = None
    response_length: Integer | None = None
    # An integer in a request, a list in `step_response_length_stats`.
    actual_response_tokens: Integer | list[Any] | None = None
    generated_tokens: Integer | None = None
    completion_tokens: Integer | None = None
    reward: float | None = None
    tool: str | None = None
    # the weights that made a reply, a number or a label, and the prompt's group
    weight_version: Any = None
    first_weight_version: Any = None
    group: Any = None
    group_index: Any = None
    sample: Any = None
    resumed_tokens: Any = None
    spec_verify_ct: Any = None
    # of samples that were taken for training or thrown away; other events have fields of these names, too
    samples: Any = None
    groups: Any = None
    max_staleness: Any = None
    reason: Any = None
    tokens: Any = None
    count: Any = None
    kept: Any = None
    # of the engine: its name of a call, or of those in a batch
    rid: Any = None
    rids: Any = None
    # of control records
    log_version: Integer | None = None
    run_id: str | None = None
    launch: Any = None
    launcher: Any = None
    rank: Any = None
    step_bound: bool | None = None
    pid: Integer | None = None
    written: Integer | None = None
    dropped: Integer | None = None
    sampled_out: Integer | None = None
    spans: list[Any] | None = None
    open: Any = None  # of open_now: counts by event
    requests: Any = None
    phases: Any = None
    oldest: Any = None
    uncounted: Any = None
    host: str | None = None
    wall_ns: Integer | None = None
    perf_ns: Integer | None = None
    # of a blocked event loop
    stack: list[Any] | None = None
    place: str | None = None
    in_span: str | None = None
    age_sec: Seconds | None = None  # while it lasts


class OpenSpan(Struct, gc=False):
    """The fields of an open span in an `open_spans` record that the analysis uses."""

    event: str
    age_sec: Annotated[float, Meta(ge=0, lt=2**62)]
    request_id: str | Integer | None = None
    turn: Integer | None = None
    tool: str | None = None
    place: str | None = None
    stack: list[str] | None = None


class Line(Struct, gc=False):
    """One record of a file."""

    timestamp: str
    event: str
    duration_sec: Seconds | None = None
    extra: Extra | None = None
    workid: Integer | None = None
    step: Integer | None = None
    start_us: Integer | None = None
    task: Integer | None = None
    spawned_by: Integer | None = None
    active_sec: Seconds | None = None
    device_sec: Seconds | None = None
    error: str | None = None
    validate: bool | None = None
    phase: str | None = None


@dataclass
class Rejects:
    """Counts of lines that are no records: torn ones begin like one and end early, foreign ones do not."""

    torn: int = 0
    foreign: int = 0


_ONE: Final = msgspec.json.Decoder(Line)


def decode(chunk: bytes, rejects: Rejects) -> list[Line]:
    """Decode complete lines; count those that are not records in `rejects`."""
    return decode_lines(_ONE, chunk, lambda raw: _decode_leniently(raw, rejects))


def decode_one(raw: bytes, rejects: Rejects) -> Line | None:
    """Decode one line; None, and counted in `rejects`, if it is no record."""
    try:
        return _ONE.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(raw, rejects)


def _decode_leniently(raw: bytes, rejects: Rejects) -> Line | None:
    """Decode a record of which a field has an unexpected type, as a user's own field may have."""
    try:
        # json.loads, not msgspec: the reference writes NaN and lone surrogates, which are not valid JSON.
        fields = json.loads(raw.decode("utf-8", "replace"), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        if raw.lstrip().startswith(b'{"'):
            rejects.torn += 1
        else:
            rejects.foreign += 1
        return None
    if not _is_record(fields):
        rejects.foreign += 1
        return None
    extra = fields.pop("extra", None)
    line = Line(**fitting(Line, fields))
    if isinstance(extra, dict):
        line.extra = Extra(**fitting(Extra, extra))
    return line


def _is_record(fields: Any) -> bool:
    return isinstance(fields, dict) and all(
        isinstance(fields.get(key), str) for key in ("event", "timestamp")
    )


def drop_invalid_spans(extra: Extra, rejects: Rejects) -> None:
    """Remove from a report of open spans the entries that no watchdog wrote."""
    spans = extra.spans or []
    kept = [span for span in spans if _fits(span, OpenSpan)]
    if len(kept) < len(spans):
        rejects.foreign += 1
    extra.spans = kept


def _fits(value: Any, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return False
    return True
