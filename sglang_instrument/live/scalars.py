"""Compute what a tracker shows of a finished step, from the tables that the commands print."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import PARTS
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.digest import Digest
from sglang_instrument.analysis.run.losses import health_of
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.live.reported import Reported, reported

_BETWEEN: Final = "between steps"  # not known yet: the next step has not begun
_OF_TABLE: Final = {
    "step_sec": "duration_sec",
    "request_p50_sec": "p50_sec",
    "request_p99_sec": "p99_sec",
    "tail_share": "tail",
    "tokens": "response_tokens",
}

Numbers = dict[str, float | None]


@dataclass(frozen=True)
class StepTables:
    """What is known of one step.

    Attributes:
        row: Its row of `summary`.
        files: Those in its folder.
        digest: Its requests and turns.
        spent, spent_by_workers: Its rows of `step_ledger` and `worker_ledger`.
        calls: Its rows of `call_times`; None if no process of the engine logged.
    """

    row: Mapping[str, Any]
    files: list[File]
    digest: Digest
    spent: pl.DataFrame
    spent_by_workers: pl.DataFrame
    calls: pl.DataFrame | None

    @cached_property
    def ledger(self) -> dict[str, float]:
        """Its seconds by part, the largest first."""
        sums = self.spent.group_by("part").agg(pl.col("sec").sum()).sort("sec", descending=True)
        return dict(sums.iter_rows())

    @cached_property
    def straggler(self) -> tuple[int | None, float]:
        """The worker that the others waited for longest, and the worker time that they spent in waiting."""
        waits = self.spent_by_workers.filter(pl.col("part") == "barrier").drop_nulls("waited_for")
        late = waits.group_by("waited_for").agg(pl.col("sec").sum()).sort("sec", "waited_for").tail(1)
        return (late["waited_for"].item(), late["sec"].item()) if len(late) else (None, 0.0)


def scalars_of(run: Run, step: StepTables) -> dict[str, float]:
    """Return what is known of a step; a name whose value is not known is left out.

    Args:
        run: The run, or the part of it that was read.
        step: What is known of the step.

    Returns:
        Names without a prefix, as docs/reference/numbers.md defines them.
    """
    health, told, row = health_of(step.files), reported(run, step.files), step.row
    numbers: Numbers = {
        **{name: row[column] for name, column in _OF_TABLE.items()},
        **_straggler(step),
        **_ledger(step.ledger),
        **_engine(step.calls, told),
        **_thrown_away(step.digest, told),
        "requests": row["requests"] or None,  # at `detail="step"` none are logged
        "tokens_per_sec": _ratio(row["response_tokens"], row["duration_sec"]),
        "tool_p99_sec": _tool_p99(step.digest),
        "staleness": told.staleness,
        "records_lost": health.dropped + health.torn,
    }
    return {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}


def _straggler(step: StepTables) -> Numbers:
    if step.spent_by_workers["worker"].n_unique() < 2:
        return {}
    worker, sec = step.straggler
    return {"straggler_worker": worker, "straggler_sec": sec}


def _ledger(spent: Mapping[str, float]) -> Numbers:
    """Return the share of each part in the step's ledger, and the seconds of rewards on the critical path."""
    parts = [part for part in PARTS if part != _BETWEEN]
    whole = sum(spent.get(part, 0.0) for part in parts)
    shares = {f"share_{part.replace(' ', '_')}": _ratio(spent.get(part, 0.0), whole) for part in parts}
    return {**shares, "exposed_reward_sec": spent.get("reward", 0.0)}


def _engine(calls: pl.DataFrame | None, told: Reported) -> Numbers:
    """Return the shares of calls in the engine's queue, and of prompts in its cache.

    The callers' records come first; the engine's own logs fill in what these do not say.
    """
    queue, cache = _ratio(told.queue_sec, told.call_sec), _ratio(told.cached_tokens, told.prompt_tokens)
    if calls is not None and queue is None:
        known = calls.drop_nulls(["queue_sec", "call_sec"])
        queue = _ratio(known["queue_sec"].sum(), known["call_sec"].sum())
    if calls is not None and cache is None:
        known = calls.drop_nulls(["cached_tokens", "prompt_tokens"])
        cache = _ratio(known["cached_tokens"].sum(), known["prompt_tokens"].sum())
    return {"queue_share": queue, "cache_hit_share": cache}


def _thrown_away(digest: Digest, told: Reported) -> Numbers:
    """Return the tokens of requests that were aborted or failed, and of those in filtered groups."""
    requests = digest.of_workers().requests.drop_nulls("response_tokens")
    if requests.is_empty():
        return {}
    aborted = pl.col("error").is_not_null() | (pl.col("finish_reason") == "abort").fill_null(False)
    filtered = pl.col("request_id").is_in(list(told.filtered)) & ~aborted
    tokens = pl.col("response_tokens")
    sums = requests.select(a=tokens.filter(aborted).sum(), f=tokens.filter(filtered).sum())
    return {"tokens_aborted": sums["a"][0], "tokens_filtered": sums["f"][0]}


def _tool_p99(digest: Digest) -> float | None:
    tools = digest.of_workers().turns.filter(pl.col("tool_sec") > 0)["tool_sec"]
    quantile: float | None = tools.quantile(0.99, "linear")
    return quantile


def _ratio(part: Any, whole: Any) -> float | None:
    return float(part / whole) if part is not None and whole else None
