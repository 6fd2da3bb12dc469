"""Give requests whose calls came through a gateway the turns that these calls are."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeVar

import polars as pl

from sglang_instrument.analysis.answers.engine.gateway import gateway_calls
from sglang_instrument.analysis.answers.engine.records import engine_files, gateway_files
from sglang_instrument.analysis.digests.digest import SCHEMAS, Digest
from sglang_instrument.analysis.digests.turns import ENGINE, sum_by_number, turns_of
from sglang_instrument.analysis.run.opening import Run

_Run = TypeVar("_Run", bound=Run)
_PLACE: Final = ("source", "role", "worker", "step", "validate")
_REQUEST: Final = (*_PLACE, "request_id", "attempt")


def with_gateway_turns(run: _Run) -> _Run:
    """Return a run in which requests without turns have those of the calls that came through a gateway.

    Calls after one another are turns, and calls that overlap are one. Such a request also has their time in
    the engine, tokens and finish reason, where it logs none.
    """
    if not (engine_files(run) or gateway_files(run)):
        return run
    digest = run.everything
    lacking = digest.requests.drop_nulls("request_id").join(
        digest.turns, on=_REQUEST, how="anti", nulls_equal=True
    )
    if lacking.is_empty():
        return run
    calls = gateway_calls(run).join(lacking.select(_REQUEST), on=_REQUEST, how="semi", nulls_equal=True)
    return run if calls.is_empty() else replace(run, everything=_with_turns(digest, calls))


def _with_turns(digest: Digest, calls: pl.DataFrame) -> Digest:
    places = (
        calls.select(_PLACE).unique(maintain_order=True).with_row_index("place").cast({"place": pl.Int64})
    )
    parts = calls.join(places, on=_PLACE, how="left", nulls_equal=True, maintain_order="left").select(
        *("place", "request_id", "attempt", "turn", "event", "response_tokens", "weight_version"),
        *("verifications", "finish_reason"),
        kind=pl.lit(ENGINE, pl.Int8),
        start_us="called_us",
        end_us=pl.col("called_us") + (pl.col("call_sec") * 1e6).cast(pl.Int64),
        duration_sec="call_sec",
        unended=pl.lit(False),
    )
    turns = turns_of(sum_by_number(parts.drop("finish_reason"))).join(places, on="place", how="left")
    schema = SCHEMAS["turns"]
    turns = turns.select(pl.col(name).cast(kind) for name, kind in schema.items())
    requests = _with_facts(digest.requests, turns, parts, places)
    return replace(digest, requests=requests, turns=pl.concat([digest.turns, turns]))


def _with_facts(
    requests: pl.DataFrame, turns: pl.DataFrame, parts: pl.DataFrame, places: pl.DataFrame
) -> pl.DataFrame:
    """Fill in what these requests did not log: their turns, time in the engine, tokens and finish reason."""
    tokens = pl.col("response_tokens")
    facts = turns.group_by(_REQUEST).agg(
        turns=pl.len().cast(pl.Int64),
        engine_sec=pl.col("engine_sec").sum(),
        response_tokens=pl.when(tokens.null_count() == 0).then(tokens.sum()),
    )
    ends = parts.sort("end_us").group_by("place", "request_id", "attempt")
    reasons = ends.agg(pl.col("finish_reason").drop_nulls().last()).join(places, on="place", how="left")
    facts = facts.join(reasons.select(*_REQUEST, "finish_reason"), on=_REQUEST, how="left", nulls_equal=True)
    joined = requests.join(
        facts, on=_REQUEST, how="left", suffix="_of_calls", nulls_equal=True, maintain_order="left"
    )
    is_lacking = pl.col("turns_of_calls").is_not_null()
    filled = [
        pl.when(is_lacking & (pl.col(name).is_null() | (pl.col(name) == 0)))
        .then(f"{name}_of_calls")
        .otherwise(name)
        .alias(name)
        for name in ("turns", "engine_sec", "response_tokens")
    ]
    reason = pl.coalesce("finish_reason", "finish_reason_of_calls").alias("finish_reason")
    return joined.with_columns(*filled, reason).select(requests.columns)
