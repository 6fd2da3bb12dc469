"""Find when a server stood still: its scheduler had requests, and for seconds did nothing for any of them.

The physical fact: a scheduler that runs batches logs its gauges once a second, and each admission, first
token and end of a request. If none of these came although requests ran, or had been sent, it ran no batch. An
update of its weights is not counted. Only pauses that are rare tell of a stop: one long prefill after another
is slow work.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests
from sglang_instrument.analysis.answers.gaps import loop_blocks
from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.timing.open_spans import Array, integral

if TYPE_CHECKING:
    from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

LEAST_SEC: Final = 2.0  # two gauges are missing
_LONG: Final = 0.5  # of the longest silence of a server in a step: shorter ones of it are not told
_RARE: Final = 0.34  # of the steps of a server: if more of them have a silence, it is its way to work
_SCHEMA: Final[dict[str, Any]] = {
    "server": pl.String,
    "step": pl.Int64,
    "validate": pl.Boolean,
    "from_us": pl.Int64,
    "to_us": pl.Int64,
}


def silences_of(evidence: Evidence) -> pl.DataFrame:
    """Return when servers did nothing for the requests that they had.

    Returns:
        server, step, validate; from_us, to_us. Empty where schedulers log no gauges.
    """
    gauges = evidence.gauges
    if evidence.run is None or gauges.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    requests = cached_engine_requests(evidence.run).drop_nulls(["server", "scheduler", "start_us", "end_us"])
    requests = requests.join(_sent(evidence), on="rid", how="left", maintain_order="left")
    silences = []
    for (server,), mine in requests.partition_by("server", as_dict=True, maintain_order=True).items():
        at_us = gauges.filter(pl.col("scheduler").is_in(mine["scheduler"].unique().implode()))["at_us"]
        updates = evidence.update_windows.filter(server=server)
        silences.append(_silences(str(server), mine, at_us.to_numpy() / 1e6, updates))
    return (
        _rare(evidence, _placed(evidence, pl.concat(silences))) if silences else pl.DataFrame(schema=_SCHEMA)
    )


def _sent(evidence: Evidence) -> pl.DataFrame:
    """Return when calls were sent, in seconds: rid, sent. Those whose caller could not send are left out."""
    calls = evidence.served.drop_nulls("rid").unique("rid")
    blocks = loop_blocks(evidence.files).filter(role="worker")
    blocks = blocks.select("worker", to_us="at_us", from_us=pl.col("at_us") - pl.col("blocked_sec") * 1e6)
    met = calls.select("rid", "worker", "start_us", "end_us").join(blocks, on="worker")
    met = met.filter((pl.col("start_us") < pl.col("to_us")) & (pl.col("end_us") > pl.col("from_us")))
    return calls.join(met, on="rid", how="anti").select("rid", sent=pl.col("start_us") / 1e6)


def _silences(server: str, requests: pl.DataFrame, gauges: Array, updates: pl.DataFrame) -> pl.DataFrame:
    """Return the silences of a server: server, from_us, to_us."""
    zero = pl.lit(0.0)
    parts = ("queue", "prefill", "transfer", "decode", "retracted")
    spent = {part: pl.coalesce(f"{part}_sec", zero) for part in parts}
    received = (pl.col("end_us") / 1e6 - sum(spent.values(), zero)).alias("received")
    times = requests.select(
        received, "sent", pl.col("end_us") / 1e6, queue=spent["queue"], prefill=spent["prefill"]
    )
    begin, end = times["received"].to_numpy(), times["end_us"].to_numpy()
    sent = times.select(pl.min_horizontal("received", "sent")).to_series().to_numpy()
    admitted = begin + times["queue"].to_numpy()
    moments = np.unique(
        np.concatenate([gauges, begin, admitted, admitted + times["prefill"].to_numpy(), end])
    )
    having = integral(sent, end, union=True)
    updating = integral(updates["from_us"].to_numpy() / 1e6, updates["to_us"].to_numpy() / 1e6, union=True)
    rows = []
    for since, until in pairwise(moments.tolist()):
        if until - since <= LEAST_SEC:
            continue
        had = having(until) - having(since)
        held = updating(until) - updating(since) if len(updates) else 0.0
        if had - held > LEAST_SEC:
            rows.append((server, round((until - had) * 1e6), round(until * 1e6)))
    return pl.DataFrame(
        rows, schema={name: _SCHEMA[name] for name in ("server", "from_us", "to_us")}, orient="row"
    )


def _placed(evidence: Evidence, silences: pl.DataFrame) -> pl.DataFrame:
    """Return silences with the step most of whose calls waited."""
    calls = evidence.served.drop_nulls("server").select(*STEP, "server", "start_us", "end_us")
    met = silences.join(calls, on="server").filter(
        (pl.col("start_us") < pl.col("to_us")) & (pl.col("end_us") > pl.col("from_us"))
    )
    key = ["server", "from_us", "to_us"]
    counts = met.group_by(*key, *STEP).len().sort("len", *STEP, descending=[True, False, False])
    return counts.group_by(key, maintain_order=True).first().select(list(_SCHEMA))


def _rare(evidence: Evidence, silences: pl.DataFrame) -> pl.DataFrame:
    """Return the silences of servers that have them in few of their steps, the longest of each step."""
    if silences.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    steps = evidence.served.group_by("server").agg(steps=pl.struct(STEP).n_unique())
    silent = silences.group_by("server").agg(silent=pl.struct(STEP).n_unique())
    most = pl.max_horizontal(pl.lit(1), _RARE * pl.col("steps"))
    rare = silent.join(steps, on="server").filter(pl.col("silent") <= most)
    took = pl.col("to_us") - pl.col("from_us")
    longest = silences.filter(took >= _LONG * took.max().over("server", *STEP))
    return longest.join(rare, on="server", how="semi").sort(*STEP, "server", "from_us")
