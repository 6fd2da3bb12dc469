"""Show how stale samples are when a step trains on them, and what waits for the trainer."""

from collections.abc import Sequence
from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.asynchronous.fates import USED, logs_consumption
from sglang_instrument.analysis.digests.digest import Digest

_MEMBERS: Final = 2  # a group has at least as many


def with_staleness(fates: pl.DataFrame) -> pl.DataFrame:
    """Add to rows of `sample_fates` how far the trainer was ahead of the weights that made them.

    Returns:
        Also staleness: versions from the beginning of the sample to its use; end_staleness: from its end;
        null where a version is not logged, or where it is newer than the trainer's (`ahead`): then versions
        went back after a restart, or a label is wrong. mixed: whether its weights changed in between;
        waited_sec: from its end to its use; over: whether it is staler than allowed.
    """
    first = pl.coalesce("first_weight_version", "weight_version")
    newest = pl.max_horizontal("first_weight_version", "weight_version")
    ahead = newest > pl.col("used_version")
    behind = pl.when(~ahead).then(pl.col("used_version") - first)
    return fates.with_columns(
        ahead=ahead,
        staleness=behind,
        end_staleness=pl.when(~ahead).then(pl.col("used_version") - pl.col("weight_version")),
        mixed=pl.col("first_weight_version") != pl.col("weight_version"),
        waited_sec=((pl.col("used_us") - pl.col("end_us")) / 1e6).clip(lower_bound=0.0),
        over=behind > pl.col("max_staleness"),
    )


def staleness_table(fates: pl.DataFrame, by_worker: bool = False) -> pl.DataFrame:
    """Return one row per step of the trainer, or per step and worker that made the samples.

    Args:
        fates: Of `sample_fates`.
        by_worker: Whether to split steps by worker.

    Returns:
        step: of the trainer; worker; samples: that it took; known: those with a known staleness; version: of
        the trainer; mean, p50, p99, max: of their staleness, in versions; mixed_share: of samples whose
        weights changed while they were made; waited_sec: mean from their end to their use; max_staleness;
        over_limit: samples above it; ahead: samples whose versions are newer than the trainer's. Null where
        the log does not tell.
    """
    used = with_staleness(fates.filter(pl.col("fate") == USED))
    key = ["step", "worker"] if by_worker else ["step"]
    stale = pl.col("staleness")
    return (
        used.with_columns(step="trained_step")
        .group_by(key)
        .agg(
            samples=pl.len().cast(pl.Int64),
            known=stale.count().cast(pl.Int64),
            version=pl.col("used_version").max(),
            mean=stale.mean(),
            p50=stale.quantile(0.5, "linear"),
            p99=stale.quantile(0.99, "linear"),
            max=stale.max(),
            mixed_share=pl.col("mixed").mean(),
            waited_sec=pl.col("waited_sec").mean(),
            max_staleness=pl.col("max_staleness").max(),
            over_limit=pl.when(pl.col("over").count() > 0).then(pl.col("over").sum().cast(pl.Int64)),
            ahead=pl.when(pl.col("ahead").count() > 0).then(pl.col("ahead").sum().cast(pl.Int64)),
        )
        .sort(key)
    )


def load_table(digest: Digest, fates: pl.DataFrame) -> pl.DataFrame:
    """Return what was on its way when each step of the trainer took its first sample.

    Returns:
        step; at_us; in_flight: requests that had begun and not ended; queued: of these, those without an
        engine call yet, null if no call is logged; waiting: samples that had ended, and that a later step
        took or none yet.
    """
    used = fates.filter(pl.col("fate") == USED)
    first_uses = used.group_by(step="trained_step").agg(at_us=pl.col("used_us").min()).sort("step")
    key = ["step", "worker", "request_id"]
    turns = digest.of_workers().turns.filter(~pl.col("validate"))
    first = turns.group_by(key).agg(called_us=pl.col("start_us").min())
    rows = fates.join(first, on=key, how="left", maintain_order="left")
    called = pl.coalesce("called_us", "end_us")
    left = pl.when(pl.col("fate") == "waiting").then(2**62).otherwise(pl.coalesce("fate_us", "end_us"))
    times = rows.select("start_us", "end_us", called_us=called, left_us=pl.max_horizontal(left, "end_us"))
    begun, ended, asked, gone = (
        _count_until(times[name], first_uses["at_us"])
        for name in ("start_us", "end_us", "called_us", "left_us")
    )
    queued = begun - asked if logs_calls(digest) else pl.lit(None, pl.Int64)
    # What this step takes has left at that time, or leaves within it.
    return first_uses.with_columns(
        in_flight=begun - ended, queued=queued, waiting=(ended - gone).clip(lower_bound=0)
    )


def logs_calls(digest: Digest) -> bool:
    """Return whether the log holds engine calls of training requests."""
    return not digest.of_workers().turns.filter(~pl.col("validate")).is_empty()


def _count_until(times: pl.Series, moments: pl.Series) -> pl.Series:
    counted: pl.Series = times.sort().search_sorted(moments, "right").cast(pl.Int64)
    return counted


def group_table(fates: pl.DataFrame) -> pl.DataFrame:
    """Return one row per group of several samples, the longest wait for its slowest member first.

    Returns:
        step: of the trainer, or of the rollout where none took it; group; samples; slowest: the request that
        ended last, its worker and duration_sec; wait_sec: from the median end of the others to the last end;
        versions: how many versions passed for the others meanwhile, in the mean; fate: of most members.
    """
    step = pl.coalesce("trained_step", pl.col("trained_step").min().over("step", "group"), "step")
    members = fates.filter(pl.col("group").is_not_null()).with_columns(step=step).sort("end_us")
    others = pl.col("end_us").slice(0, pl.len() - 1)
    newer = pl.col("weight_version").last() - pl.col("weight_version").slice(0, pl.len() - 1)
    groups = members.group_by("step", "group", maintain_order=True).agg(
        samples=pl.len().cast(pl.Int64),
        slowest=pl.col("request_id").last(),
        worker=pl.col("worker").last(),
        duration_sec=pl.col("duration_sec").last(),
        wait_sec=(pl.col("end_us").last() - others.median()) / 1e6,
        versions=newer.clip(lower_bound=0).mean(),
        fate=pl.col("fate").mode().sort().first(),
    )
    groups = groups.filter(pl.col("samples") >= _MEMBERS)
    return groups.sort("wait_sec", "step", "group", descending=[True, False, False])


def missing_of(fates: pl.DataFrame, digest: Digest) -> Sequence[str]:
    """Return what the log would need to answer fully, as sentences; [] if nothing is missing."""
    used = fates.filter(pl.col("fate") == USED)
    said = []
    if not logs_consumption(digest):
        said.append(
            "the trainer logs no `samples_consumed`: which step used a sample is not known. The tables of "
            "verl's asynchronous recipes, of slime and of AReaL record it; a trainer of your own does by "
            "event('samples_consumed', samples=[...], weight_version=...)"
        )
    versions = pl.coalesce("weight_version", "first_weight_version")
    if fates.select(versions.is_null().all()).item():
        said.append(
            "no request logs `weight_version` as a number, so its staleness is not known: SGLang's label is "
            '"default" until the trainer gives its weights a version'
        )
    elif len(used) and used["used_version"].null_count() == len(used):
        said.append("the trainer's own version is not known: `samples_consumed` logs no `weight_version`")
    if len(used) and used["max_staleness"].null_count() == len(used):
        said.append("how stale samples may be is not known: `samples_consumed` logs no `max_staleness`")
    if len(fates) and fates["group"].null_count() == len(fates):
        said.append("no request logs its `group`: how long groups wait for their slowest is not known")
    if len(used) and not logs_calls(digest):
        said.append(
            'no engine call is in the log: how many requests were queued is not known; detail="turn" or '
            '"all" (the default) records calls'
        )
    return said
