"""Read what AReaL's `perf_tracer` writes: `sessions-rN.jsonl`, and `traces-rN.jsonl` of the trainer.

`areal/utils/perf_tracer.py` of AReaL 1.0.4 writes them. A session is a sample: its phases generate, toolcall
and reward have Unix times. The times of traces count from the start of their process.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.foreign.areal_trainer import events_of, step_begins
from sglang_instrument.analysis.foreign.records.json_lines import JsonLines
from sglang_instrument.analysis.foreign.records.rows import NO_STEPS, ForeignLog, as_us, to_rows
from sglang_instrument.analysis.foreign.records.windows import IDLE_SEC, number_windows
from sglang_instrument.analysis.reading.records.lines import Integer

NAME: Final = "AReaL's perf_tracer"
FILES: Final = "sessions-rN.jsonl, traces-rN.jsonl"
_SESSIONS: Final = re.compile(r"sessions-r\d+\.jsonl(\.zst)?$")
_TRACES: Final = re.compile(r"traces-r\d+\.jsonl(\.zst)?$")
_CANNOT_SHOW: Final = [
    "tokens, why replies ended, rewards' values",
    "who waited at barriers, and what the engine did",
]
_NO_TRACES: Final = "what the trainer does (perf_tracer.enabled=true writes traces-rN.jsonl)"
_NO_SESSIONS: Final = "requests (perf_tracer.session_tracer.enabled=true writes sessions-rN.jsonl)"
_BY_END: Final = "which step trained on a session: it counts for the step in which it ended"
_BY_FILE: Final = "exact times of the trainer's events: they are placed by when their file was written last"
#: Our event for each phase of a session.
_PHASES: Final = {
    "generate": "turn_engine_call",
    "toolcall": "tool_call",
    "reward": "reward_calculation",
}


class _Phase(msgspec.Struct, gc=False):
    start_ts: float
    end_ts: float | None = None


class _ArealSession(msgspec.Struct, gc=False):
    """A line of sessions-rN.jsonl."""

    session_id: Integer
    submit_ts: float
    task_id: Integer | str | None = None
    rank: Integer | None = None
    status: str | None = None
    reason: str | None = None
    finalized_ts: float | None = None
    phases: dict[str, list[_Phase]] = {}


_LINES: Final = JsonLines(_ArealSession)
_SESSION: Final[dict[str, Any]] = {
    "request_id": pl.String,
    "group": pl.String,
    "worker": pl.Int64,
    "status": pl.String,
    "reason": pl.String,
    "submit_sec": pl.Float64,
    "finalized_sec": pl.Float64,
    "task": pl.Int64,
}
_SPAN: Final[dict[str, Any]] = {
    "row": pl.Int64,
    "event": pl.String,
    "start_sec": pl.Float64,
    "end_sec": pl.Float64,
}


def claims(path: Path, head: bytes) -> bool:
    """Return whether a file has sessions or traces of AReaL."""
    return _is_sessions(path, head) or _is_traces(path, head)


def _is_sessions(path: Path, head: bytes) -> bool:
    first = head.partition(b"\n")[0]
    return _SESSIONS.match(path.name) is not None or (b'"session_id"' in first and b'"submit_ts"' in first)


def _is_traces(path: Path, head: bytes) -> bool:
    return _TRACES.match(path.name) is not None and (not head or b'"ph"' in head)


def read(paths: Sequence[Path]) -> ForeignLog:
    """Return a request for each session, and the trainer's events."""
    log = ForeignLog(pl.DataFrame(), [], list(_CANNOT_SHOW))
    traces = [path for path in paths if _TRACES.match(path.name)]
    sessions = [path for path in paths if path not in set(traces)]
    requests, spans = _sessions(sessions, log)
    ended = requests["end_us"].max()
    trainer = events_of(traces, log, None if ended is None else int(ended))  # type: ignore[arg-type]  # an integer
    requests = requests.with_columns(step=_steps(requests, trainer))
    log.cannot_show += list(_gaps(requests, trainer))
    of_request = requests.select("row", "request_id", "worker", "step", "task")
    parts = spans.join(of_request, on="row", maintain_order="left").drop("row")
    whole = requests.select(
        *("request_id", "worker", "step", "task", "group", "status", "start_us", "end_us", "turns", "error"),
        event=pl.lit("async_rollout_request_complete"),
    )
    log.rows = to_rows(pl.concat([trainer, parts, whole], how="diagonal_relaxed"))
    return log


def _sessions(paths: Sequence[Path], log: ForeignLog) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the sessions, and their phases; `row` numbers the sessions."""
    sessions: dict[str, list[Any]] = {name: [] for name in _SESSION}
    phases: dict[str, list[Any]] = {name: [] for name in _SPAN}
    for path in paths:
        for lines in _LINES.read(path, log):
            _add(sessions, phases, lines)
    requests = pl.DataFrame(sessions, schema=_SESSION).with_row_index("row").cast({"row": pl.Int64})
    spans = _timed(pl.DataFrame(phases, schema=_SPAN))
    ends = spans.group_by("row").agg(
        last_us=pl.col("end_us").max(), turns=(pl.col("event") == "turn_engine_call").sum()
    )
    requests = requests.join(ends, on="row", how="left", maintain_order="left").with_columns(
        start_us=as_us(pl.col("submit_sec")),
        # A session is final when its whole group is: it ended with its last phase.
        end_us=pl.coalesce("last_us", as_us(pl.col("finalized_sec"))),
        error=pl.when(pl.col("status") == "failed").then(pl.coalesce("reason", "status")),
    )
    return requests, spans.drop_nulls("end_us")


def _add(
    sessions: dict[str, list[Any]], phases: dict[str, list[Any]], lines: Sequence[_ArealSession]
) -> None:
    begun = len(sessions["task"])
    sessions["request_id"] += [f"{line.rank or 0}-{line.session_id}" for line in lines]
    sessions["group"] += [None if line.task_id is None else str(line.task_id) for line in lines]
    sessions["worker"] += [line.rank or 0 for line in lines]
    sessions["status"] += [line.status for line in lines]
    sessions["reason"] += [line.reason for line in lines]
    sessions["submit_sec"] += [line.submit_ts for line in lines]
    sessions["finalized_sec"] += [line.finalized_ts for line in lines]
    sessions["task"] += range(begun + 1, begun + 1 + len(lines))
    spans = [
        (row, _PHASES.get(name, name), span.start_ts, span.end_ts)
        for row, line in enumerate(lines, begun)
        for name, of_phase in line.phases.items()
        for span in of_phase
    ]
    for name, values in zip(phases, zip(*spans, strict=True), strict=False):
        phases[name] += values


def _timed(spans: pl.DataFrame) -> pl.DataFrame:
    """Add times, and turns: a call of the engine begins one, and tools belong to the last one before them."""
    spans = spans.with_columns(start_us=as_us(pl.col("start_sec")), end_us=as_us(pl.col("end_sec")))
    spans = spans.drop("start_sec", "end_sec").sort("row", "start_us", maintain_order=True)
    calls = (pl.col("event") == "turn_engine_call").cast(pl.Int64)
    turn = calls.cum_sum().over("row") - 1
    in_turn = pl.col("event").is_in(["turn_engine_call", "tool_call"]) & (turn >= 0)
    return spans.with_columns(turn=pl.when(in_turn).then(turn))


def _steps(requests: pl.DataFrame, trainer: pl.DataFrame) -> pl.Series:
    """Return the step in which each session ended; without the trainer's events, the stretch of work."""
    begins = step_begins(trainer)
    if begins.is_empty():
        return number_windows(requests["start_us"], requests["end_us"])
    ended = requests.select("row", pl.col("end_us").fill_null(0)).sort("end_us")
    stretches = ended.join_asof(begins, left_on="end_us", right_on="begin_us")
    steps: pl.Series = stretches.sort("row")["step"].fill_null(begins["step"][0])
    return steps


def _gaps(requests: pl.DataFrame, trainer: pl.DataFrame) -> Iterator[str]:
    """Yield what this log cannot show for lack of one of its files."""
    if requests.is_empty():
        yield _NO_SESSIONS
    if trainer.is_empty():
        yield _NO_TRACES
        yield NO_STEPS.format(sec=IDLE_SEC)
    else:
        yield _BY_FILE
        yield _BY_END
