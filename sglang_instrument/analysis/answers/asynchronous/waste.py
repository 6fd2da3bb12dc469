"""Count the tokens that were generated and thrown away, by reason and step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from sglang_instrument.analysis.answers.asynchronous.fates import (
    ABORTED,
    FILTERED,
    OTHER,
    OVER_SAMPLED,
    REASONS,
    STALE,
    TRUNCATED,
    UNKNOWN,
    USED,
    WAITING,
    logs_consumption,
)
from sglang_instrument.analysis.answers.engine.join import callers
from sglang_instrument.analysis.answers.engine.records import engine_files
from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.schema import SAMPLES_DROPPED

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_REQUEST: Final = ["step", "worker", "request_id"]
_LENGTH: Final = "length"  # the engine's finish reason of a reply that was cut at its limit
_NO_USE: Final = (
    "the trainer logs no `samples_consumed`: of replies that ended well it is not known what became. The "
    "tables of verl's asynchronous recipes, of slime and of AReaL record it; a trainer of your own does by "
    "event('samples_consumed', samples=[...])"
)
_NO_DROP: Final = (
    "no `samples_dropped` with the reason {reasons} is in the log: either there was nothing to drop, or the "
    "trainer does not log it. The tables of verl's asynchronous recipes record it, that of slime what is "
    "filtered; a trainer of your own does by event('samples_dropped', samples=[...], reason='{first}')"
)
#: What becomes of tokens: `waste_table` has a column of each, and these add up to `generated_tokens`.
FATES: Final = (USED, WAITING, UNKNOWN, *REASONS)


def tokens_of(fate: str) -> str:
    """Return the name of the column with the tokens of one of FATES."""
    return f"{fate}_tokens"


def waste_table(fates: pl.DataFrame, digest: Digest) -> pl.DataFrame:
    """Return one row per step of the rollout.

    Args:
        fates: Of `fates.sample_fates`.
        digest: Of the run.

    Returns:
        step; requests; generated_tokens: of all replies, null if no request logs its tokens; the column
        `tokens_of` each of FATES, which add up to `generated_tokens`, null where the trainer logs nothing of
        the kind; wasted_tokens: those of REASONS, null if the log tells none of them; uncounted_requests:
        requests whose tokens are not logged; used_at_limit_tokens: of `used_tokens`, those of replies that
        ended at their limit; equal_rewards_tokens: of `used_tokens`, those of groups whose rewards are all
        equal, which teach a group-relative trainer nothing; null where use, or the reason of an end, or
        groups and rewards are not logged.
    """
    tokens = pl.col("generated_tokens")
    rows = fates.with_columns(flat=_is_flat(fates))
    known_fates = _known(digest)
    is_counted = tokens.count() > 0
    by_fate = [
        pl.when(is_counted & (name in known_fates))
        .then(tokens.filter(pl.col("fate") == name).sum())
        .alias(tokens_of(name))
        for name in FATES
    ]
    is_used = pl.col("fate") == USED
    flat = tokens.filter(is_used & pl.col("flat").fill_null(False)).sum()
    cut = tokens.filter(is_used & (pl.col("finish_reason") == _LENGTH).fill_null(False)).sum()
    tells_cut = is_counted & (USED in known_fates) & (fates["finish_reason"].count() > 0)
    tells_flat = is_counted & (USED in known_fates) & (pl.col("flat").count() > 0)
    table = rows.group_by("step").agg(
        *by_fate,
        requests=pl.len().cast(pl.Int64),
        generated_tokens=pl.when(is_counted).then(tokens.sum()),
        uncounted_requests=tokens.null_count().cast(pl.Int64),
        used_at_limit_tokens=pl.when(tells_cut).then(cut),
        equal_rewards_tokens=pl.when(tells_flat).then(flat),
    )
    reasons = list(map(tokens_of, REASONS))
    wasted = pl.when(pl.any_horizontal(pl.col(reasons).is_not_null())).then(pl.sum_horizontal(reasons))
    return table.with_columns(wasted_tokens=wasted).sort("step")


def with_engine_tokens(run: Run, fates: pl.DataFrame) -> pl.DataFrame:
    """Return `sample_fates` with the engines' own count of tokens for requests that failed, or log none."""
    lacks = pl.col("generated_tokens").is_null() | pl.col("error").is_not_null()
    if not fates.select(lacks.any()).item() or not engine_files(run):
        return fates
    requests = cached_engine_requests(run)
    tokens = requests.select("rid", "completion_tokens").drop_nulls()
    calls = callers(run, run.files, requests).join(tokens, on="rid", how="inner").filter(~pl.col("validate"))
    engine_tokens = calls.group_by(_REQUEST).agg(of_engine=pl.col("completion_tokens").sum())
    rows = fates.join(engine_tokens, on=_REQUEST, how="left", maintain_order="left")
    generated = (
        pl.when(lacks).then(pl.coalesce("of_engine", "generated_tokens")).otherwise("generated_tokens")
    )
    return rows.with_columns(generated_tokens=generated).drop("of_engine")


def totals(table: pl.DataFrame) -> dict[str, int | None] | None:
    """Return the sums of `waste_table` over its steps; None without a step."""
    if table.is_empty():
        return None
    return table.select(_known_sum(name) for name in table.columns[1:]).row(0, named=True)


def _known_sum(name: str) -> pl.Expr:
    """Return the sum of the known values; null if none is known."""
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name)


def missing_of(fates: pl.DataFrame, digest: Digest, engine: dict[str, int | None] | None) -> list[str]:
    """Return what the log would need to answer fully, as sentences; [] if nothing is missing.

    Args:
        fates: Of `fates.sample_fates`.
        digest: Of the run.
        engine: Of `engine_waste`.
    """
    said, known_fates = [], _known(digest)
    uncounted = fates["generated_tokens"].null_count()
    if uncounted and uncounted == len(fates):
        said.append("no request logs its tokens: how many were generated is not known")
    elif uncounted:
        said.append(
            f"{uncounted:,} of {len(fates):,} requests log no tokens, as those that end by an exception; the "
            "engines' own logs count them, with engine_detail=requests"
        )
    if USED not in known_fates:
        said.append(_NO_USE)
    silent = [name for name in (FILTERED, STALE, TRUNCATED) if name not in known_fates]
    if silent:
        said.append(_NO_DROP.format(reasons=" or ".join(silent), first=silent[0]))
    if ABORTED not in known_fates:
        said.append("no request logs why it ended (`finish_reason`): which ones were aborted is not known")
    if len(fates) and not _is_flat(fates).count():
        said.append("no `group` has the `reward` of all its requests: which ones are all equal is not known")
    if engine is None:
        said.append(
            "the engines' own processes logged nothing: retractions are not known. SGLANG_INSTRUMENT=1 in "
            'their environment records them, with engine_detail="requests" (the default)'
        )
    elif engine["abandoned_requests"]:
        abandoned = engine["abandoned_requests"]
        said.append(f"{abandoned:,} requests of the engines log no tokens: nobody waited for them")
    return said


def _known(digest: Digest) -> set[str]:
    """Return which of FATES the log can tell; of the others it is not known that there are none."""
    ends = digest.of_workers().requests.select((pl.col("finish_reason", "error").count() > 0).any())
    known = {UNKNOWN, ABORTED} if any(ends.row(0)) else {UNKNOWN}
    dropped = digest.samples.filter(event=SAMPLES_DROPPED)["reason"].fill_null(OTHER).unique()
    known |= {reason if reason in REASONS else OTHER for reason in dropped}
    return known | {USED, WAITING, OVER_SAMPLED} if logs_consumption(digest) else known


def _is_flat(fates: pl.DataFrame) -> pl.Series:
    """Return whether all rewards of a sample's group are equal; null where they are not known."""
    group = ["step", "group"]
    reward = pl.col("reward")
    whole = (reward.null_count() == 0) & (pl.len() > 1)
    equal = pl.when(whole).then(reward.max() == reward.min())
    flat_groups = fates.filter(pl.col("group").is_not_null()).group_by(group).agg(flat=equal)
    return fates.select(group).join(flat_groups, on=group, how="left", maintain_order="left")["flat"]


def engine_waste(run: Run) -> dict[str, int | None] | None:
    """Return what the engines' own processes logged; None without such logs.

    Returns:
        requests; generated_tokens: of all their replies; aborted_tokens: of these, of requests that were
        aborted; abandoned_requests: those that ended without an answer, whose tokens are not known;
        retractions: how often a request was taken back; computed_again_tokens: those that the engine had to
        compute again for them. Null where the engine's log does not tell.
    """
    if not engine_files(run):
        return None
    table = cached_engine_requests(run)
    if table.is_empty():
        return None
    tokens = pl.col("completion_tokens")
    is_aborted = pl.col("finish_reason") == "abort"
    tells_ends = (tokens.count() > 0) & (pl.col("finish_reason").count() > 0)
    row = table.select(
        requests=pl.len().cast(pl.Int64),
        generated_tokens=_known_sum("completion_tokens"),
        aborted_tokens=pl.when(tells_ends).then(tokens.filter(is_aborted.fill_null(False)).sum()),
        abandoned_requests=tokens.null_count().cast(pl.Int64),
        retractions=_known_sum("retractions"),
        computed_again_tokens=_known_sum("retracted_tokens"),
    )
    return row.row(0, named=True)
