"""Lengths of the responses by step, and the rewards of short and long ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import VALIDATE
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _saved_interval(row: Mapping[str, Any]) -> str | None:
    return None if row["low"] is None else f"{row['low']:.3g} .. {row['high']:.3g}"


def _knee(row: Mapping[str, Any]) -> str:
    return "knee" if row["is_knee"] else ""


def _lengths(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.lengths import length_table

    return length_table(run.digest)


def _rewards(run: Run) -> pl.DataFrame:
    import polars as pl

    from sglang_instrument.analysis.answers.lengths import reward_by_length

    return reward_by_length(run.digest.filter(~pl.col("validate")))


def from_to(row: Mapping[str, Any]) -> str:
    """Return the shortest and the longest of a tenth, in tokens."""
    return f"{row['from_tokens']:,} - {row['to_tokens']:,}"


CAPS: Final = Table(
    name="caps",
    row="a cap on responses, the highest first: what it would save, and what it would cut",
    commands=("lengths",),
    option="--caps",
    columns=(
        Column(
            "cap",
            "most tokens, turns or seconds of a response; of samples, the share begun beyond need",
            "number",
        ),
        Column("saves_sec", "seconds that a step would save on average: simulated, not measured", "time"),
        Column("low", "begin of the 80 % interval, in seconds", "number", terminal=False),
        Column("high", "end of it", "number", terminal=False),
        Column(
            "interval",
            "the 80 % interval of the saving, in seconds",
            cell=_saved_interval,
            json=False,
            frame=False,
            gives_way=2,
        ),
        Column("share", "of a step that it would save", "share"),
        Column("ended_early", "responses that would end early", "count"),
        Column("cut_share", "of all responses, those", "share", title="cut"),
        Column(
            "cut_reward", "mean recorded reward of those: what is at risk", "number", title="their reward"
        ),
        Column("cut_reward_at_least", "begin of its 95 % interval", "number", gives_way=3, title="at least"),
        Column("cut_reward_at_most", "end of it", "number", gives_way=3, title="at most"),
        Column("mean_reward", "mean recorded reward of all", "number", gives_way=1),
        Column(
            "is_knee",
            "the knee: behind it, a second saved costs more responses",
            "flag",
            cell=_knee,
            title="knee",
        ),
    ),
)
LENGTHS: Final = Table(
    name="lengths",
    row="a step",
    commands=("lengths",),
    make=_lengths,
    columns=(
        Column("step", "its number", "id"),
        VALIDATE,
        Column("requests", "how many with a known length", "count"),
        Column("min_tokens", "tokens of the shortest response", "count", 1, formerly="min"),
        Column("mean_tokens", "mean tokens of a response", "rounded", formerly="mean"),
        Column("p95_tokens", "95 % of the responses have at most so many tokens", "rounded", formerly="p95"),
        Column("max_tokens", "tokens of the longest response", "count", formerly="max"),
        Column(
            "capped_share",
            'share of the responses that reached a cap (finish reason "length")',
            "share",
            formerly="cut",
        ),
        Column("tokens_per_sec", "all tokens by the step's time", "rounded", title="tokens/s"),
        Column("reward", "mean reward", "number"),
    ),
)

REWARDS_BY_LENGTH: Final = Table(
    name="rewards_by_length",
    row="a tenth of the requests by the length of the response, the shortest first",
    commands=("lengths",),
    make=_rewards,
    columns=(
        Column("decile", "the tenth, from 1", "count", terminal=False),
        Column("tokens", "its shortest and its longest response", cell=from_to, json=False, frame=False),
        Column("from_tokens", "tokens of its shortest response", "count", terminal=False),
        Column("to_tokens", "tokens of its longest response", "count", terminal=False),
        Column("requests", "how many", "count"),
        Column("mean_sec", "mean duration of a request", "time"),
        Column("reward", "mean reward", "number"),
        Column("reward_at_least", "begin of the 95 % interval of the mean reward", "number", formerly="low"),
        Column("reward_at_most", "end of the 95 % interval of the mean reward", "number", formerly="high"),
    ),
)
