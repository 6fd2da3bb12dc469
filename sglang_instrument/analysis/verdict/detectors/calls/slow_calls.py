"""Find calls that took far longer than all others: a single one, or several of a worker or a step."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.intervals import sec_between
from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.calls import CALLS, KINDS
from sglang_instrument.analysis.verdict.evidence.chance import Array, Draws, chance_of_so_many
from sglang_instrument.analysis.verdict.evidence.detector import (
    Explained,
    Findings,
    NamedCause,
    Precedence,
    detector,
    steps_of,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, OF_STEP, Evidence
from sglang_instrument.analysis.verdict.evidence.servers.queues import explained_by_queues
from sglang_instrument.analysis.verdict.evidence.work import FAR_TIMES

_NAMED_IF: Final = (
    "[some calls](#some-slow-calls), at most half of a worker's, took far longer than usual: one, or several"
)
SLOW_CALL: Final = NamedCause(
    "slow-call", "request", _NAMED_IF, "what that call waited for: `requests LOGS --request {request}`"
)
SLOW_CALLS: Final = NamedCause(
    "slow-calls",
    "worker, step",
    _NAMED_IF,
    "the calls: `turns LOGS{step}{worker}`; is it one tool, one prompt, one backend?",
)
_ALIKE: Final = 0.5  # of the excess of those found, and
_TIMES_OF_ALIKE: Final = 1.3  # times the usual: then a call is one of them
# Largest allowed probability that any worker draws such a call; the tail beyond the others is overestimated.
_CHANCE_OF_ONE: Final = 1e-2
_CHANCE_OF_SEVERAL: Final = 1e-4  # the same for several; other calls reach as far, so this one is not
_SUSPECT: Final = 20.0  # times the chance allowed: then the tools' names are read
_SECOND_LOOK: Final = 5.0  # times the chance allowed, where all tools together did not explain a call
_MOST: Final = 0.5  # of a worker's calls; if more are slow, all its work is


@detector(SLOW_CALL, SLOW_CALLS, precedence=Precedence.SOME_CALLS)
def find_slow_calls(evidence: Evidence) -> Findings:
    """Yield a finding for each worker with calls that are longer than chance explains.

    The physical fact: these calls took longer than all others of their kind scatter. Tools are of a kind if
    they have one name. A call that queued as others of the run do had no slow engine.
    """
    for kind in KINDS:
        seen = evidence.without([explained_by_queues(evidence)]) if kind == "engine" else evidence
        answers = list(_of_kind(seen, kind))
        if kind == "tool":
            answers = _of_tools_by_name(evidence, answers)
        yield from answers


def _of_tools_by_name(evidence: Evidence, answers: list[Explained]) -> list[Explained]:
    """Return the answers about tools by name: beside slow tools, a long call of a fast one looks usual."""
    suspects = answers or list(_of_kind(evidence, "tool", _SUSPECT))
    named = evidence.with_tools_by_name(steps_of(suspects)) if suspects else evidence
    return answers if named is evidence else list(_of_kind(named, "tool", _SECOND_LOOK if answers else 1.0))


def _of_kind(evidence: Evidence, kind: str, looks: float = 1.0) -> Iterator[Explained]:
    calls = evidence.calls.filter((pl.col("kind") == kind) & (pl.col("usual_sec") > 0)).with_columns(
        excess_sec=pl.col("sec") - pl.col("usual_sec"), times=pl.col("sec") / pl.col("usual_sec")
    )
    calls = calls.with_columns(rank=_standard(calls))
    long = calls.filter((pl.col("times") > FAR_TIMES) & (pl.col("excess_sec") > LEAST_SEC))
    took = evidence.windows.select(*STEP, took_sec=sec_between("begin_us", "done_us"))
    long = long.join(took, on=STEP, maintain_order="left")
    long = long.filter(pl.col("excess_sec") > OF_STEP * pl.col("took_sec"))
    if long.is_empty():
        return
    groups = calls.group_by(STEP_OF_WORKER).len()
    few = long.group_by(STEP_OF_WORKER).agg(long=pl.len()).join(groups, on=STEP_OF_WORKER)
    few = few.filter((pl.col("long") <= _MOST * pl.col("len")) | (pl.col("long") == 1))
    if few.is_empty():
        return
    draws, unlikely = Draws(calls["rank"]), []
    by_worker = calls.join(few, on=STEP_OF_WORKER, how="semi").partition_by(STEP_OF_WORKER, as_dict=True)
    for key, rows in long.join(few, on=STEP_OF_WORKER, how="semi", maintain_order="left").group_by(
        STEP_OF_WORKER, maintain_order=True
    ):
        longest = _unlikely(rows, by_worker[key], draws, len(groups), looks)
        if longest is not None:
            unlikely.append(_with_alike(longest, by_worker[key]))
    for _, rows in _by_step(unlikely):
        yield from _of_step(evidence, kind, rows, groups)


def _standard(calls: pl.DataFrame) -> pl.Expr:
    """Return how many times as long as usual calls took, as if those of all tools scattered alike."""
    if "spread" not in calls.columns:
        return pl.col("times")
    pooled: Any = calls["spread"].median()
    return (pl.col("times").log() * pl.lit(pooled) / pl.col("spread").fill_null(pl.lit(pooled))).exp()


def _by_step(calls: list[pl.DataFrame]) -> Iterator[tuple[Any, pl.DataFrame]]:
    return iter(pl.concat(calls).group_by(STEP, maintain_order=True)) if calls else iter(())


def _unlikely(
    rows: pl.DataFrame, of_worker: pl.DataFrame, draws: Draws, groups: int, looks: float
) -> pl.DataFrame | None:
    """Return the longest of a worker's calls that are not just drawn from the others of the run."""
    longest = rows.sort("rank", descending=True)
    likely = _most_unlikely(longest["rank"].to_list(), of_worker["rank"].sort().to_numpy(), draws)
    if likely is None:
        return None
    count, chance = likely
    most = (_CHANCE_OF_ONE if count == 1 else _CHANCE_OF_SEVERAL) * looks
    return longest.head(count) if chance * groups <= most else None


def _with_alike(calls: pl.DataFrame, of_worker: pl.DataFrame) -> pl.DataFrame:
    """Add the worker's calls with a similar delay that are under 3 times the usual: they are long anyway."""
    calls = calls.select(of_worker.columns)
    if len(calls) == 1:
        return calls
    middle: Any = calls["excess_sec"].median()
    return of_worker.filter((pl.col("excess_sec") > _ALIKE * middle) & (pl.col("times") > _TIMES_OF_ALIKE))


def _of_step(evidence: Evidence, kind: str, rows: pl.DataFrame, groups: pl.DataFrame) -> Iterator[Explained]:
    """Yield a finding for each worker, or one for the step if most workers have such calls."""
    everyone = groups.filter(*(pl.col(name) == rows[name][0] for name in STEP))
    shared = rows["worker"].n_unique() * 2 > len(everyone)  # a lone worker has no peers: it is not accused
    late = evidence.late_by_requests(rows)
    lost = evidence.lost_by_workers(late) if shared else evidence.lost_by_each(late)
    lost = evidence.worth(lost)
    for part in [rows] if shared else rows.partition_by("worker", maintain_order=True):
        mine = lost.join(part, on=STEP if shared else STEP_OF_WORKER, how="semi")
        if mine.is_empty() and len(part) > 1:
            continue
        workers = everyone.filter(pl.col("worker").is_in(part["worker"].unique().implode()))
        total, lost_sec = int(workers["len"].sum()), float(mine["lost_sec"].sum())
        yield Explained(_finding(kind, part, total, lost_sec, shared), part)


def _most_unlikely(times: list[float], of_worker: Array, draws: Draws) -> tuple[int, float] | None:
    """Return how many of the longest calls are least likely to be drawn from the others, and that chance."""
    best: tuple[int, float] | None = None
    for count, reached in enumerate(times, 1):
        chance = chance_of_so_many(count, len(of_worker), draws.chance_to_reach(reached, of_worker))
        if best is None or chance <= best[1]:
            best = (count, chance)
    return best


def _finding(kind: str, calls: pl.DataFrame, total: int, lost_sec: float, shared: bool) -> Finding:
    longest = calls.sort("excess_sec").row(-1, named=True)
    place = {**{name: longest[name] for name in STEP}, "worker": None if shared else longest["worker"]}
    numbers = {
        "calls": len(calls),
        "of": total,
        "excess_sec": float(calls["excess_sec"].sum()),
        "longest_sec": longest.get("whole_sec", longest["sec"]),
        "usual_sec": longest["usual_sec"],
        "requests": calls["request_id"].unique().sort().to_list()[:20],
    }
    cost = f"{seconds(lost_sec)} lost" if lost_sec > 0.05 else "other requests took even longer"
    if len(calls) == 1:
        sentence = (
            f"{where(place)}: one of {total} {CALLS[kind]} took {seconds(numbers['longest_sec'])}, where "
            f"{seconds(longest['usual_sec'])} are usual (request {longest['request_id']}); {cost}"
        )
        return Finding(
            cause=SLOW_CALL.name,
            scope="request",
            lost_sec=lost_sec,
            sentence=sentence,
            **place_of(longest),
            event=kind,
            evidence={**numbers, "turn": longest["turn"]},
        )
    middle: Any = calls["times"].median()
    sentence = (
        f"{where(place)}: {len(calls)} of {total} {CALLS[kind]} took {middle:.0f} times the usual; {cost}"
    )
    return Finding(
        cause=SLOW_CALLS.name,
        scope="step" if shared else "worker",
        lost_sec=lost_sec,
        sentence=sentence,
        **place,
        event=kind,
        evidence=numbers,
    )
