"""Find servers that were slow beside the others: in decoding, in prefills, on the way, in their queue."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.intervals import sec_between
from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.verdict.evidence.calls import OF_CALL
from sglang_instrument.analysis.verdict.evidence.detector import (
    Explained,
    Findings,
    NamedCause,
    Precedence,
    detector,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds, step_name
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, OF_STEP, Evidence
from sglang_instrument.analysis.verdict.evidence.servers.room import with_less_room
from sglang_instrument.analysis.verdict.evidence.servers.routed import (
    at_least,
    lost_in_calls,
    lost_in_flow,
)
from sglang_instrument.analysis.verdict.evidence.servers.server_parts import (
    FLOOR_SEC,
    PARTS,
    server_cells,
    server_parts,
    slow_cells,
)

_NOT_PLANTED: Final = "the simulator has no router; `sglang_instrument.testing.world` plants it"
_LOOK: Final = "`servers LOGS{step} --over-time`"
SLOW_SERVER: Final = NamedCause(
    "slow-server",
    "step, run",
    "a server took [longer than the others](#servers-and-their-caches) for the same work: a "
    "token at that many calls at once, a prefill, its tokenizer, or the way to it",
    f"look at that server's machine (clock, other processes, network) and settings: {_LOOK}",
    not_planted=_NOT_PLANTED,
)
QUEUE: Final = NamedCause(
    "queue",
    "step, run",
    "calls [queued](#servers-and-their-caches) far longer at one server than at the others, and no slow "
    "decode or prefill of it explains that",
    "look at what limits its running requests: `max_running_requests`, its key-value cache, its retractions; "
    f"{_LOOK}",
    not_planted=_NOT_PLANTED,
)
SLOW_WAY: Final = NamedCause(
    "slow-way",
    "worker",
    "the calls of a worker spent far longer outside of its servers than those of the other workers: between "
    "the worker, the router and the server",
    "look at that worker's machine and its network, and at what its calls wait for there: "
    "`turns LOGS{step}{worker}`",
    not_planted=_NOT_PLANTED,
)
_WAY: Final = "network"
_MOST: Final = 0.5  # of a server's steps: then the finding is of the run
_WORDS: Final = {
    "decode": "decoded {times:.1f} times as long a token as the other servers at that load",
    "prefill": "took {times:.1f} times as long for a prefill as the other servers for as many tokens",
    "reading": "read {times:.1f} times as much of its prompts as the other servers, whose caches had more",
    "network": "was {times:.1f} times as far away as the other servers, {sec} a call",
    "tokenizer": "took {times:.1f} times as long outside of its scheduler as the other servers, {sec} a call",
    "queue": "let its calls queue {times:.1f} times as long as the other servers, {sec} a call",
}


@detector(SLOW_SERVER, QUEUE, SLOW_WAY, precedence=Precedence.SERVER)
def find_slow_servers(evidence: Evidence) -> Findings:
    """Yield a finding for each server that was slow, of a step, or of the run where it was in most steps.

    The physical fact: the same work, a token at that load, a prefill, a call's way, took longer at this
    server than at the others in the same step. What calls of one worker lose outside of the servers is the
    worker's way to them. A queue follows from these, and is named where none is.
    Of a worker that has a server of its own, only a queue is named here: `engine` tells of the rest.
    """
    calls = server_parts(evidence)
    if calls.is_empty():
        return
    alone = _callers_of_one(calls)
    cells = {part: server_cells(calls, part) for part in PARTS}
    slow = {part: slow_cells(table, part) for part, table in cells.items()}
    slow["queue"] = with_less_room(slow["queue"], calls)
    yield from _slow_ways(evidence, _but_of(calls, slow[_WAY]))
    names = sorted({name for table in slow.values() if not table.is_empty() for name in table["server"]})
    for server in names:
        of_server = {
            part: table.filter(server=server) for part, table in slow.items() if not table.is_empty()
        }
        of_server = {part: table for part, table in of_server.items() if len(table)}
        if server not in alone or set(of_server) == {QUEUE.name}:
            yield from _of_server(evidence, calls, cells, of_server, server, alone.get(server))


def _but_of(calls: pl.DataFrame, slow: pl.DataFrame) -> pl.DataFrame:
    """Return the calls without those of servers that are far from all workers."""
    return calls if slow.is_empty() else calls.join(slow, on="server", how="anti")


def _slow_ways(evidence: Evidence, calls: pl.DataFrame) -> Iterator[Explained]:
    """Yield a finding for each worker whose calls took long on their way to the servers it shares."""
    shared = calls.filter(pl.col("worker").n_unique().over("server") > 1)
    if shared.is_empty():
        return
    of_workers = shared.with_columns(server=pl.format("worker {}", "worker"))
    cells = server_cells(of_workers, _WAY)
    for (name, worker), _ in of_workers.group_by("server", "worker", maintain_order=True):
        slow = slow_cells(cells, _WAY)
        slow = slow if slow.is_empty() else slow.filter(server=name)
        if slow.is_empty():
            continue
        answers = _of_server(evidence, of_workers, {_WAY: cells}, {_WAY: slow}, str(name), int(worker))
        yield from (answer._replace(finding=_of_way(answer.finding, slow)) for answer in answers)


def _of_way(finding: Finding, slow: pl.DataFrame) -> Finding:
    """Return a finding about a server as one about the way from a worker."""
    numbers = {key: value for key, value in finding.evidence.items() if key not in ("server", "servers")}
    words = finding.sentence.replace(
        "as far away as the other servers", "as far from its servers as the others"
    )
    return replace(
        finding, cause=SLOW_WAY.name, sentence=words, evidence={**numbers, "workers": slow["peers"][0] + 1}
    )


def _callers_of_one(calls: pl.DataFrame) -> dict[str, int]:
    """Return the servers that one worker alone calls, which calls no other, with that worker."""
    pairs = calls.select("server", "worker").unique()
    lone = (pl.len().over("server") == 1) & (pl.len().over("worker") == 1)
    return dict(pairs.filter(lone).sort("server").iter_rows())


def _of_server(
    evidence: Evidence,
    calls: pl.DataFrame,
    cells: dict[str, pl.DataFrame],
    slow: dict[str, pl.DataFrame],
    server: str,
    worker: int | None,
) -> Iterator[Explained]:
    mine = calls.filter(server=server)
    late = {part: _excess(mine, table, part) for part, table in slow.items()}
    total = {part: float(table["excess_sec"].sum()) for part, table in late.items()}
    part = _first_cause(total)
    explained = [
        table for name, table in late.items() if name == part or PARTS.index(name) > PARTS.index(part)
    ]
    if "queue" not in late and "queue" in cells:
        explained.append(_excess(mine, _follows(cells["queue"], slow[part]), "queue"))
    delays = pl.concat([table.select(*OF_CALL, "excess_sec") for table in explained])
    delays = delays.group_by(OF_CALL, maintain_order=True).agg(pl.col("excess_sec").sum())
    steps = slow[part].select(STEP)
    lost, rows = lost_in_calls(evidence, delays)
    lost = at_least(lost, lost_in_flow(evidence, calls, delays)).join(steps, on=STEP, how="semi")
    took = evidence.windows.select(*STEP, took_sec=sec_between("begin_us", "done_us"))
    lost = lost.join(took, on=STEP).filter(
        pl.col("lost_sec") > pl.max_horizontal(pl.lit(LEAST_SEC), OF_STEP * pl.col("took_sec"))
    )
    if lost.is_empty():
        return
    of_part = cells[part].filter(server=server)
    several = len(lost) > 1 and len(slow[part]) > _MOST * len(of_part)
    for number, row in enumerate(lost.sort("lost_sec", descending=True).iter_rows(named=True)):
        if several and number:
            return
        here = slow[part] if several else slow[part].filter(step=row["step"], validate=row["validate"])
        lost_sec = float(lost["lost_sec"].mean()) if several else row["lost_sec"]  # type: ignore[arg-type]
        finding = _finding(server, part, here, of_part, row, lost_sec, len(lost) if several else 0)
        finding = replace(finding, worker=worker)
        in_step = (
            rows if several else rows.join(pl.DataFrame([{k: row[k] for k in STEP}]), on=STEP, how="semi")
        )
        yield Explained(finding, in_step)


def _first_cause(total: dict[str, float]) -> str:
    """Return the part to name: the largest of those that are causes, a queue only where none is slow.

    A server that takes longer for each call has a queue, which grows without bound as it nears its capacity.
    """
    causes = {part: sec for part, sec in total.items() if part != "queue"}
    return max(causes, key=lambda part: (causes[part], -PARTS.index(part))) if causes else "queue"


def _follows(queues: pl.DataFrame, slow: pl.DataFrame) -> pl.DataFrame:
    """Return how much longer calls queued at a server in the steps in which it was slow: that follows."""
    longer = queues.filter(pl.col("off") > 0)
    return longer.join(slow, on=[*STEP, "server"], how="semi")


def _excess(mine: pl.DataFrame, table: pl.DataFrame, part: str) -> pl.DataFrame:
    """Return by how much each call of a server took longer than at the others, where it did.

    A prefill holds up the calls that decode meanwhile, too.
    """
    slow = mine.join(table.select(*STEP, "off", "value"), on=STEP, maintain_order="left")
    sec, floor = pl.col(f"{part}_sec"), FLOOR_SEC[part]
    share = 1 - (-pl.col("off")).exp()
    if part in ("decode", "prefill"):  # call by call: a server may be slow for a part of a step
        excess = sec - pl.col(f"{part}_usual_sec") * (pl.col("value") - pl.col("off")).exp()
    elif part == "reading":
        excess = sec * share
    else:
        mean = (sec.mean().over(STEP) + floor) * share
        excess = sec * (mean / sec.mean().over(STEP)).clip(upper_bound=1.0)
    if part in ("prefill", "reading"):
        excess += pl.col("held_sec") * share
    return slow.with_columns(excess_sec=excess.clip(lower_bound=0.0)).filter(pl.col("excess_sec") > 0)


def _finding(
    server: str,
    part: str,
    slow: pl.DataFrame,
    cells: pl.DataFrame,
    row: dict[str, Any],
    lost_sec: float,
    steps: int,
) -> Finding:
    off: Any = slow["off"].median()
    mean_sec: Any = slow["mean_sec"].mean()
    times = math.exp(off)
    words = _WORDS[part].format(times=times, sec=seconds(mean_sec))
    where = f"in {len(slow)} of {len(cells)} steps" if steps else step_name(row["step"], row["validate"])
    begin = f"{server} {words}, {where}" if steps else f"{where}: {server} {words}"
    lost = f"{seconds(lost_sec)} lost{' a step' if steps else ''}"
    numbers = {
        "server": server,
        "part": part,
        "times": times,
        "mean_sec": mean_sec,
        "servers": slow["peers"][0] + 1,
    }
    if steps:
        numbers["steps"] = steps
    place = {} if steps else {"step": row["step"], "validate": row["validate"]}
    return Finding(
        QUEUE.name if part == "queue" else SLOW_SERVER.name,
        "run" if steps else "step",
        lost_sec,
        f"{begin}; {lost}",
        **place,
        event=part,
        evidence=numbers,
    )
