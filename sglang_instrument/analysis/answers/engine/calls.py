"""Show what the engine reported of each call of a request: time in the queue, in prefill and in decode."""

from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.digests.attempts import in_attempt
from sglang_instrument.analysis.reading.records.fields import RequestIds
from sglang_instrument.analysis.reading.records.lines import Integer, Line
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.analysis.run.opening import Run

_NOT_STREAMED: Final = 0.99  # first token this late in the reply: it came with the last one
_SCHEMA: Final[dict[str, Any]] = {
    "event": pl.String,
    "turn": pl.Int64,
    "duration_sec": pl.Float64,
    "queue_sec": pl.Float64,
    "running_sec": pl.Float64,
    "prefill_sec": pl.Float64,
    "decode_sec": pl.Float64,
    "outside_sec": pl.Float64,
    "prompt_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "completion_tokens": pl.Int64,
    "retractions": pl.Int64,
}


class _MetaInfo(RequestIds, gc=False):
    """What SGLang's `meta_info` says of a call."""

    queue_time: float | None = None
    first_token_latency: float | None = None
    e2e_latency: float | None = None
    prompt_tokens: Integer | None = None
    cached_tokens: Integer | None = None
    completion_tokens: Integer | None = None
    retractions: Integer | None = None


def reported_calls(run: Run, row: dict[str, Any]) -> pl.DataFrame:
    """Return one row per engine call whose times the engine reported (`meta_info`), by their ends.

    Args:
        run: The run.
        row: The request, a row of `request_table`.

    Returns:
        event, turn; duration_sec: as the caller measured it; queue_sec: until the scheduler admitted the
        request; running_sec: from there to the last token; prefill_sec, decode_sec: up to the first token,
        and after it, for streamed replies; outside_sec: the caller's duration minus the engine's latency;
        prompt_tokens, cached_tokens, completion_tokens; retractions. Null where the engine did not report it.
    """
    place = {"step": row["step"], "worker": row["worker"], "validate": row["validate"]}
    run.demand_records(**place)
    is_of_attempt = in_attempt(run.everything.of_workers().requests, row)
    calls = [
        _call(line, fields)
        for _, line, fields in newest_records(run, run.files_of(**place), _MetaInfo, keys=("e2e_latency",))
        if fields.e2e_latency is not None
        and str(fields.request_id) == str(row["request_id"])
        and is_of_attempt(line.start_us)
    ]
    return pl.DataFrame(calls, schema=_SCHEMA, strict=False)


def _call(line: Line, reported: _MetaInfo) -> dict[str, Any]:
    queue, first, latency = reported.queue_time, reported.first_token_latency, reported.e2e_latency
    if first is not None and latency is not None and first > _NOT_STREAMED * latency:
        first = None  # the first token of a reply that is not streamed arrives with the last
    return {
        "event": line.event,
        "turn": reported.turn,
        "duration_sec": line.duration_sec,
        "queue_sec": queue,
        "running_sec": _less(latency, queue),
        "prefill_sec": _less(first, queue),
        "decode_sec": _less(latency, first),
        "outside_sec": _less(line.duration_sec, latency),
        "prompt_tokens": reported.prompt_tokens,
        "cached_tokens": reported.cached_tokens,
        "completion_tokens": reported.completion_tokens,
        "retractions": reported.retractions,
    }


def _less(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else max(0.0, whole - part)
