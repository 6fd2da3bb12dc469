"""Find engines that stood still: for a while no call began or ended, and all that ran took so much longer."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.chance import chance_of_so_many
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

_LEAST_SEC: Final = 2.0
_FEWEST: Final = 3  # calls that ran throughout
_OF_THE_GAP: Final = 0.6  # most calls are longer than usual by at least this share of the standstill
_FEW_OTHERS: Final = 10  # where few other calls are as long, one in ten of them is taken to be slow
_CHANCE: Final = 1e-3  # largest allowed probability that calls as long as these all happen to be slow


def find_standstills(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each standstill; one that most workers share is the step's."""
    for _, rows in _gaps(evidence).group_by(STEP, maintain_order=True):
        workers = len(evidence.workers.join(rows, on=STEP, how="semi"))
        shared = workers > 1 and rows["worker"].n_unique() * 2 > workers
        key = STEP if shared else [*STEP_OF_WORKER, "from_us"]
        for _, part in rows.group_by(key, maintain_order=True):
            yield from _judge(evidence, part, shared)


def _gaps(evidence: Evidence) -> pl.DataFrame:
    """Return the calls that ran throughout a gap without begin or end, if most of them lost as much."""
    calls = evidence.calls.with_row_index("row")
    calls = calls.filter((pl.col("kind") == "engine") & (pl.col("usual_sec") > 0))
    calls = calls.with_columns(over_sec=pl.col("sec") - pl.col("usual_sec"))
    changes = pl.concat([calls.select(*STEP_OF_WORKER, from_us=name) for name in ("start_us", "end_us")])
    gaps = changes.sort(*STEP_OF_WORKER, "from_us").with_columns(
        to_us=pl.col("from_us").shift(-1).over(STEP_OF_WORKER)
    )
    gaps = gaps.with_columns(gap_sec=(pl.col("to_us") - pl.col("from_us")) / 1e6)
    during = gaps.filter(pl.col("gap_sec") > _LEAST_SEC).join(calls, on=STEP_OF_WORKER)
    during = during.filter((pl.col("start_us") <= pl.col("from_us")) & (pl.col("end_us") >= pl.col("to_us")))
    gap = [*STEP_OF_WORKER, "from_us"]
    stuck = (pl.col("over_sec") >= _OF_THE_GAP * pl.col("gap_sec")).mean().over(gap)
    during = during.filter((stuck > 0.5) & (pl.len().over(gap) >= _FEWEST)).sort("gap_sec", descending=True)
    during = during.with_columns(excess_sec=pl.min_horizontal("over_sec", "gap_sec").clip(lower_bound=0.0))
    parts = [part for _, part in during.group_by(gap, maintain_order=True)]
    others = calls.join(during, on="row", how="anti")
    unlikely = [part for part in parts if _chance(part, others) * len(parts) < _CHANCE]
    return pl.concat(unlikely) if unlikely else during.clear()


def _chance(part: pl.DataFrame, others: pl.DataFrame) -> float:
    """Return the probability that so many calls are slow, if they are as other calls of that length."""
    gap_sec = part["gap_sec"][0]
    long = others.filter(pl.col("sec") >= gap_sec)
    slow = pl.col("over_sec") >= _OF_THE_GAP * gap_sec
    share = (int(long.select(slow.sum()).item()) + 1) / (len(long) + _FEW_OTHERS)
    return chance_of_so_many(int(part.select(slow.sum()).item()), len(part), share)


def _judge(evidence: Evidence, part: pl.DataFrame, shared: bool) -> Iterator[Finding]:
    lost = evidence.worth(evidence.lost_in_requests(part))
    if lost.is_empty():
        return
    evidence.explain(part.group_by("row").agg(pl.col("excess_sec").sum()))
    longest = part.row(0, named=True)
    place = {**{name: longest[name] for name in STEP}, "worker": None if shared else longest["worker"]}
    mine = evidence.workers.filter(*(pl.col(name) == longest[name] for name in STEP_OF_WORKER))
    begun: Any = mine["start_us"].min()
    since, lost_sec = max(0.0, (longest["from_us"] - begun) / 1e6), float(lost["lost_sec"][0])
    calls, gap_sec = part["row"].n_unique(), longest["gap_sec"]
    whose = "the engines of most workers" if shared else "its engine"
    sentence = (
        f"{where(place)}: {whose} stood still for {seconds(gap_sec)}, from {seconds(since)} on, while "
        f"{calls} calls waited; {seconds(lost_sec)} lost"
    )
    numbers = {"from_sec": since, "sec": gap_sec, "calls": calls}
    scope: Any = "step" if shared else "worker"
    yield Finding("standstill", scope, lost_sec, sentence, **place, event="engine", evidence=numbers)
