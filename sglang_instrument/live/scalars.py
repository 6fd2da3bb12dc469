"""Compute the numbers of a finished step, and what a tracker shows of it, from the tables of the commands."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.call_times import call_times
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.ledger import PARTS, Paths, step_ledger, worker_ledger
from sglang_instrument.analysis.reading.files import File, newest_runs
from sglang_instrument.analysis.run.losses import health_of
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.live.reported import Reported, reported
from sglang_instrument.live.state import StepDone

_BETWEEN: Final = "between steps"  # not known yet: the next step has not begun
_OF_TABLE: Final = {
    "step_sec": "duration_sec",
    "request_p50_sec": "p50_sec",
    "request_p99_sec": "p99_sec",
    "tail_share": "straggler_share",
    "tokens": "response_tokens",
}

Numbers = dict[str, float | None]


class Ledgers:
    """The tables of all steps of a run, or of the part of it that was read: made once for several steps."""

    def __init__(self, run: Run) -> None:
        paths = Paths(run.digest, call_times(run))
        self.run, self.calls = run, paths.call_times
        self.of_workers, self.of_steps = worker_ledger(paths), step_ledger(paths)


def step_done(ledgers: Ledgers, row: Mapping[str, Any], files: Sequence[File]) -> StepDone:
    """Return the numbers of a finished step; of the scalars, those whose value is known.

    Args:
        ledgers: Of the run.
        row: The step's row of `step_table`.
        files: Those in the step's folder.
    """
    run = ledgers.run
    of_step = (pl.col("step") == row["step"]) & (pl.col("validate") == row["validate"])
    digest, by_workers = run.digest.filter(of_step), ledgers.of_workers.filter(of_step)
    calls = None if ledgers.calls is None else ledgers.calls.filter(of_step)
    spent = ledgers.of_steps.filter(of_step).group_by("part").agg(pl.col("sec").sum())
    ledger = dict(spent.sort("sec", descending=True).iter_rows())
    waits = by_workers.filter(pl.col("part") == "barrier").drop_nulls("waited_for")
    late = waits.group_by("waited_for").agg(pl.col("sec").sum()).sort("sec", "waited_for").tail(1)
    straggler, straggler_sec = (late["waited_for"].item(), late["sec"].item()) if len(late) else (None, 0.0)
    health, reports = health_of(files), reported(run, files)
    numbers: Numbers = {
        **{name: row[column] for name, column in _OF_TABLE.items()},
        **_ledger(ledger, digest),
        **_engine(calls, reports),
        **_thrown_away(digest, reports),
        "straggler_worker": straggler,
        "straggler_sec": straggler_sec if by_workers["worker"].n_unique() > 1 else None,
        "requests": row["requests"] or None,  # at `detail="step"` none are logged
        "tokens_per_sec": _ratio(row["response_tokens"], row["duration_sec"]),
        "tool_p99_sec": _tool_p99(digest),
        "staleness": reports.staleness,
        "records_lost": health.dropped + health.torn,
    }
    return StepDone(
        step=row["step"],
        validate=row["validate"],
        duration_sec=row["duration_sec"],
        requests=row["requests"] or 0,
        tokens=row["response_tokens"],
        p50_sec=row["p50_sec"],
        p99_sec=row["p99_sec"],
        straggler=straggler,
        straggler_sec=straggler_sec,
        ledger=ledger,
        scalars={name: n for name, n in numbers.items() if n is not None and math.isfinite(n)},
        run_id=newest_runs(run.files).get(files[0].folder),
    )


def _ledger(spent: Mapping[str, float], digest: Digest) -> Numbers:
    """Return the share of each part in the step's ledger, and the seconds of rewards on the critical path."""
    rewards = "reward" in spent or bool(digest.of_workers().requests["reward_sec"].sum())
    parts = [part for part in PARTS if part != _BETWEEN]
    whole = sum(spent.get(part, 0.0) for part in parts)
    shares = {f"share_{part.replace(' ', '_')}": _ratio(spent.get(part, 0.0), whole) for part in parts}
    return {**shares, "exposed_reward_sec": spent.get("reward", 0.0) if rewards else None}


def _engine(calls: pl.DataFrame | None, reports: Reported) -> Numbers:
    """Return the shares of calls in the engine's queue, and of prompts in its cache.

    The callers' records come first; the engine's own logs fill in what these do not say.
    """
    queue, cache = (
        _ratio(reports.queue_sec, reports.call_sec),
        _ratio(reports.cached_tokens, reports.prompt_tokens),
    )
    if calls is not None and queue is None:
        known = calls.drop_nulls(["queue_sec", "call_sec"])
        queue = _ratio(known["queue_sec"].sum(), known["call_sec"].sum())
    if calls is not None and cache is None:
        known = calls.drop_nulls(["cached_tokens", "prompt_tokens"])
        cache = _ratio(known["cached_tokens"].sum(), known["prompt_tokens"].sum())
    return {"queue_share": queue, "cache_hit_share": cache}


def _thrown_away(digest: Digest, reports: Reported) -> Numbers:
    """Return the tokens of requests that were aborted or failed, and of those in filtered groups.

    None where no request says why it ended, or no filter logs its groups.
    """
    requests = digest.of_workers().requests.drop_nulls("response_tokens")
    if requests.is_empty():
        return {}
    aborted = pl.col("error").is_not_null() | (pl.col("finish_reason") == "abort").fill_null(False)
    filtered = pl.col("request_id").is_in(list(reports.filtered)) & ~aborted
    tokens = pl.col("response_tokens")
    sums = requests.select(a=tokens.filter(aborted).sum(), f=tokens.filter(filtered).sum())
    tells_ends = requests["finish_reason"].count() or requests["error"].count()
    return {
        "tokens_aborted": sums["a"][0] if tells_ends else None,
        "tokens_filtered": sums["f"][0] if reports.has_filter else None,
    }


def _tool_p99(digest: Digest) -> float | None:
    tools = digest.of_workers().turns.filter(pl.col("tool_sec") > 0)["tool_sec"]
    quantile: float | None = tools.quantile(0.99, "linear")
    return quantile


def _ratio(part: Any, whole: Any) -> float | None:
    return float(part / whole) if part is not None and whole else None
