"""Say what the engine told of each call of a request: its time in the queue, in prefill and in decode."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.chunks import readable_lines
from sglang_instrument.analysis.run import Run

_TOLD: Final = b'"e2e_latency"'
_AT_ONCE: Final = 0.99
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
    """Return a row a call of the engine that told its times (`meta_info`), in the order of their ends.

    Args:
        run: The run.
        row: The request, as `request_table` has it.

    Returns:
        event, turn, duration_sec as the caller measured it; queue_sec: before the scheduler took it;
        running_sec: from there to the last token; prefill_sec, decode_sec: the part up to the first token,
        and the rest, where replies are streamed; outside_sec: what the caller waited beyond the engine's own
        latency; prompt_tokens, cached_tokens, completion_tokens; retractions. Null is what was not told.
    """
    place = {"step": row["step"], "worker": row["worker"], "validate": row["validate"]}
    calls = []
    for file in run.files_of(**place):
        calls += [_call(line) for line in _lines(run.folder / file.path, str(row["request_id"]).encode())]
    return pl.DataFrame(calls, schema=_SCHEMA, strict=False)


def _lines(path: Path, request_id: bytes) -> Iterator[dict[str, Any]]:
    """Yield the records of a request in which the engine told its latency; others are not even decoded."""
    for chunk in readable_lines(path):
        if request_id not in chunk:
            continue
        for raw in chunk.split(b"\n"):
            if _TOLD in raw and request_id in raw:
                try:
                    line = msgspec.json.decode(raw)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    continue
                if isinstance(line, dict) and isinstance(line.get("extra"), dict):
                    yield line


def _call(line: dict[str, Any]) -> dict[str, Any]:
    told = line["extra"]
    queue, first, whole = (
        _number(told.get(key)) for key in ("queue_time", "first_token_latency", "e2e_latency")
    )
    duration = _number(line.get("duration_sec"))
    if first is not None and whole is not None and first > _AT_ONCE * whole:
        first = None  # a reply that is not streamed has its first token when it has its last
    return {
        "event": line.get("event"),
        "turn": told.get("turn"),
        "duration_sec": duration,
        "queue_sec": queue,
        "running_sec": _less(whole, queue),
        "prefill_sec": _less(first, queue),
        "decode_sec": _less(whole, first),
        "outside_sec": _less(duration, whole),
        **{
            key: told.get(key)
            for key in ("prompt_tokens", "cached_tokens", "completion_tokens", "retractions")
        },
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _less(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else max(0.0, whole - part)
