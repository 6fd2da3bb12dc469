"""Turns of requests, a row each, and what `turns` prints: a row for each number of a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import (
    ATTEMPT,
    END,
    START,
    STEP,
    UNENDED,
    UNENDED_COUNT,
    VALIDATE,
    WORKER,
)
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.requests import without_unrecorded

    turns = without_unrecorded(run.everything.of_workers().turns, run.everything)
    return turns.sort("validate", "step", "worker", "request_id", "attempt", "turn")


TURNS: Final = Table(
    name="turns",
    row="a turn of a request",
    make=_make,
    is_stored=True,
    columns=(
        STEP,
        VALIDATE,
        WORKER,
        Column("request_id", "as logged; with `attempt`, unique within step, validate and worker"),
        ATTEMPT,
        Column("turn", "its number", "ordinal"),
        Column("event", "its longest part"),
        START,
        END,
        Column("response_tokens", "tokens of its reply", "count"),
        Column(
            "weight_version",
            "version of the weights of its reply; null if not logged, or no number",
            "count",
        ),
        Column(
            "verifications",
            "passes of the model that checked drafted tokens; null if not logged",
            "count",
        ),
        Column("engine_sec", "its time in calls of the engine", "time"),
        Column("tool_sec", "its time in tools; concurrent ones count one by one", "time"),
        Column("interaction_sec", "its time in interactions", "time"),
        Column("reward_sec", "its time in rewards", "time"),
        UNENDED,
    ),
)

TURNS_BY_NUMBER: Final = Table(
    name="turns_by_number",
    row="a turn's number: the first, second ... reply of requests. A terminal sums up all steps; --json has "
    "a row for each step and turn",
    commands=("turns",),
    columns=(
        Column("step", "the training step", "count", terminal=False),
        VALIDATE,
        Column(
            "turn",
            "its number; null where only the engine's processes logged, whose calls are one row",
            "ordinal",
        ),
        Column("requests", "how many requests reach this turn", "count"),
        UNENDED_COUNT,
        Column("engine_sec", "time of all its engine calls", "time"),
        Column(
            "engine_p50_sec",
            "half of these calls took at most this long",
            "time",
            gives_way=1,
            former_title="p50",
        ),
        Column(
            "engine_p99_sec",
            "99 % of these calls took at most this long",
            "time",
            gives_way=2,
            former_title="p99",
        ),
        Column("tool_sec", "time of the tools that its replies asked for", "time"),
        Column("interaction_sec", "time of interactions with the environment", "time", if_any=True),
        Column("response_tokens", "tokens of its replies", "count", former_title="tokens"),
        Column(
            "prompt_tokens", "tokens of its prompts, of calls that tell the cache", "count", terminal=False
        ),
        Column("cached_tokens", "of these, tokens that the engine had in its cache", "count", terminal=False),
        Column(
            "cached_share",
            "share of prompt_tokens that the engine had in its cache",
            "share",
            former_title="cached",
        ),
        Column(
            "ended_share",
            "share of all requests that ended with this turn",
            "share",
            json=False,
            former_title="ended",
        ),
    ),
)

TURN_COUNTS: Final = Table(
    name="turn_counts",
    row="a number of turns",
    commands=("turns",),
    columns=(
        Column("turns", "how many turns", "count"),
        Column("requests", "how many requests took so many", "count"),
        Column("share", "of all requests", "share"),
        Column("mean_sec", "mean duration of these requests", "time"),
    ),
)


def _durations(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.turns import turn_durations

    return turn_durations(run.digest)


TURN_DURATIONS: Final = Table(
    name="turn_durations",
    row="a step and a number of turns. A terminal has a row for each step, a column for each number of turns",
    commands=("turns",),
    option="--over-steps",
    make=_durations,
    columns=(
        Column("step", "the training step", "id"),
        VALIDATE,
        Column("turns", "how many turns", "count", terminal=False),
        Column("requests", "how many requests of the step took so many", "count", terminal=False),
        Column("share", "of the requests of the step", "share", terminal=False),
        Column("mean_sec", "mean duration of these requests", "time", terminal=False),
        Column("p50_sec", "half of them took at most this long", "time", terminal=False),
        Column("max_sec", "the longest of them", "time", terminal=False),
    ),
)
