"""Decode fields of `extra`: the ones that are asked for, of the lines whose fields are of use.

An answer names the fields that it needs in a subclass of `Fields`; it gets each record as a `Line` and an
instance of that class. Nothing else decodes lines of our log.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from sglang_instrument.analysis.reading.records.decoding import fitting, loaded
from sglang_instrument.analysis.reading.records.lines import Integer, Line, Rejects, Seconds, decode
from sglang_instrument.analysis.reading.records.unfit import NotFinite, UnfitFields
from sglang_instrument.schema import LOG_OPENED

_INVALID: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Fields(Struct, gc=False, omit_defaults=True):
    """Fields of `extra`, with their types. Subclasses name them; each has a default: it may be missing."""


_Kind = TypeVar("_Kind", bound=Fields)


class RequestIds(Fields, gc=False, omit_defaults=True):
    """Which request and turn a record is about."""

    request_id: str | Integer | None = None
    turn: Integer | None = None


class ColumnFields(Fields, gc=False, omit_defaults=True):
    """The fields that have a column in the table of records."""

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
    # the agent that works, and the request that its request is for
    agent: Any = None
    parent_request: Any = None


class SampleFields(Fields, gc=False, omit_defaults=True):
    """The fields of samples that were taken for training or thrown away."""

    samples: Any = None
    groups: Any = None
    group: Any = None
    group_index: Any = None
    weight_version: Any = None
    max_staleness: Any = None
    reason: Any = None
    tokens: Any = None
    count: Any = None
    is_kept: Any = msgspec.field(name="kept", default=None)


class ControlFields(Fields, gc=False, omit_defaults=True):
    """The fields of control records, and of a blocked event loop."""

    log_version: Integer | None = None
    run_id: str | None = None
    launch: Any = None
    launcher: Any = None
    rank: Any = None
    step_bound: bool | None = None
    pid: Integer | None = None
    host: str | None = None
    wall_ns: Integer | None = None
    perf_ns: Integer | None = None
    written: Integer | None = None
    dropped: Integer | None = None
    sampled_out: Integer | None = None
    # of open_spans, and of open_now: there `open` and `requests` are counts by event
    spans: list[Any] | None = None
    open: Any = None
    requests: Any = None
    phases: Any = None
    oldest: Any = None
    uncounted: Any = None
    # of a blocked event loop, and of one that is still blocked
    samples: Any = None
    stack: list[Any] | None = None
    place: str | None = None
    in_span: str | None = None
    age_sec: Seconds | None = None
    cpu_sec: Seconds | None = None
    thread_cpu_sec: Seconds | None = None
    request_id: str | Integer | None = None
    turn: Integer | None = None
    tool: str | None = None


class OpenSpan(Struct, gc=False):
    """The fields of an open span in an `open_spans` record that the analysis uses."""

    event: str
    age_sec: Annotated[float, Meta(ge=0, lt=2**62)]
    request_id: str | Integer | None = None
    turn: Integer | None = None
    tool: str | None = None
    place: str | None = None
    stack: list[str] | None = None


def all_typed(
    extras: Sequence[msgspec.Raw], kind: type[_Kind], unfit: UnfitFields | None = None
) -> list[_Kind]:
    """Return the fields of each `extra`. A field that is missing, or of another type, has its default.

    Args:
        extras: The `extra` of lines.
        kind: The fields.
        unfit: Where values of another type are counted.
    """
    try:
        decoded = _decoder(kind).decode_lines(b"\n".join(extras))
    except _INVALID:
        return [typed(extra, kind, unfit) for extra in extras]
    return [kind() if fields is None else fields for fields in decoded] if None in decoded else decoded


def typed(extra: msgspec.Raw, kind: type[_Kind], unfit: UnfitFields | None = None) -> _Kind:
    """Return the fields of one `extra`, as `all_typed` does."""
    try:
        decoded: _Kind | None = _decoder(kind).decode(extra)
    except _INVALID:
        fields = loaded(bytes(extra), NotFinite)
        return kind(**fitting(kind, fields, unfit)) if isinstance(fields, dict) else kind()
    return kind() if decoded is None else decoded


def records_in(
    chunks: Iterable[bytes],
    kind: type[_Kind],
    events: Collection[str] = (),
    run_id: str | None = None,
    unfit: UnfitFields | None = None,
) -> Iterator[tuple[str | None, Line, _Kind]]:
    """Yield the records of a log file: the run that wrote each, its line, and its fields.

    Headers are left out, and lines that are no records: these were counted when the run was opened.

    Args:
        chunks: Whole lines of the file, in their order.
        kind: The fields.
        events: Only records of these events; () stands for all.
        run_id: The run that wrote the lines before the first header.
        unfit: Where fields of another type are counted.
    """
    for chunk in chunks:
        lines: Sequence[Line] = decode(chunk, Rejects())
        if events:
            lines = [line for line in lines if line.event in events or line.event == LOG_OPENED]
        for line, fields in zip(lines, all_typed([line.extra for line in lines], kind, unfit), strict=True):
            if line.event == LOG_OPENED:
                run_id = typed(line.extra, ControlFields).run_id
            else:
                yield run_id, line, fields


@cache
def _decoder(kind: type[_Kind]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind | None)


def is_object(extra: msgspec.Raw) -> bool:
    """Return whether it holds fields at all."""
    return bytes(extra).startswith(b"{")


_REWARD: Final = b'"reward"'


class _RewardFields(Fields, gc=False, omit_defaults=True):
    reward: float | None = None


def where_rewards(extras: Sequence[msgspec.Raw]) -> list[int]:
    """Return the numbers of those `extra` that hold a reward."""
    if _REWARD not in b"\n".join(extras):
        return []
    marked = [number for number, extra in enumerate(extras) if _REWARD in bytes(extra)]
    fields = all_typed([extras[number] for number in marked], _RewardFields)
    return [number for number, has in zip(marked, fields, strict=True) if has.reward is not None]


def drop_invalid_spans(fields: ControlFields, rejects: Rejects) -> None:
    """Remove from a report of open spans the entries that no watchdog wrote."""
    spans = fields.spans or []
    valid_spans = [span for span in spans if _fits(span, OpenSpan)]
    if len(valid_spans) < len(spans):
        rejects.foreign += 1
    fields.spans = valid_spans


def _fits(value: Any, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return False
    return True
