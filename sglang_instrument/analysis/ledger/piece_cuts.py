"""Cut the pieces of paths where an event loop was blocked, at the parts of engine calls, and at barriers."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.intervals import clipped

STEP: Final = ["step", "validate"]
STEP_OF_WORKER: Final = [*STEP, "worker"]
#: The events of the part "engine" where the engine's own logs tell them, in the order of a call.
IN_ENGINE: Final = ("queue", "prefill", "transfer", "decode")


def blocked_apart(path: pl.DataFrame) -> pl.DataFrame:
    """Split each piece in two: first the blocked time, then the rest."""
    blocked = path.filter(pl.col("blocked_sec") > 0)
    until = pl.min_horizontal("to_us", pl.col("from_us") + microseconds("blocked_sec"))
    blocked = blocked.with_columns(part=pl.lit("blocked loop"), to_us=until)
    rest = path.with_columns(from_us=pl.when(pl.col("blocked_sec") > 0).then(until).otherwise("from_us"))
    return pl.concat([rest, blocked])


def engine_apart(path: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Split the pieces of engine calls: first the queue, then its other parts, then what is not known.

    A blocked event loop delays the end of a call, not the engine: the blocked time, which comes first in its
    piece, is no time of the engine's.
    """
    key = [*STEP_OF_WORKER, "request_id"]
    spent = [microseconds(f"{event}_sec").fill_null(0) for event in IN_ENGINE]
    until = [f"{event}_until" for event in IN_ENGINE]
    after = [pl.sum_horizontal(spent[: number + 1]) for number in range(len(spent))]
    called = calls.select(
        *key,
        *((pl.col("called_us") + sec).alias(name) for sec, name in zip(after, until, strict=True)),
        from_us="called_us",
        call_ends=pl.col("called_us") + microseconds("call_sec"),
    )
    is_call = (pl.col("part") == "engine") & pl.col("request_id").is_not_null()
    # A piece belongs to the call of its request that began last; to one only, so that no time counts twice.
    both = pl.concat([called.drop_nulls(), path.filter(is_call)], how="diagonal_relaxed")
    both = both.sort(*key, "from_us", maintain_order=True)
    both = both.with_columns(pl.col(*until, "call_ends").forward_fill().over(key)).drop_nulls("part")
    last = pl.min_horizontal("to_us", pl.col("call_ends").fill_null(pl.col("from_us")))
    blocked = microseconds("blocked_sec")
    both = both.with_columns(pl.min_horizontal(pl.col(name) + blocked, last).alias(name) for name in until)
    parts = [path.filter(~is_call)]
    for event, since, name in zip(IN_ENGINE, ["from_us", *until], until, strict=False):
        parts.append(clipped(both, since, name).with_columns(event=pl.lit(event)).select(path.columns))
    parts.append(clipped(both, until[-1], "to_us").select(path.columns))
    return pl.concat(parts)


def with_segment(pieces: pl.DataFrame, barriers: pl.DataFrame) -> pl.DataFrame:
    """Count for each piece, by worker and time, the barriers that its worker has already passed."""
    exits = barriers.select(*STEP_OF_WORKER, from_us="exit_us").sort(*STEP_OF_WORKER, "from_us")
    passed = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(STEP_OF_WORKER)
    ordered = pieces.sort(*STEP_OF_WORKER, "from_us")
    cut = ordered.join_asof(
        exits.with_columns(segment=passed), on="from_us", by=STEP_OF_WORKER, check_sortedness=False
    )
    return cut.with_columns(pl.col("segment").fill_null(0))


def microseconds(column: str) -> pl.Expr:
    """Return seconds as whole microseconds."""
    return (pl.col(column) * 1e6).round().cast(pl.Int64)
