"""Find engines that stood still: for a while no call began or ended, and all that ran took so much longer."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.intervals import sec_between
from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.chance import chance_of_so_many
from sglang_instrument.analysis.verdict.evidence.detector import (
    Explained,
    Findings,
    NamedCause,
    Precedence,
    detector,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.servers.routed import lost_by
from sglang_instrument.analysis.verdict.evidence.servers.silences import silences_of

STANDSTILL: Final = NamedCause(
    "standstill",
    "worker, step",
    "for more than 2 s the scheduler of a server had requests and logged nothing: no batch, no admission, no "
    "end, no update of its weights. Where schedulers do not log: no engine call of a worker began or ended, "
    "at least 3 calls ran throughout, and most of them took longer than usual by at least 60 % of that time. "
    "A [slow engine](#slow-work) is none: its calls lose a share of their time, not about as much each",
    "look at the engine at that time: retractions, a weight update, a paused scheduler; `gaps LOGS{step}`",
    advice_of_step="look at the engines at that time: a weight update, a paused scheduler, a shared disk; "
    "`gaps LOGS{step}`",
)
_GAP: Final = [*STEP_OF_WORKER, "from_us"]
_LEAST_SEC: Final = 2.0
_FEWEST: Final = 3  # calls that ran throughout
_OF_THE_GAP: Final = 0.6  # most calls are longer than usual by at least this share of the standstill
_TIMES_THE_SPREAD: Final = 2.0  # what calls lost varies at most so many times as much as what they took
_FEW_OTHERS: Final = 10  # where few other calls are as long, one in ten of them is taken to be slow
_CHANCE: Final = 1e-3  # largest allowed probability that calls as long as these all happen to be slow


@detector(STANDSTILL, precedence=Precedence.STANDSTILL)
def find_standstills(evidence: Evidence) -> Findings:
    """Yield a finding for each standstill; one that most servers, or most workers, share is the step's.

    Where schedulers log, their silence tells, and theirs alone: whoever admits, forwards or ends a request
    does not stand still. Elsewhere the calls of a worker tell, all of which wait as long.
    """
    if not evidence.gauges.is_empty():
        yield from _silent_servers(evidence)
        return
    for _, rows in _gaps(evidence).group_by(STEP, maintain_order=True):
        workers = len(evidence.workers.join(rows, on=STEP, how="semi"))
        late = evidence.late_by_requests(rows)
        if workers > 1 and rows["worker"].n_unique() * 2 > workers:
            yield from _judge(evidence, rows, evidence.lost_by_workers(late), shared=True)
            continue
        of_each = evidence.lost_by_each(late).rename({"lost_sec": "most_sec"})
        for part in rows.partition_by(_GAP, maintain_order=True):
            lost = evidence.late_by_requests(part).join(of_each, on=STEP_OF_WORKER)
            lost = lost.with_columns(lost_sec=pl.min_horizontal("excess_sec", "most_sec"))
            yield from _judge(evidence, part, lost, shared=False)


def _silent_servers(evidence: Evidence) -> Iterator[Explained]:
    """Yield a finding for each server that did nothing for its requests, or of the step for most of them."""
    silences = silences_of(evidence)
    servers = evidence.served["server"].n_unique()
    for _, of_step in silences.group_by(STEP, maintain_order=True):
        shared = servers > 1 and of_step["server"].n_unique() * 2 > servers
        parts = [of_step] if shared else of_step.partition_by("server", maintain_order=True)
        for part in parts:
            late = _waiting_calls(evidence, part)
            lost = lost_by(evidence, late, in_flow=True) if len(late) else None
            if lost is not None:
                is_named = not shared and servers > 1
                lost_sec = min(lost[0], _longest_sec(part))
                yield Explained(_of_servers(evidence, part, len(late), lost_sec, is_named), lost[1])


def _longest_sec(silences: pl.DataFrame) -> float:
    """Return for how long the server stood still that did so longest, all its silences together."""
    sums = silences.group_by("server").agg(sec=sec_between("from_us", "to_us").sum())
    longest: Any = sums["sec"].max()
    return float(longest)


def _waiting_calls(evidence: Evidence, silences: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of these servers with the seconds that they waited: `excess_sec`."""
    calls = evidence.served.with_row_index("row_of_call")
    met = calls.join(silences.select("server", "from_us", "to_us"), on="server")
    during = pl.min_horizontal("end_us", "to_us") - pl.max_horizontal("start_us", "from_us")
    met = met.with_columns(excess_sec=during / 1e6).filter(pl.col("excess_sec") > 0)
    return met.with_columns(pl.col("excess_sec").sum().over("row_of_call")).unique("row_of_call")


def _of_servers(
    evidence: Evidence, silences: pl.DataFrame, calls: int, lost_sec: float, is_named: bool
) -> Finding:
    longest = silences.sort(pl.col("to_us") - pl.col("from_us")).row(-1, named=True)
    place = {name: longest[name] for name in STEP}
    window = evidence.windows.filter(*(pl.col(name) == longest[name] for name in STEP))
    since = max(0.0, (longest["from_us"] - int(window["begin_us"][0])) / 1e6) if len(window) else 0.0
    sec = (longest["to_us"] - longest["from_us"]) / 1e6
    whose = "the engines of most servers" if silences["server"].n_unique() > 1 else longest["server"]
    sentence = (
        f"{where(place)}: {whose} stood still for {seconds(sec)}, from {seconds(since)} on: no batch ran "
        f"while {calls} calls waited; {seconds(lost_sec)} lost"
    )
    numbers: dict[str, Any] = {"from_sec": since, "sec": sec, "calls": calls}
    if is_named:
        numbers["server"] = longest["server"]
    return Finding(STANDSTILL.name, "step", lost_sec, sentence, **place, event="engine", evidence=numbers)


def _gaps(evidence: Evidence) -> pl.DataFrame:
    """Return the calls that ran throughout a gap without begin or end, if most of them lost as much."""
    calls = evidence.calls.filter((pl.col("kind") == "engine") & (pl.col("usual_sec") > 0))
    calls = calls.with_columns(over_sec=pl.col("sec") - pl.col("usual_sec"))
    slow = calls.filter(pl.col("over_sec") >= _OF_THE_GAP * _LEAST_SEC)
    some = slow.group_by(STEP_OF_WORKER).len().filter(pl.col("len") * 2 > _FEWEST)
    of_some = calls.join(some, on=STEP_OF_WORKER, how="semi")
    during = _long_gaps(of_some).join(
        of_some.filter(pl.col("end_us") - pl.col("start_us") >= _LEAST_SEC * 1e6), on=STEP_OF_WORKER
    )
    during = during.filter((pl.col("start_us") <= pl.col("from_us")) & (pl.col("end_us") >= pl.col("to_us")))
    stuck = (pl.col("over_sec") >= _OF_THE_GAP * pl.col("gap_sec")).mean().over(_GAP)
    during = during.filter((stuck > 0.5) & (pl.len().over(_GAP) >= _FEWEST)).sort("gap_sec", descending=True)
    during = during.with_columns(excess_sec=pl.min_horizontal("over_sec", "gap_sec").clip(lower_bound=0.0))
    if during.is_empty():
        return during
    parts = during.partition_by(_GAP, maintain_order=True)
    others = calls.join(during, on="row", how="anti")
    unlikely = [
        part for part in parts if _is_by_as_much(part) and _chance(part, others) * len(parts) < _CHANCE
    ]
    return pl.concat(unlikely) if unlikely else during.clear()


def _long_gaps(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the long gaps without begin or end of a call in which enough calls run, most of them slow.

    Columns: step, validate, worker; from_us, to_us, gap_sec.
    """
    slow = (pl.col("over_sec") >= _OF_THE_GAP * _LEAST_SEC).cast(pl.Int64)
    changes = pl.concat(
        [
            calls.select(*STEP_OF_WORKER, from_us=name, change=pl.lit(sign), slow=slow * sign)
            for name, sign in (("start_us", 1), ("end_us", -1))
        ]
    )
    # The changes of a worker sum to 0, so one running sum serves all workers.
    gaps = changes.sort(*STEP_OF_WORKER, "from_us").with_columns(
        to_us=pl.col("from_us").shift(-1).over(STEP_OF_WORKER),
        running=pl.col("change").cum_sum(),
        slow=pl.col("slow").cum_sum(),
    )
    gaps = gaps.with_columns(gap_sec=sec_between("from_us", "to_us"))
    return gaps.filter(
        (pl.col("gap_sec") > _LEAST_SEC)
        & (pl.col("running") >= _FEWEST)
        & (pl.col("slow") * 2 > pl.col("running"))
    ).select(*_GAP, "to_us", "gap_sec")


def _is_by_as_much(part: pl.DataFrame) -> bool:
    """Return whether the slow calls lost about as much time each; those of a slow engine lose a share."""
    slow = part.filter(pl.col("over_sec") >= _OF_THE_GAP * pl.col("gap_sec"))
    over, usual = slow["over_sec"], slow["usual_sec"]
    times = float((slow["sec"] / over).median())  # type: ignore[arg-type]  # of floats
    return _spread(over) <= _TIMES_THE_SPREAD * times * _spread(slow["sec"] / usual)


def _spread(values: pl.Series) -> float:
    """Return the median absolute deviation of the logarithms."""
    logs = values.log()
    middle: Any = (logs - logs.median()).abs().median()
    return float(middle)


def _chance(part: pl.DataFrame, others: pl.DataFrame) -> float:
    """Return the probability that so many calls are slow, if they are as other calls of that length."""
    gap_sec = part["gap_sec"][0]
    slow, long = pl.col("over_sec") >= _OF_THE_GAP * gap_sec, pl.col("sec") >= gap_sec
    slow_calls, long_calls = others.select((slow & long).sum(), long.sum().alias("long")).row(0)
    share = (slow_calls + 1) / (long_calls + _FEW_OTHERS)
    return chance_of_so_many(int(part.select(slow.sum()).item()), len(part), share)


def _judge(evidence: Evidence, part: pl.DataFrame, lost: pl.DataFrame, shared: bool) -> Iterator[Explained]:
    lost = evidence.worth(lost)
    if lost.is_empty():
        return
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
    finding = Finding(
        cause=STANDSTILL.name,
        scope="step" if shared else "worker",
        lost_sec=lost_sec,
        sentence=sentence,
        **place,
        event="engine",
        evidence=numbers,
    )
    yield Explained(finding, part)
