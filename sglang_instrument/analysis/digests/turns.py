"""Sum up the parts of requests by turn: a tool or interaction belongs to the turn whose reply it answers."""

from collections.abc import Mapping
from typing import Final

import polars as pl

from sglang_instrument.analysis.timing.grouped_sums import US, is_first

#: Kinds of work within a request, with their phases. A span inside another of its kind is not counted again.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "engine": ("generate", "engine"),
    "tool": ("tool",),
    "interaction": ("interaction",),
    "reward": ("reward",),
}
REQUEST: Final = ["place", "request_id", "attempt"]
_TURN: Final = [*REQUEST, "turn"]
ENGINE: Final = list(KINDS).index("engine")
#: Calls that overlap by less follow one another: logs of other projects round their times.
LEAST_OVERLAP_US: Final = 1_000
_CALLS: Final = pl.col("kind") == ENGINE
#: A call waits for its server before it: that is a part of the turn that the call begins.
_WAITS: Final = _CALLS & (pl.col("event").cast(pl.String) == "server_wait")
_ANSWERS: Final = pl.col("kind").is_in([list(KINDS).index(kind) for kind in ("tool", "interaction")])


def sum_by_number(parts: pl.DataFrame) -> pl.DataFrame:
    """Return one row per request and turn number (null for none), in order.

    Args:
        parts: Place, request_id, attempt, turn, kind (its number in `KINDS`), event, times, tokens, version
            and verifications of each part, and whether it is `unended`.
    """
    parts = _numbered(parts.filter(pl.col("request_id").is_not_null()))
    logged = _summed(_joined(parts))
    # The reference, and earlier versions of our tables, log tools under the number of the reply after them.
    early = logged.filter(pl.col("answered_us") < pl.col("asked_us")).select(*_TURN, "asked_us")
    if len(early):
        known = parts.join(early, on=_TURN, how="left", maintain_order="left")
        wrong = _ANSWERS & (pl.col("start_us") < pl.col("asked_us")).fill_null(False)
        parts = known.with_columns(turn=pl.when(~wrong).then("turn")).drop("asked_us")
        logged = _summed(_joined(_numbered(parts)))
    return logged


def _numbered(parts: pl.DataFrame) -> pl.DataFrame:
    """Give the parts without a turn's number the one that follows from their order; rewards have none.

    In a request whose engine calls have no numbers, each call begins a turn, with the wait for its server;
    calls that overlap are the samples of one turn.
    """
    unnumbered = pl.col("turn").is_null() & (_CALLS | _ANSWERS)
    asked = parts.filter(unnumbered).select(REQUEST).unique()
    if asked.is_empty():
        return parts
    known = parts.join(asked, on=REQUEST, how="anti")
    mine = parts.join(asked, on=REQUEST, how="semi").sort(*REQUEST, "start_us", ~_CALLS)
    ended = pl.when(_CALLS).then("end_us").cum_max().forward_fill().shift(1).over(REQUEST)
    mine = mine.with_columns(
        reached_us=ended, has_numbers=(_CALLS & pl.col("turn").is_not_null()).any().over(REQUEST)
    )
    beside = (
        unnumbered
        & _CALLS
        & ~pl.col("has_numbers")
        & (pl.col("reached_us") - pl.col("start_us") > LEAST_OVERLAP_US)
    )
    mine = mine.with_columns(beside=beside.fill_null(False))
    by_log = pl.when(_CALLS).then("turn").forward_fill().over(REQUEST)
    begins = _CALLS & ~_WAITS & ~pl.col("beside")
    begun = begins.cum_sum().over(REQUEST).cast(pl.Int64)
    of_last = pl.max_horizontal(begins.sum().over(REQUEST).cast(pl.Int64) - 1, 0)
    by_order = pl.min_horizontal(pl.when(_WAITS).then(begun).otherwise(begun - 1), of_last).clip(
        lower_bound=0
    )
    turn = pl.when(~unnumbered).then("turn").when("has_numbers").then(by_log).otherwise(by_order)
    return pl.concat([known, mine.with_columns(turn=turn).select(known.columns)])


def _joined(parts: pl.DataFrame) -> pl.DataFrame:
    """Let several calls of a turn have its tokens, and each the time that no earlier one of them has.

    The engine time of a turn is the union of its calls. Its tokens are those of all calls, whether they are
    samples side by side or one reply in pieces; one sample without tokens makes them unknown.
    """
    calls = parts.filter(_CALLS & pl.col("turn").is_not_null())
    is_several = calls.select(_TURN).is_duplicated()
    if not is_several.any():
        return parts
    several = calls.filter(is_several).sort(*_TURN, "start_us", "end_us")
    reached_us = pl.col("end_us").cum_max().shift(1).over(_TURN)
    several = several.with_columns(overlap_us=(reached_us - pl.col("start_us")).fill_null(0))
    beside = (pl.col("overlap_us") > LEAST_OVERLAP_US).any().over(_TURN)
    sums = []
    for name in ("response_tokens", "verifications"):
        counts = pl.col(name).count().over(_TURN)
        replies = (~_WAITS).sum().over(_TURN)
        is_known = pl.when(beside).then(counts == replies).otherwise(counts > 0)
        sums.append(pl.when(is_known).then(pl.col(name).sum().over(_TURN)).alias(name))
    fresh_us = pl.col("end_us") - pl.col("start_us") - pl.col("overlap_us")
    fresh_sec = pl.when(pl.col("overlap_us") > 0).then(fresh_us.clip(lower_bound=0) * US)
    several = several.with_columns(*sums, duration_sec=pl.coalesce(fresh_sec, "duration_sec"))
    others = pl.concat([parts.filter(~(_CALLS & pl.col("turn").is_not_null())), calls.filter(~is_several)])
    return pl.concat([others, several.select(parts.columns)])


def _summed(parts: pl.DataFrame) -> pl.DataFrame:
    sums = [
        pl.col("duration_sec").filter(pl.col("kind") == number).sum().alias(f"{kind}_sec")
        for number, kind in enumerate(KINDS)
    ]
    return (
        parts.group_by(_TURN)
        .agg(
            *sums,
            event=pl.col("event").get(pl.col("duration_sec").arg_max()),
            longest_sec=pl.col("duration_sec").max(),
            start_us=pl.col("start_us").min(),
            end_us=pl.col("end_us").max(),
            asked_us=pl.col("start_us").filter(_CALLS).min(),
            answered_us=pl.col("start_us").filter(_ANSWERS).min(),
            response_tokens=pl.col("response_tokens").filter(_CALLS).max(),
            weight_version=pl.col("weight_version").filter(_CALLS).max(),
            verifications=pl.col("verifications").filter(_CALLS).max(),
            unended=pl.col("unended").any(),
            called=_CALLS.any(),
        )
        .sort(_TURN)
    )


def turns_of(logged: pl.DataFrame) -> pl.DataFrame:
    """Return one row per turn: an engine call, with the rows of other numbers up to the next engine call."""
    logged = logged.drop_nulls("turn")
    # verl may log an interaction under the number of a turn that never called the engine.
    first = is_first(REQUEST)
    calls = pl.col("called").cast(pl.Int64).cum_sum()
    earlier = pl.when(first).then(calls - pl.col("called")).forward_fill()
    turn = (first | (pl.col("called") & (calls - earlier > 1))).cum_sum()
    return (
        logged.group_by(number=turn, maintain_order=True)
        .agg(
            *(pl.col(name).first() for name in REQUEST),
            *(pl.col(f"{kind}_sec").sum() for kind in KINDS),
            turn=pl.col("turn").filter(pl.col("called")).first(),
            event=pl.col("event").get(pl.col("longest_sec").arg_max()),
            start_us=pl.col("start_us").min(),
            end_us=pl.col("end_us").max(),
            response_tokens=pl.col("response_tokens").max(),
            weight_version=pl.col("weight_version").max(),
            verifications=pl.col("verifications").max(),
            unended=pl.col("unended").any(),
        )
        .drop_nulls("turn")
    )
