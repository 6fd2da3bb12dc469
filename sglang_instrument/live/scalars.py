"""Compute what a tracker shows of a finished step, from the tables that the commands print."""

import math
from pathlib import Path
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.call_times import call_times
from sglang_instrument.analysis.answers.steps import step_table
from sglang_instrument.analysis.ledger.ledger import PARTS, Paths, step_ledger, worker_ledger
from sglang_instrument.analysis.run.cache import list_files, read_parts
from sglang_instrument.analysis.run.digest import Digest
from sglang_instrument.analysis.run.losses import health_of
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.run.outside import paths_outside_steps
from sglang_instrument.live.reported import Reported, reported

_BETWEEN: Final = "between steps"  # not known yet: the next step has not begun
_MOST_ENGINE_BYTES: Final = (
    64 * 2**20
)  # of the engine's own logs, which hold all steps; they take 2 s to read
_OF_TABLE: Final = {
    "step_sec": "duration_sec",
    "request_p50_sec": "p50_sec",
    "request_p99_sec": "p99_sec",
    "tail_share": "tail",
    "tokens": "response_tokens",
}

Numbers = dict[str, float | None]


def open_step(folder: Path, step: int) -> Run:
    """Read the files of one training step, and those of the engine's processes unless they are large."""
    parts = [f"step_{step}"]
    if sum(file.size for file in list_files(folder, ["engine"])) <= _MOST_ENGINE_BYTES:
        parts.append("engine")
    files, digest = read_parts(folder, parts)
    return Run(folder, files, digest, cached=False)


def scalars_of(run: Run, step: int) -> dict[str, float]:
    """Return what is known of a step; a name whose value is not known is left out.

    Args:
        run: A run, or the part of it that `open_step` reads.
        step: A training step.

    Returns:
        Names without a prefix, as docs/reference/numbers.md defines them; {} if the workers' records belong
        to no step.
    """
    files = [file for file in run.files if file.place is not None and file.place.step == step]
    digest = run.everything.filter((pl.col("step") == step) & ~pl.col("validate"))
    rows = step_table(digest).rows(named=True)
    if not rows or paths_outside_steps(files):
        return {}
    health, told = health_of(files), reported(run)
    paths = Paths(digest, call_times(run))
    numbers: Numbers = {
        **{name: rows[0][column] for name, column in _OF_TABLE.items()},
        **_straggler(paths),
        **_ledger(paths),
        **_engine(paths.call_times, told),
        **_thrown_away(digest, told),
        "requests": rows[0]["requests"] or None,  # at `detail="step"` none are logged
        "tokens_per_sec": _ratio(rows[0]["response_tokens"], rows[0]["duration_sec"]),
        "tool_p99_sec": _tool_p99(digest),
        "staleness": told.staleness,
        "records_lost": health.dropped + health.torn,
    }
    return {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}


def _straggler(paths: Paths) -> Numbers:
    """Return the worker that the others waited for longest, and their time; none of a single worker."""
    ledger = worker_ledger(paths)
    if ledger["worker"].n_unique() < 2:
        return {}
    waits = ledger.filter(pl.col("part") == "barrier").drop_nulls("waited_for")
    late = waits.group_by("waited_for").agg(pl.col("sec").sum()).sort("sec", "waited_for").tail(1)
    if late.is_empty():
        return {"straggler_sec": 0.0}
    return {"straggler_worker": late["waited_for"].item(), "straggler_sec": late["sec"].item()}


def _ledger(paths: Paths) -> Numbers:
    """Return the share of each part in the step's ledger, and the seconds of rewards on the critical path."""
    spent = step_ledger(paths).filter(pl.col("part") != _BETWEEN)
    whole = spent["sec"].sum()
    sums = dict(spent.group_by("part").agg(pl.col("sec").sum()).iter_rows())
    parts = [part for part in PARTS if part != _BETWEEN]
    shares = {f"share_{part.replace(' ', '_')}": _ratio(sums.get(part, 0.0), whole) for part in parts}
    return {**shares, "exposed_reward_sec": sums.get("reward", 0.0)}


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
