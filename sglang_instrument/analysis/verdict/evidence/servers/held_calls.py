"""Tell which engine calls an update of their server's weights held back, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from sglang_instrument.analysis.timing.open_spans import integral
from sglang_instrument.analysis.verdict.evidence.calls import OF_CALL

if TYPE_CHECKING:
    from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence


def held_by_updates(evidence: Evidence) -> pl.DataFrame:
    """Return the engine calls that an update of the weights held back.

    SGLang's tokenizer manager holds new calls until its server has the new weights: that is no time of its
    scheduler, and no fault of the engine.

    Returns:
        rid, step, validate, worker, request_id, turn; held_sec: during which the server updated its weights,
        and neither queue, prefill nor decode of the call went on.
    """
    updates = evidence.update_windows
    calls = evidence.served.drop_nulls(["server", "call_sec"])
    calls = calls.join(updates, on="server", how="semi")
    parts = []
    for (server,), of_server in calls.partition_by("server", as_dict=True, maintain_order=True).items():
        mine = updates.filter(server=server)
        updating = integral(mine["from_us"].to_numpy() / 1e6, mine["to_us"].to_numpy() / 1e6, union=True)
        begin, end = (of_server[name].to_numpy() / 1e6 for name in ("start_us", "end_us"))
        parts.append(of_server.with_columns(during_sec=pl.Series(updating(end) - updating(begin))))
    rows = pl.concat(parts) if parts else calls.with_columns(during_sec=pl.lit(0.0))
    served = pl.sum_horizontal(
        *(pl.col(f"{part}_sec").fill_null(0.0) for part in ("queue", "prefill", "decode"))
    )
    held = pl.min_horizontal("during_sec", pl.col("call_sec") - served).clip(lower_bound=0.0)
    return rows.select("rid", *OF_CALL, held_sec=held).filter(pl.col("held_sec") > 0)


def explained_by_updates(evidence: Evidence) -> pl.DataFrame:
    """Return the same as time of `Evidence.calls`: row, excess_sec."""
    held = held_by_updates(evidence).group_by(OF_CALL).agg(excess_sec=pl.col("held_sec").sum())
    engine = evidence.calls.filter(kind="engine").drop("excess_sec", strict=False)
    return engine.join(held, on=OF_CALL).select("row", "excess_sec")
