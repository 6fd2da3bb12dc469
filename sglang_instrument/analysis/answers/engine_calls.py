"""Show what the engine reported of each call of a request: time in the queue, in prefill and in decode."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.run.opening import Run

_HAS_META_INFO: Final = b'"e2e_latency"'
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
    run.demand_log()
    place = {"step": row["step"], "worker": row["worker"], "validate": row["validate"]}
    calls = []
    run.demand_records(**place)
    for file in run.files_of(**place):
        calls += [_call(line) for line in _lines(run.read_lines(file), str(row["request_id"]).encode())]
    return pl.DataFrame(calls, schema=_SCHEMA, strict=False)


def _lines(chunks: Iterable[bytes], request_id: bytes) -> Iterator[dict[str, Any]]:
    """Yield the records of a request that hold the engine's latency; other lines are not decoded."""
    for chunk in chunks:
        if request_id not in chunk:
            continue
        for raw in chunk.split(b"\n"):
            if _HAS_META_INFO in raw and request_id in raw:
                try:
                    line = msgspec.json.decode(raw)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    continue
                if isinstance(line, dict) and isinstance(line.get("extra"), dict):
                    yield line


def _call(line: dict[str, Any]) -> dict[str, Any]:
    reported = line["extra"]
    queue, first, latency = (
        _number(reported.get(key)) for key in ("queue_time", "first_token_latency", "e2e_latency")
    )
    duration = _number(line.get("duration_sec"))
    if first is not None and latency is not None and first > _NOT_STREAMED * latency:
        first = None  # the first token of a reply that is not streamed arrives with the last
    return {
        "event": line.get("event"),
        "turn": reported.get("turn"),
        "duration_sec": duration,
        "queue_sec": queue,
        "running_sec": _less(latency, queue),
        "prefill_sec": _less(first, queue),
        "decode_sec": _less(latency, first),
        "outside_sec": _less(duration, latency),
        **{
            key: reported.get(key)
            for key in ("prompt_tokens", "cached_tokens", "completion_tokens", "retractions")
        },
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _less(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else max(0.0, whole - part)
