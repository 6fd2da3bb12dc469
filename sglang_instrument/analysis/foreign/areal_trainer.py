"""Read the trainer's events of AReaL's `traces-rN.jsonl`: Chrome's trace events, one a line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.foreign.records.json_lines import JsonLines
from sglang_instrument.analysis.foreign.records.rows import ForeignLog
from sglang_instrument.analysis.reading.records.lines import Integer

_ROLLOUT: Final = "trainer_generate"
#: Our event for each of AReaL's; others keep their names.
_EVENTS: Final = {
    "train.rollout": _ROLLOUT,
    "train.eval": "trainer_validate",
    "train.recompute_logp": "trainer_old_log_prob",
    "train.ref_logp": "trainer_ref_log_prob",
    "train.compute_values": "trainer_values",
    "train.compute_advantage": "trainer_advantage",
    "train.ppo_update": "trainer_update_actor",
    "train.critic_ppo_update": "trainer_update_critic",
    "train.update_weights": "weights_update",
    "train.save": "trainer_save_checkpoint",
    "train.checkpoint": "trainer_save_checkpoint",
    "train.rollout_pause_generation": "generation_pause",
    "train.rollout_continue_generation": "generation_continue",
}


class _Args(msgspec.Struct, gc=False):
    global_step: Integer | None = None
    rank: Integer | None = None
    role: str | None = None
    exception: str | None = None


class _TrainerEvent(msgspec.Struct, gc=False):
    """A line; `ts` and `dur` are microseconds."""

    name: str
    ph: str
    ts: float | None = None
    dur: float | None = None
    pid: Integer | None = None
    tid: Integer | None = None
    args: _Args = msgspec.field(default_factory=_Args)


_LINES: Final = JsonLines(_TrainerEvent)
_COLUMNS: Final[dict[str, Any]] = {
    "event": pl.String,
    "from_us": pl.Float64,
    "sec_us": pl.Float64,
    "pid": pl.Int64,
    "task": pl.Int64,
    "step": pl.Int64,
    "worker": pl.Int64,
    "error": pl.String,
}


def events_of(paths: Sequence[Path], log: ForeignLog, ended_us: int | None) -> pl.DataFrame:
    """Return the spans of trainers, with their steps.

    Args:
        paths: Files of traces.
        log: Gets what cannot be read.
        ended_us: When the last session ended, if any did.
    """
    tables = [_placed(path, _table(path, log), ended_us) for path in paths]
    return pl.concat([pl.DataFrame(schema=_placed_schema()), *tables])


def _placed_schema() -> dict[str, Any]:
    logged = {name: kind for name, kind in _COLUMNS.items() if name not in ("from_us", "sec_us", "pid")}
    return {**logged, "start_us": pl.Int64, "end_us": pl.Int64, "role": pl.String}


def _table(path: Path, log: ForeignLog) -> pl.DataFrame:
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for lines in _LINES.read(path, log):
        # Threads below 0 are streams of its profiler: kernels, which `trace` reads elsewhere.
        spans = [line for line in lines if line.ph == "X" and line.ts is not None and (line.tid or 0) >= 0]
        columns["event"] += [_EVENTS.get(span.name, span.name) for span in spans]
        columns["from_us"] += [span.ts for span in spans]
        columns["sec_us"] += [span.dur or 0 for span in spans]
        columns["pid"] += [span.pid for span in spans]
        columns["task"] += [span.tid for span in spans]
        columns["step"] += [span.args.global_step for span in spans]
        columns["worker"] += [span.args.rank or 0 for span in spans]
        columns["error"] += [span.args.exception for span in spans]
    return pl.DataFrame(columns, schema=_COLUMNS)


def _placed(path: Path, events: pl.DataFrame, ended_us: int | None) -> pl.DataFrame:
    """Place the events of the last process that wrote a file on the wall clock.

    They count from the start of the process. It writes the file at the end of a step, so its last event
    ended when the file was last changed. If all sessions are far from there, the file was copied since,
    and the last session tells instead.
    """
    if events.is_empty():
        return pl.DataFrame(schema=_placed_schema())
    events = events.filter(pl.col("pid").eq_missing(events["pid"][-1]))
    usable = (
        pl.col("from_us").is_finite()
        & pl.col("from_us").is_between(0, 1e15)
        & pl.col("sec_us").is_between(0, 1e15)
    )
    events = events.filter(usable)
    length_us = int(events.select((pl.col("from_us") + pl.col("sec_us")).max()).item() or 0)
    end_us = path.stat().st_mtime_ns // 1000
    if ended_us is not None and not end_us - length_us <= ended_us <= end_us:
        last = events.filter(pl.col("event") == _ROLLOUT)
        of_rollout = last.select((pl.col("from_us") + pl.col("sec_us")).max()).item()
        end_us = ended_us + length_us - int(length_us if of_rollout is None else of_rollout)
    start_us = (pl.col("from_us").cast(pl.Int64) + (end_us - length_us)).alias("start_us")
    events = events.with_columns(start_us).with_columns(
        end_us=pl.col("start_us") + pl.col("sec_us").cast(pl.Int64), role=pl.lit("trainer")
    )
    return _with_steps(events).select(_placed_schema().keys())


def _with_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Give events without a step that of the step that had begun before them; those before any have none."""
    events = events.sort("start_us", maintain_order=True)
    begins = step_begins(events)
    if begins.is_empty():
        return events
    later = events.join_asof(begins.rename({"step": "later"}), left_on="start_us", right_on="begin_us")
    return later.with_columns(step=pl.coalesce("step", "later"))


def step_begins(trainer: pl.DataFrame) -> pl.DataFrame:
    """Return `step` and `begin_us` of each step, in the order of time."""
    known = trainer.drop_nulls("step")
    return known.group_by("step").agg(begin_us=pl.col("start_us").min()).sort("begin_us", "step")
