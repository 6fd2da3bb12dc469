"""Show how long responses are, what they cost, whether long ones earn more, and how well they are drafted."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.steps import STEP, step_table
from sglang_instrument.analysis.digests.digest import Digest

_CUT: Final = "length"  # the finish reason of a response that hit a cap
_DECILES: Final = 10
_Z95: Final = 1.959964


def length_table(digest: Digest) -> pl.DataFrame:
    """Return one row per step.

    Returns:
        step, validate; requests; min_tokens, mean_tokens, p95_tokens, max_tokens: of the responses;
        capped_share: the share of requests that hit a cap; tokens_per_sec: all tokens over the step's
        duration; reward: the mean.
    """
    tokens = pl.col("response_tokens")
    known = digest.of_workers().requests.drop_nulls("response_tokens")
    table = known.group_by(STEP).agg(
        requests=pl.len().cast(pl.Int64),
        min_tokens=tokens.min(),
        mean_tokens=tokens.mean(),
        p95_tokens=tokens.quantile(0.95, "linear"),
        max_tokens=tokens.max(),
        capped_share=(pl.col("finish_reason") == _CUT).mean(),
        total=tokens.sum(),
        reward=pl.col("reward").mean(),
    )
    durations = step_table(digest).select(*STEP, "duration_sec")
    joined = table.join(durations, on=STEP, how="left").sort("validate", "step")
    return joined.with_columns(tokens_per_sec=pl.col("total") / pl.col("duration_sec")).drop(
        "total", "duration_sec"
    )


def reward_by_length(digest: Digest) -> pl.DataFrame:
    """Return one row per decile of the requests by length, the shortest first; none without rewards.

    Returns:
        decile (1 to 10), requests, from_tokens, to_tokens, mean_sec of a request, reward: the mean;
        reward_at_least, reward_at_most: mean -+ 1.96 s / sqrt(n), with s the sample's standard deviation, cut
        at the smallest and the largest reward.
    """
    known = digest.of_workers().requests.drop_nulls(["response_tokens", "reward"])
    rank = pl.col("response_tokens").rank("ordinal") - 1
    error = _Z95 * pl.col("reward").std() / pl.len().sqrt()
    # A mean cannot lie outside of all rewards.
    least, most = pl.lit(known["reward"].min()), pl.lit(known["reward"].max())
    return (
        known.with_columns(decile=(rank * _DECILES // pl.len() + 1).cast(pl.Int64))
        .group_by("decile")
        .agg(
            requests=pl.len().cast(pl.Int64),
            from_tokens=pl.col("response_tokens").min(),
            to_tokens=pl.col("response_tokens").max(),
            mean_sec=pl.col("duration_sec").mean(),
            reward=pl.col("reward").mean(),
            reward_at_least=(pl.col("reward").mean() - error).clip(lower_bound=least),
            reward_at_most=(pl.col("reward").mean() + error).clip(upper_bound=most),
        )
        .sort("decile")
    )


def speculation_table(digest: Digest) -> pl.DataFrame:
    """Return one row per step with replies whose drafted tokens were verified; none where nobody logged it.

    Returns:
        step, validate; replies; tokens and verifications: of these replies; tokens_per_verification:
        with the one that the model writes itself, so 1 means that no drafted token was right.
    """
    return _verified(digest).group_by(STEP).agg(*_ACCEPTED).sort("validate", "step")


def speculation_by_length(digest: Digest) -> pl.DataFrame:
    """Return one row per decile of these replies by length, the shortest first.

    Returns:
        decile (1 to 10), from_tokens, to_tokens; replies, tokens, verifications, tokens_per_verification: as
        in `speculation_table`.
    """
    rank = pl.col("response_tokens").rank("ordinal").cast(pl.Int64) - 1
    ranked = _verified(digest).with_columns(decile=rank * _DECILES // pl.len() + 1)
    ends = (pl.col("response_tokens").min(), pl.col("response_tokens").max())
    table = ranked.group_by("decile").agg(*_ACCEPTED, from_tokens=ends[0], to_tokens=ends[1])
    return table.sort("decile")


_ACCEPTED: Final = (
    pl.len().cast(pl.Int64).alias("replies"),
    pl.col("response_tokens").sum().alias("tokens"),
    pl.col("verifications").sum(),
    (pl.col("response_tokens").sum() / pl.col("verifications").sum()).alias("tokens_per_verification"),
)


def _verified(digest: Digest) -> pl.DataFrame:
    known = (pl.col("verifications") > 0) & (pl.col("response_tokens") > 0)
    return digest.of_workers().turns.filter(known)
