"""Show how many turns requests take, and where the time goes turn by turn."""

import polars as pl

from sglang_instrument.analysis.answers.requests import without_unrecorded
from sglang_instrument.analysis.digests.digest import KINDS, Digest


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


def tool_table(spans: pl.DataFrame) -> pl.DataFrame:
    """Return tools and interactions by name: event, tool, count, total_sec, p50_sec, p99_sec, max_sec."""
    used = spans.filter(pl.col("phase").cast(pl.String).is_in(["tool", "interaction"]))
    duration = pl.col("duration_sec")
    return (
        used.group_by(pl.col("event").cast(pl.String), pl.col("tool").cast(pl.String))
        .agg(
            count=pl.len().cast(pl.Int64),
            total_sec=duration.sum(),
            p50_sec=duration.quantile(0.5, "linear"),
            p99_sec=duration.quantile(0.99, "linear"),
            max_sec=duration.max(),
        )
        .sort("total_sec", "event", descending=[True, False])
    )
