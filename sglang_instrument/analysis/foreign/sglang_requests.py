"""Read what SGLang exports of each request: `sglang-request-metrics-*.log`, a JSON object a line.

`FileRequestMetricsExporter` in SGLang's `observability/request_metrics_exporter.py` writes it. The times of
a request are there with --enable-metrics only.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.foreign.records.json_lines import JsonLines
from sglang_instrument.analysis.foreign.records.rows import NO_STEPS, ForeignLog, as_us, to_rows
from sglang_instrument.analysis.foreign.records.windows import IDLE_SEC, number_windows
from sglang_instrument.analysis.reading.records.lines import Integer

NAME: Final = "SGLang's per-request export"
FILES: Final = "sglang-request-metrics-*.log"
_NAMED: Final = re.compile(r"sglang-request-metrics-.*\.log(\.zst)?$")
_CANNOT_SHOW: Final = [
    "turns of one conversation: each call of the server is a request",
    "tools, rewards, barriers and what the trainer does between rollouts",
]
_UNTIMED: Final = "{count:,} requests without times: start the server with --enable-metrics"


class _RequestLine(msgspec.Struct, gc=False):
    """The keys of a line that we use; `request_parameters` holds the prompt and is skipped."""

    id: str
    finish_reason: Any = None
    prompt_tokens: Integer | None = None
    completion_tokens: Integer | None = None
    cached_tokens: Integer | None = None
    weight_version: str | Integer | None = None
    num_retractions: Integer | None = None
    dp_rank: Integer | None = None
    e2e_latency: float | None = None
    queue_time: float | None = None
    request_received_ts: float | None = None
    request_finished_ts: float | None = None
    response_sent_to_client_ts: float | None = None
    first_token_latency: float | None = None


_LINES: Final = JsonLines(_RequestLine)
_COLUMNS: Final[dict[str, Any]] = {
    "request_id": pl.String,
    "finish_reason": pl.String,
    "prompt_tokens": pl.Int64,
    "response_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "weight_version": pl.String,
    "retractions": pl.Int64,
    "dp_rank": pl.Int64,
    "latency_sec": pl.Float64,
    "queue_sec": pl.Float64,
    "received_sec": pl.Float64,
    "finished_sec": pl.Float64,
    "first_token_sec": pl.Float64,
    "folder": pl.UInt32,
}


def claims(path: Path, head: bytes) -> bool:
    """Return whether a file is such an export."""
    first = head.partition(b"\n")[0]
    return _NAMED.match(path.name) is not None or (
        first.startswith(b'{"request_parameters"') and b'"finish_reason"' in first
    )


def read(paths: Sequence[Path]) -> ForeignLog:
    """Return a request with one turn for each line.

    Each folder is a worker; of a single folder, each rank of the server's data parallelism.
    """
    log = ForeignLog(pl.DataFrame(), [], list(_CANNOT_SHOW), workers_are_servers=True)
    folders = {folder: number for number, folder in enumerate(sorted({path.parent for path in paths}))}
    tables = [
        _table(requests, folders[path.parent])
        for path in paths
        for requests in _LINES.read(path, log)
        if requests
    ]
    calls = _timed(pl.concat([pl.DataFrame(schema=_COLUMNS), *tables]))
    untimed = calls["start_us"].null_count()
    if untimed:
        log.cannot_show.append(_UNTIMED.format(count=untimed))
    calls = calls.drop_nulls(["start_us", "end_us"])
    log.rows = to_rows(pl.concat([_calls(calls), _requests(calls)], how="diagonal_relaxed"))
    log.cannot_show.append(_steps_word(calls))
    return log


def _table(requests: Sequence[_RequestLine], folder: int) -> pl.DataFrame:
    """Return the columns of lines: one comprehension each, much faster than a loop over the lines."""
    values: list[list[Any]] = [
        [request.id for request in requests],
        [_reason(request.finish_reason) for request in requests],
        [request.prompt_tokens for request in requests],
        [request.completion_tokens for request in requests],
        [request.cached_tokens for request in requests],
        [None if request.weight_version is None else str(request.weight_version) for request in requests],
        [request.num_retractions for request in requests],
        [request.dp_rank for request in requests],
        [request.e2e_latency for request in requests],
        [request.queue_time for request in requests],
        [request.request_received_ts for request in requests],
        [request.request_finished_ts or request.response_sent_to_client_ts for request in requests],
        [request.first_token_latency for request in requests],
        [folder] * len(requests),
    ]
    return pl.DataFrame(
        [pl.Series(name, column, kind) for (name, kind), column in zip(_COLUMNS.items(), values, strict=True)]
    )


def _reason(finished: Any) -> str | None:
    """Return the type of a finish reason, such as {"type": "stop", "matched": 2}."""
    kind = finished.get("type") if isinstance(finished, dict) else finished
    return kind if isinstance(kind, str) else None


def _timed(calls: pl.DataFrame) -> pl.DataFrame:
    """Add when each call began and ended, its worker and its step."""
    start = pl.coalesce("received_sec", pl.col("finished_sec") - pl.col("latency_sec"))
    end = pl.coalesce("finished_sec", pl.col("received_sec") + pl.col("latency_sec"))
    calls = calls.with_columns(start_us=as_us(start), end_us=as_us(end))
    several = calls["folder"].n_unique() > 1
    worker = pl.col("folder") if several else pl.col("dp_rank").fill_null(0)
    calls = calls.with_columns(worker=worker.cast(pl.Int64), task=pl.int_range(1, pl.len() + 1))
    return calls.with_columns(step=_steps(calls))


def _steps(calls: pl.DataFrame) -> pl.Series:
    """Return the version of the weights as the step, where several are numbered; else the stretch of work."""
    version: pl.Series = calls["weight_version"].cast(pl.Int64, strict=False)
    if version.null_count() == 0 and version.n_unique() > 1:
        return version
    return number_windows(calls["start_us"], calls["end_us"])


def _steps_word(calls: pl.DataFrame) -> str:
    if calls["weight_version"].n_unique() > 1:
        return "the trainer's steps: a step here is a version of the weights"
    return NO_STEPS.format(sec=IDLE_SEC)


def _calls(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.select(
        *("worker", "step", "start_us", "end_us", "task", "request_id", "response_tokens"),
        *("prompt_tokens", "cached_tokens", "queue_sec", "first_token_sec", "retractions"),
        event=pl.lit("turn_engine_call"),
        turn=pl.lit(0),
    )


def _requests(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.select(
        *("worker", "step", "start_us", "end_us", "task", "request_id", "response_tokens"),
        *("finish_reason", "weight_version"),
        event=pl.lit("async_rollout_request_complete"),
        turns=pl.lit(1),
    )
