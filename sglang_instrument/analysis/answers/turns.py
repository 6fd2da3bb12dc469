"""Show how many turns requests take, and where the time goes turn by turn."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.requests import without_unrecorded
from sglang_instrument.analysis.digests.digest import KINDS, Digest

_NAMED: Final = ["event", "tool"]
_FEWEST: Final = 16  # calls; of fewer, nothing is said of their queue


def turn_table(digest: Digest, by_step: bool = False, whole: Digest | None = None) -> pl.DataFrame:
    """Return one row per turn number (0-based), over the run or by step.

    Args:
        digest: Of the steps to count.
        by_step: Whether to count each step by itself.
        whole: That of the whole run, if `digest` is a part of it.

    Returns:
        step, validate (by step only), turn; requests: how many got this far; unended: of how many
        the log lacks the end of it; engine_sec, tool_sec,
        interaction_sec: sums; null of a kind of which the run has none; engine_p50_sec, engine_p99_sec: of
        one request's engine time in this turn; response_tokens: sum; null if no request logs its tokens.
    """
    key = ["step", "validate", "turn"] if by_step else ["turn"]
    engine, tokens = pl.col("engine_sec"), pl.col("response_tokens")
    table = (
        digest.of_workers()
        .turns.group_by(key)
        .agg(
            *(pl.col(f"{kind}_sec").sum() for kind in KINDS if kind != "reward"),
            requests=pl.len().cast(pl.Int64),
            unended=pl.col("unended").sum().cast(pl.Int64),
            engine_p50_sec=engine.quantile(0.5, "linear"),
            engine_p99_sec=engine.quantile(0.99, "linear"),
            response_tokens=pl.when(tokens.count() > 0).then(tokens.sum()),
        )
        .sort(key)
    )
    return without_unrecorded(table, digest if whole is None else whole)


def turn_counts(digest: Digest) -> pl.DataFrame:
    """Return how many requests took how many turns: `turns`, `requests`, `share`, `mean_sec` of a request."""
    requests = digest.of_workers().requests.drop_nulls("turns")
    table = requests.group_by("turns").agg(
        requests=pl.len().cast(pl.Int64), mean_sec=pl.col("duration_sec").mean()
    )
    return table.with_columns(share=pl.col("requests") / pl.col("requests").sum()).sort("turns")


def turn_durations(digest: Digest) -> pl.DataFrame:
    """Return how long requests of each step took by their number of turns.

    The reference's script `turn_distribution` draws these means.

    Returns:
        step, validate, turns; requests: how many took so many turns; share: of the step's requests; mean_sec,
        p50_sec, max_sec: their durations.
    """
    requests = digest.of_workers().requests.drop_nulls(["step", "turns", "duration_sec"])
    duration = pl.col("duration_sec")
    table = requests.group_by("step", "validate", "turns").agg(
        requests=pl.len().cast(pl.Int64),
        mean_sec=duration.mean(),
        p50_sec=duration.quantile(0.5, "linear"),
        max_sec=duration.max(),
    )
    share = pl.col("requests") / pl.col("requests").sum().over("step", "validate")
    return table.with_columns(share=share).sort("validate", "step", "turns")


def tool_table(spans: pl.DataFrame) -> pl.DataFrame:
    """Return tools, interactions and rewards by name.

    Returns:
        event, tool, count, total_sec, p50_sec, p99_sec, max_sec; mean_in_flight, most_in_flight: how many of
        these calls went on at once, the mean over the time in which any did; queue_sec: by how much the
        median of the calls that began with the most in flight (the upper half) took longer than that of the
        calls that began with the fewest (the lowest tenth), at least 0; null with fewer than 16 calls, or
        where as many were in flight at all times.
    """
    used = spans.filter(pl.col("phase").cast(pl.String).is_in(["tool", "interaction", "reward"]))
    used = used.select(pl.col("event", "tool").cast(pl.String), "start_us", "duration_sec")
    duration, in_flight = pl.col("duration_sec"), pl.col("in_flight")
    fewest = in_flight.quantile(0.1, "lower")
    is_crowded = (in_flight > fewest) & (in_flight >= in_flight.median())
    queue_sec = duration.filter(is_crowded).median() - duration.filter(in_flight <= fewest).median()
    busy_sec = pl.col("busy_us").first() / 1e6
    return (
        _with_in_flight(used)
        .group_by(_NAMED)
        .agg(
            count=pl.len().cast(pl.Int64),
            total_sec=duration.sum(),
            p50_sec=duration.quantile(0.5, "linear"),
            p99_sec=duration.quantile(0.99, "linear"),
            max_sec=duration.max(),
            mean_in_flight=pl.when(busy_sec > 0).then(duration.sum() / busy_sec),
            most_in_flight=in_flight.max(),
            queue_sec=pl.when(pl.len() >= _FEWEST).then(queue_sec.clip(lower_bound=0.0)),
        )
        .sort("total_sec", "event", descending=[True, False])
    )


def _with_in_flight(calls: pl.DataFrame) -> pl.DataFrame:
    """Add in_flight: the calls of its name that went on when one began, with it; busy_us: while any did."""
    calls = calls.with_columns(end_us=pl.col("start_us") + (pl.col("duration_sec") * 1e6).cast(pl.Int64))
    begun = calls.select(*_NAMED, "duration_sec", at_us="start_us", change=pl.lit(1, pl.Int64))
    ended = calls.select(*_NAMED, duration_sec=None, at_us="end_us", change=pl.lit(-1, pl.Int64))
    edges = pl.concat([begun, ended], how="vertical_relaxed").sort("at_us", "change", maintain_order=True)
    edges = edges.with_columns(in_flight=pl.col("change").cum_sum().over(_NAMED))
    passed_us = pl.when(pl.col("in_flight").shift(1) > 0).then(pl.col("at_us").diff())
    return edges.with_columns(busy_us=passed_us.sum().over(_NAMED)).drop_nulls("duration_sec")
