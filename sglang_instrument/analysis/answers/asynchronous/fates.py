"""Tell what became of each sample: used by a step of the trainer, thrown away and why, or still waiting."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.schema import SAMPLES_CONSUMED, SAMPLES_DROPPED

USED: Final = "used"
WAITING: Final = "waiting"
UNKNOWN: Final = "unknown"
ABORTED: Final = "aborted"
FILTERED: Final = "filtered"
OVER_SAMPLED: Final = "over_sampled"
STALE: Final = "stale"
TRUNCATED: Final = "truncated"
OTHER: Final = "other"
#: Why samples are thrown away.
REASONS: Final = (ABORTED, FILTERED, OVER_SAMPLED, STALE, TRUNCATED, OTHER)
_ABORT: Final = "abort"  # the engine's finish reason
_LATER_STEPS: Final = 2  # a sample that so many later batches passed over is not waiting any more
_KEYS: Final = (("request_id", "sample"), ("sample", "sample"), ("group", "group"))
_COLUMNS: Final = (
    *("step", "validate", "worker", "request_id", "sample", "group", "start_us", "end_us"),
    *("duration_sec", "response_tokens", "finish_reason", "reward", "error"),
    *("weight_version", "first_weight_version"),
)
_NOT_TOLD: Final = ("row", "next_us", "next_resumes", "reason", "dropped_us", "by_group")
_OF_USE: Final = ("trained_step", "used_us", "used_version", "max_staleness")


def sample_fates(digest: Digest) -> pl.DataFrame:
    """Return one row per training request.

    A request belongs to what a record of the trainer names by its id, by that of its sample, or by that of
    its group: the first such record after the request began.

    Returns:
        The columns of `digest.requests`; generated_tokens: without those that an earlier request had made;
        trained_step, used_us: which step of the trainer took it, and when; used_version: its version
        then; max_staleness: as allowed; fate: USED, WAITING, one of REASONS, or UNKNOWN where the trainer
        logs nothing of its samples; fate_us: when that was decided, null where it was not.
    """
    requests = digest.of_workers().requests.filter(~pl.col("validate")).with_row_index("row")
    key = ["source", "request_id"]
    tokens_of_turns = (
        digest.turns.drop_nulls("response_tokens").group_by(key).agg(of_turns=pl.col("response_tokens").sum())
    )
    requests = requests.join(tokens_of_turns, on=key, how="left", maintain_order="left")
    known = pl.coalesce("response_tokens", "of_turns")  # what failed logs no total
    tokens = known - pl.col("resumed_tokens").fill_null(0).clip(lower_bound=0)
    rows = requests.select("row", *_COLUMNS, "resumed_tokens", generated_tokens=tokens.clip(lower_bound=0))
    samples = digest.samples.filter(~pl.col("validate"))
    consumed = samples.filter(pl.col("event") == SAMPLES_CONSUMED)
    dropped = samples.filter(pl.col("event") == SAMPLES_DROPPED)
    rows = _with_use(rows, consumed)
    why = _matched(rows, dropped, {"reason": "reason", "at_us": "dropped_us"}).drop("by_group")
    rows = rows.join(why, on="row", how="left", maintain_order="left")
    rows = _with_next(rows)
    return _with_fate(rows, consumed).drop(_NOT_TOLD)


def logs_consumption(digest: Digest) -> bool:
    """Return whether the trainer logs which samples it takes."""
    named = pl.col("sample").is_not_null() | pl.col("group").is_not_null()
    is_named = (pl.col("event") == SAMPLES_CONSUMED) & named
    return bool(digest.samples.select(is_named.any()).item())


def _with_use(rows: pl.DataFrame, consumed: pl.DataFrame) -> pl.DataFrame:
    """Add which step took each request; a record without ids tells the version of the trainer in its step."""
    named = {"step": "trained_step", "at_us": "used_us", "weight_version": "used_version"}
    used = _matched(rows, consumed, {**named, "max_staleness": "max_staleness"})
    rows = rows.join(used, on="row", how="left", maintain_order="left")
    known = consumed.drop_nulls("weight_version")
    of_step = known.group_by("step").agg(of_step=pl.col("weight_version").last())
    rows = rows.join(of_step, left_on="trained_step", right_on="step", how="left", maintain_order="left")
    return rows.with_columns(used_version=pl.coalesce("used_version", "of_step")).drop("of_step")


def _matched(rows: pl.DataFrame, named: pl.DataFrame, columns: dict[str, str]) -> pl.DataFrame:
    """Return the first record after each request began that names it: `row`, the columns by new names.

    `by_group` says that it names the group alone.
    """
    renamed = [pl.col(old).alias(new) for old, new in columns.items()]
    matches = []
    for column, key in _KEYS:
        left = rows.select("row", "start_us", id=column).drop_nulls("id").sort("start_us")
        right = named.drop_nulls(key).select(*renamed, id=key, at="at_us").sort("at")
        both = left.join_asof(
            right, left_on="start_us", right_on="at", by="id", strategy="forward", check_sortedness=False
        )
        by_group = pl.lit(key == "group").alias("by_group")
        matches.append(both.filter(pl.col("at").is_not_null()).select("row", by_group, *columns.values()))
    return pl.concat(matches).unique("row", keep="first", maintain_order=True)


def _with_next(rows: pl.DataFrame) -> pl.DataFrame:
    """Add when the next request of a sample began, and whether it went on with the tokens of this one."""
    same = pl.coalesce("sample", "request_id")
    ordered = rows.with_columns(same=same).sort("same", "start_us", maintain_order=True)
    later = pl.col("start_us").shift(-1).over("same")
    resumes = pl.col("resumed_tokens").shift(-1).over("same").fill_null(0) > 0
    return ordered.with_columns(next_us=later, next_resumes=resumes).drop("same").sort("row")


def _with_fate(rows: pl.DataFrame, consumed: pl.DataFrame) -> pl.DataFrame:
    failed = pl.col("error").is_not_null() | (pl.col("finish_reason") == _ABORT).fill_null(False)
    again = failed & (pl.col("next_us") >= pl.col("end_us")).fill_null(False)
    # Of a group that is used, a member that failed is not.
    is_used = pl.col("used_us").is_not_null() & ~(failed & pl.col("by_group").fill_null(False))
    reason = pl.col("reason").fill_null(OTHER)
    known = pl.when(reason.is_in(REASONS)).then(reason).otherwise(pl.lit(OTHER))
    # What a filter rejects may still be taken to fill a batch; what failed has a reason of its own.
    is_dropped = pl.col("dropped_us").is_not_null() & ~((is_used | failed) & (reason == FILTERED))
    is_first = pl.col("dropped_us") <= pl.when(is_used).then("used_us").otherwise(2**62)
    passed_us = _passed_us(rows, consumed)
    unused = pl.lit(UNKNOWN)
    if passed_us is not None:
        passed_over = pl.col("end_us") < passed_us
        unused = pl.when(passed_over).then(pl.lit(OVER_SAMPLED)).otherwise(pl.lit(WAITING))
    fate = (
        pl.when(again & ~pl.col("next_resumes"))
        .then(pl.lit(ABORTED))
        .when(is_dropped & is_first)
        .then(known)
        .when(is_used)
        .then(pl.lit(USED))
        .when(again)
        .then(pl.lit(WAITING))
        .when(failed)
        .then(pl.lit(ABORTED))
        .otherwise(unused)
    )
    ended = pl.when(pl.col("fate") == ABORTED).then(pl.coalesce("dropped_us", "end_us"))
    decided = pl.when(pl.col("fate") == USED).then("used_us").otherwise(pl.coalesce(ended, "dropped_us"))
    of_use = [pl.when(pl.col("fate") == USED).then(name).alias(name) for name in _OF_USE]
    return rows.with_columns(fate=fate).with_columns(fate_us=decided).with_columns(of_use).sort("row")


def _passed_us(rows: pl.DataFrame, consumed: pl.DataFrame) -> int | None:
    """Return a time: batches of later steps passed over what ended before; None if nothing is named."""
    if consumed.filter(pl.col("sample").is_not_null() | pl.col("group").is_not_null()).is_empty():
        return None
    ends = rows.filter(pl.col("used_us").is_not_null()).group_by("used_us").agg(pl.col("end_us").min())
    ends = ends.sort("used_us", descending=True)
    if len(ends) <= _LATER_STEPS:
        return -1
    earliest: int = ends["end_us"][:_LATER_STEPS].min()  # type: ignore[assignment]
    return earliest
