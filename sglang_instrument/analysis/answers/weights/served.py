"""Gather what callers and engines logged of each call of an engine: when, where, the label of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.weights.records import WeightFields, as_version, records_of
from sglang_instrument.analysis.reading.records.engine_fields import HEALTH_CHECK, caller_rid
from sglang_instrument.analysis.run.cached_tables import cached_table

if TYPE_CHECKING:
    from sglang_instrument.analysis.reading.folders import Place
    from sglang_instrument.analysis.reading.records.lines import Line
    from sglang_instrument.analysis.run.opening import Run

#: The columns of `served_calls`.
CALLS: Final[dict[str, Any]] = {
    "rid": pl.String,
    "request_id": pl.String,
    "turn": pl.Int64,
    "step": pl.Int64,
    "server": pl.String,
    "scheduler": pl.String,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "admitted_us": pl.Int64,
    "node": pl.Int64,
    "prompt_node": pl.Int64,
    "prompt_us": pl.Int64,
    "first_weight_version": pl.String,
    "weight_version": pl.String,
    "prompt_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "completion_tokens": pl.Int64,
    "finish_reason": pl.String,
    "error": pl.String,
}


@dataclass(slots=True)
class _LoggedCall:
    """One call of an engine, as all processes logged it."""

    rid: str
    request_id: str | None = None
    turn: int | None = None
    step: int | None = None
    server: str | None = None
    scheduler: str | None = None
    start_us: int | None = None
    end_us: int | None = None
    admitted_us: int | None = None
    node: int | None = None
    prompt_node: int | None = None
    prompt_us: int | None = None
    first_weight_version: str | None = None
    weight_version: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None

    @property
    def is_made_up(self) -> bool:
        """Whether its caller logged no `rid`: then another record may be of the same call."""
        return self.rid == _made_up(self.request_id, self.turn)

    def fill(self, name: str, value: Any) -> None:
        """Set a field that no record gave yet."""
        if value is not None and getattr(self, name) is None:
            setattr(self, name, value)


def served_calls(run: Run) -> pl.DataFrame:
    """Return one row per call of an engine, in the order of time.

    Returns:
        rid: the engine's name of the call, or one made of request and turn; request_id, turn, step: of the
        caller; server: the address or replica, or the stem of the server's file; scheduler: the stem of its
        file; start_us, end_us; admitted_us: when the scheduler took it from its queue the first time, and
        `node`, the number of the cache's node at which its cached prefix ended; prompt_node: where its prompt
        ended in the cache, once it was computed, at prompt_us; first_weight_version,
        weight_version: the labels, at the begin and the end, as text; prompt_tokens, cached_tokens,
        completion_tokens; finish_reason; error. Null where nothing was logged.
    """
    return cached_table(run, "served_calls", lambda: _read_calls(run))


def _read_calls(run: Run) -> pl.DataFrame:
    calls: dict[str, _LoggedCall] = {}
    for place, line, fields in records_of(run, _HANDLERS):
        _HANDLERS[line.event](calls, place, line, fields)
    named = {(call.request_id, call.turn, call.step) for call in calls.values() if not call.is_made_up}
    chosen = [
        call
        for call in calls.values()
        if call.start_us is not None
        and not (call.is_made_up and (call.request_id, call.turn, call.step) in named)
    ]
    columns = {name: [getattr(call, name) for call in chosen] for name in CALLS}
    return pl.DataFrame(columns, schema=CALLS, strict=False).sort("start_us", "rid")


def _named(calls: dict[str, _LoggedCall], rid: Any) -> _LoggedCall | None:
    if not isinstance(rid, str) or rid.startswith(HEALTH_CHECK):
        return None
    rid = caller_rid(rid)
    call = calls.get(rid)
    if call is None:
        call = calls[rid] = _LoggedCall(rid)
    return call


def _made_up(request_id: Any, turn: Any) -> str:
    return f"{request_id} turn {turn}"


def _on_call(calls: dict[str, _LoggedCall], place: Place, line: Line, fields: WeightFields) -> None:
    """Take a call as its caller, or the server, logged it."""
    rid = fields.rid
    if rid is None and fields.request_id is not None:
        rid = _made_up(fields.request_id, fields.turn)
    call = _named(calls, rid)
    if call is None or line.duration_sec is None or line.start_us is None:
        return
    call.start_us = min(line.start_us, call.start_us or line.start_us)
    call.end_us = max(line.end_us, call.end_us or 0)
    if fields.request_id is not None:
        call.fill("request_id", str(fields.request_id))
        call.fill("step", place.step if line.step is None else line.step)
    call.fill("turn", _integer(fields.turn))
    at_begin = line.event == "server_generate"  # verl's server reads its version before it calls
    label = as_version(fields.weight_version)
    if label is not None and line.event in _OF_ENGINE:
        call.weight_version = label  # what the engine says of itself, before what its caller says
    call.fill("first_weight_version" if at_begin else "weight_version", label)
    call.fill("first_weight_version", as_version(fields.first_weight_version))
    if call.prompt_tokens is None:
        call.prompt_tokens = _integer(fields.prompt_tokens)
    if call.cached_tokens is None:
        call.cached_tokens = _integer(fields.cached_tokens)
    if call.completion_tokens is None:
        written = _integer(fields.completion_tokens)
        call.completion_tokens = _integer(fields.generated_tokens) if written is None else written
    call.fill("finish_reason", fields.finish_reason)
    call.fill("error", line.error)
    named = fields.server if isinstance(fields.server, str) else None
    call.fill("server", named or (place.stem if place.role == "server" else None))


def _on_receive(calls: dict[str, _LoggedCall], place: Place, line: Line, fields: WeightFields) -> None:
    call = _named(calls, fields.rid)
    if call is not None:
        call.fill("scheduler", place.stem)
        call.fill("prompt_tokens", _integer(fields.prompt_tokens))
        call.fill("start_us", line.start_us)
        call.end_us = max(line.end_us, call.end_us or 0)


def _on_admit(calls: dict[str, _LoggedCall], place: Place, line: Line, fields: WeightFields) -> None:
    for call, node in _with_nodes(calls, fields):
        if call.admitted_us is None:
            call.fill("scheduler", place.stem)
            call.admitted_us, call.node = line.start_us, node


def _on_first_tokens(calls: dict[str, _LoggedCall], place: Place, line: Line, fields: WeightFields) -> None:
    for call, node in _with_nodes(calls, fields):
        call.prompt_node, call.prompt_us = node, line.end_us  # a prompt in pieces ends with the last one


def _with_nodes(
    calls: dict[str, _LoggedCall], fields: WeightFields
) -> Iterator[tuple[_LoggedCall, int | None]]:
    """Yield the calls of a batch, each with its node of the cache."""
    rids, nodes = fields.rids or [], fields.nodes or []
    nodes = nodes if len(nodes) == len(rids) else [None] * len(rids)
    for rid, node in zip(rids, nodes, strict=True):
        call = _named(calls, rid)
        if call is not None:
            yield call, _integer(node)


def _on_end(calls: dict[str, _LoggedCall], place: Place, line: Line, fields: WeightFields) -> None:
    for rid in fields.rids or ():
        call = _named(calls, rid)
        if call is not None:
            call.end_us = max(line.end_us, call.end_us or 0)


def _integer(value: Any) -> int | None:
    return value if type(value) is int and -(2**62) < value < 2**62 else None


_OF_ENGINE: Final = ("engine_request", "engine_stream")
_EVENTS: Final = (
    *_OF_ENGINE,
    *("server_generate", "engine_generate", "engine_async_generate_actual", "turn_engine_call"),
)
_HANDLERS: Final = {
    **dict.fromkeys(_EVENTS, _on_call),
    "scheduler_receive": _on_receive,
    "scheduler_admit": _on_admit,
    "scheduler_first_tokens": _on_first_tokens,
    "scheduler_finish": _on_end,
    "engine_detokenize": _on_end,
}
