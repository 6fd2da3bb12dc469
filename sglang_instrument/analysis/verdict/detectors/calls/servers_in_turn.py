"""Find runs in which calls queue at one server while the others have room, at another one in each step."""

from collections import Counter
from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.verdict.evidence.calls import OF_CALL
from sglang_instrument.analysis.verdict.evidence.detector import (
    Explained,
    Findings,
    NamedCause,
    Precedence,
    detector,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.servers.routed import (
    NOT_PLANTED,
    at_least,
    lost_in_calls,
    lost_in_flow,
)
from sglang_instrument.analysis.verdict.evidence.servers.server_parts import (
    LEAST_QUEUE,
    TIMES,
    server_cells,
    server_parts,
)

SERVERS_IN_TURN: Final = NamedCause(
    "servers-in-turn",
    "run",
    "in half of the steps or more, and at least 3, [calls queued](#servers-and-their-caches) at one server "
    "while the others had room, and at no server in most of these steps",
    "look at the router: a cache-aware policy sends prompts that begin alike to one server, until its limit "
    "of imbalance; `servers LOGS --over-time`",
    not_planted=NOT_PLANTED,
)
_FEWEST: Final = 3  # steps
_MOST: Final = 0.5


@detector(SERVERS_IN_TURN, precedence=Precedence.SERVER)
def find_servers_in_turn(evidence: Evidence) -> Findings:
    """Yield a finding if the router loads one server after the other.

    The physical fact: calls waited at one server, where the median server of the step had room. In each step
    it was another one, so that no server is at fault.
    """
    calls = server_parts(evidence)
    if calls.is_empty():
        return
    cells = server_cells(calls, "queue")
    if cells.is_empty():
        return
    apart = (pl.col("off") > pl.lit(TIMES["queue"]).log()) & (pl.col("share") >= LEAST_QUEUE)
    queues = cells.filter(apart & ~pl.col("is_alone")).sort("off").unique(STEP, keep="last").sort(STEP)
    servers = Counter(queues["server"].to_list())
    if len(queues) < max(_FEWEST, _MOST * len(evidence.windows)):
        return
    if max(servers.values()) > _MOST * len(queues):
        return
    waits = calls.join(queues.select(*STEP, "server"), on=[*STEP, "server"], how="semi")
    delays = waits.select(*OF_CALL, excess_sec="queue_sec").drop_nulls().filter(pl.col("excess_sec") > 0)
    lost, rows = lost_in_calls(evidence, delays)
    lost = evidence.worth(at_least(lost, lost_in_flow(evidence, calls, delays)))
    if len(lost) < _MOST * len(queues):
        return
    # The median: a step that cost far more has a cause of its own.
    lost_sec = float(lost["lost_sec"].median() or 0.0)  # type: ignore[arg-type]  # a float
    mean_sec = float(queues["mean_sec"].mean() or 0.0)  # type: ignore[arg-type]
    of = calls["server"].n_unique()
    sentence = (
        f"in {len(queues)} of {len(evidence.windows)} steps, calls queued {seconds(mean_sec)} at one of {of} "
        f"servers while the others had room, at {len(servers)} of them in turn; {seconds(lost_sec)} lost "
        "a step"
    )
    numbers = {"steps": len(queues), "servers": of, "mean_sec": mean_sec, "by_server": dict(servers)}
    finding = Finding(SERVERS_IN_TURN.name, "run", lost_sec, sentence, event="queue", evidence=numbers)
    yield Explained(finding, rows)
