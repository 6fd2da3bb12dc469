"""List the calls of a run with what each usually takes: engine calls, tools, interactions, rewards.

What is usual for an engine call depends on its tokens and on the calls beside it: `fit_speed` finds out from
the run's own calls. For the other kinds the median is usual.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.engine_speed import engine_calls, fit_speed
from sglang_instrument.analysis.ledger.piece_cuts import STEP_OF_WORKER
from sglang_instrument.analysis.reading.last_open import UNENDED

#: The kinds of calls, and what sentences call them.
CALLS: Final = {
    "engine": "engine calls",
    "tool": "tool calls",
    "interaction": "interactions",
    "reward": "rewards",
}
KINDS: Final = tuple(CALLS)
#: The columns that tell one call of the engine from the others.
OF_CALL: Final = [*STEP_OF_WORKER, "request_id", "turn"]
_CALL: Final[dict[str, Any]] = {
    "kind": pl.String,
    "step": pl.Int64,
    "validate": pl.Boolean,
    "worker": pl.Int64,
    "request_id": pl.String,
    "turn": pl.Int64,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "sec": pl.Float64,
    "usual_sec": pl.Float64,
}


def calls_of(digest: Digest) -> pl.DataFrame:
    """Return one row per call within the requests of workers.

    Returns:
        row: its number; kind: one of `KINDS`; step, validate, worker, request_id; turn: null for interactions
        and rewards, which are summed up by request; start_us, end_us; sec; usual_sec: what such a call
        usually takes in this run. An interaction is known to lie within its request; start_us and end_us are
        the request's. Calls that did not end are not there: it is not known what they take.
    """
    digest = _only_ended(digest.of_workers())
    # A turn begins with its engine call and ends with its tools. Trainers log interactions and rewards under
    # turns without an engine call, so those are known by request alone.
    requests = digest.requests.with_columns(turn=pl.lit(None, pl.Int64), begun_us="start_us")
    tables = [
        _engine(digest),
        _ending(digest.turns, "tool"),
        _ending(requests, "interaction").with_columns(start_us=pl.col("begun_us")),
        _ending(requests, "reward"),
    ]
    columns = [pl.col(name).cast(kind) for name, kind in _CALL.items()]
    calls = pl.concat([pl.DataFrame(schema=_CALL), *(table.select(columns) for table in tables)])
    return calls.with_row_index("row")


def _only_ended(digest: Digest) -> Digest:
    ended = ~pl.col("unended").fill_null(value=False)
    requests = digest.requests.filter(pl.col("error").ne_missing(UNENDED))
    return replace(digest, turns=digest.turns.filter(ended), requests=requests)


def less_time(calls: pl.DataFrame, explained: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return calls with less `sec`, and with `whole_sec`, what they took: a finding names that.

    Args:
        calls: As `calls_of` returns them, or some of them.
        explained: Each with the columns row and `excess_sec`: by how much less.
    """
    parts = [part.select("row", "excess_sec") for part in explained]
    sums = pl.concat(parts).group_by("row", maintain_order=True).agg(pl.col("excess_sec").sum())
    joined = calls.drop("excess_sec", strict=False).join(sums, on="row", how="left", maintain_order="left")
    rest = pl.col("sec") - pl.col("excess_sec").fill_null(0.0)
    whole = pl.col("whole_sec" if "whole_sec" in calls.columns else "sec")
    return joined.with_columns(whole_sec=whole, sec=rest).drop("excess_sec")


def _engine(digest: Digest) -> pl.DataFrame:
    calls = fit_speed(engine_calls(digest)).calls
    times_us = [
        (pl.col("begun_us") + (pl.col(f"{end}_sec") * 1e6).cast(pl.Int64)).alias(f"{end}_us")
        for end in ("start", "end")
    ]
    return calls.with_columns(*times_us, kind=pl.lit("engine"), usual_sec="expected_sec")


def _ending(rows: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return the calls of a kind, each of which ends with its row."""
    spent = pl.col(f"{kind}_sec")
    calls = rows.filter(spent > 0).with_columns(kind=pl.lit(kind), sec=spent)
    return calls.with_columns(
        start_us=pl.col("end_us") - (spent * 1e6).cast(pl.Int64), usual_sec=pl.col("sec").median()
    )
