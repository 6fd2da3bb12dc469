"""Find engines, tools, interactions and rewards that were slow: in a whole step, or on one worker."""

import math
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.calls import less_time
from sglang_instrument.analysis.verdict.evidence.chance import Draws, chance_of_so_many
from sglang_instrument.analysis.verdict.evidence.detector import (
    Explained,
    Findings,
    NamedCause,
    Precedence,
    detector,
    steps_of,
)
from sglang_instrument.analysis.verdict.evidence.effects import excess_of, slow_workers
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, shared_by, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.servers.load import beyond_load
from sglang_instrument.analysis.verdict.evidence.servers.queues import explained_by_queues
from sglang_instrument.analysis.verdict.evidence.tools.slow_tools import slow_tools
from sglang_instrument.analysis.verdict.evidence.work import (
    UNITS,
    WORK_LIMITS,
    Work,
    timed_calls,
    worker_medians,
)

_NAMED_IF: Final = (
    "the median call was [slow for its kind](#slow-work): on most workers of the step, or on one"
)
_TURNS: Final = "the calls: `turns LOGS{step}{worker}`"
#: Where to look at a slow engine, whatever else is known of it.
LOOK_AT_ENGINE: Final = "`workers LOGS{step}{worker}`, `profile capture --run LOGS{workers}`"
CAUSES: Final = (
    NamedCause(
        "engine",
        "step, worker",
        _NAMED_IF,
        f"look at its GPU (clock, other processes), queue and cache: {LOOK_AT_ENGINE}",
        advice_of_step="look at what the engines share: weights, settings, batch sizes, hosts; "
        "`workers LOGS{step}`, `profile capture --run LOGS`",
    ),
    NamedCause(
        "tool",
        "step, worker",
        _NAMED_IF
        + ". Turns that called the same tools are compared by their names; they may also have ended after "
        "one time, as by a limit",
        f"{_TURNS}; look at what the tools share: a service, a sandbox, a limit of calls at once",
    ),
    NamedCause("interaction", "step, worker", _NAMED_IF, f"{_TURNS}; look at what the interactions share"),
    NamedCause(
        "reward",
        "step, worker",
        _NAMED_IF,
        "look at what the rewards share: a service, a model, a pool; `requests LOGS{step}{worker}`",
    ),
)
_SHARED: Final = frozenset({"tool", "reward", "interaction"})  # what a pool of all workers may serve
_FAR_MORE: Final = 2.0  # times as slow, in logarithms, as all workers of the step were
_CHANCE: Final = 1e-3  # largest allowed probability that random calls make any worker look this slow


@detector(*CAUSES, precedence=Precedence.MOST_CALLS)
def find_slow_work(evidence: Evidence) -> Findings:
    """Yield a finding for each kind of work that was slow in the median of a worker's calls.

    The physical fact: most of its calls took longer than their kind takes. Tools are of a kind if they have
    one name. What most workers of a step share is explained before its workers are compared; unless one
    worker of the step was slower by far more than all of them: then its calls filled what they share. A
    call that queued as others of the run do had no slow engine.
    """
    by_name = list(slow_tools(evidence))
    yield from by_name
    evidence = evidence.without([answer.calls for answer in by_name])
    for kind in list(evidence.work):
        seen = evidence.without([explained_by_queues(evidence)]) if kind == "engine" else evidence
        answers = list(_of_kind(seen, kind, seen.work[kind])) if kind in seen.work else []
        if kind == "tool" and answers:
            named = evidence.with_tools_by_name(steps_of(answers))
            answers = answers if named is evidence else list(_of_kind(named, kind, named.work[kind]))
        yield from answers


def _of_kind(evidence: Evidence, kind: str, work: Work) -> Iterator[Explained]:
    timed, effects = work.timed, work.effects
    fillers = _fillers(work, effects.slow) if kind in _SHARED else pl.DataFrame()
    filled = list(_slow_steps_by_worker(evidence, kind, timed, fillers))
    rest = effects.slow
    if kind == "engine":
        rest = beyond_load(evidence, rest, STEP)
    if filled:
        named = pl.DataFrame([place_of(vars(answer.finding)) for answer in filled])
        rest = rest.join(named, on=STEP, how="anti")
    of_steps = [*filled, *_slow_steps(evidence, kind, timed, rest)]
    yield from of_steps
    medians = work.medians
    if of_steps:
        timed = timed_calls(less_time(timed, [answer.calls for answer in of_steps]), kind)
        medians = worker_medians(timed)
    yield from _slow_workers(evidence, kind, timed, medians)


def _fillers(work: Work, slow: pl.DataFrame) -> pl.DataFrame:
    """Return for slow steps the worker that was slower than the others by far more than all of them were.

    Returns:
        step, validate, worker; `excess` above the others, `shared_excess` of all of them above the usual.
    """
    workers = slow_workers(work.medians, WORK_LIMITS)
    shared = slow.select(*STEP, shared_excess="excess")
    far = workers.join(shared, on=STEP).filter(pl.col("excess") > _FAR_MORE * pl.col("shared_excess"))
    if far.is_empty():
        return far
    unlikely = _not_by_chance(work.timed, work.medians, workers)
    far = far.join(unlikely.select(STEP_OF_WORKER), on=STEP_OF_WORKER)
    return far.sort("excess", "worker", descending=[True, False]).unique(STEP, keep="first").sort(STEP)


def _slow_steps_by_worker(
    evidence: Evidence, kind: str, timed: pl.DataFrame, fillers: pl.DataFrame
) -> Iterator[Explained]:
    """Yield a finding about each worker whose calls filled what all workers of its step share."""
    for row in fillers.iter_rows(named=True):
        of_step = timed.filter(*(pl.col(name) == row[name] for name in STEP))
        more = pl.when(pl.col("worker") == row["worker"]).then(row["excess"]).otherwise(0.0)
        calls = excess_of(of_step.with_columns(excess=row["shared_excess"] + more))
        lost = evidence.worth(evidence.lost_in_requests(calls))
        if lost.is_empty():
            continue
        lost_sec, times = float(lost["lost_sec"][0]), math.exp(row["excess"])
        sentence = (
            f"{where(row)} took {times:.1f} times the {kind} time per {UNITS[kind]} of the other workers, "
            f"whose own was {math.exp(row['shared_excess']):.1f} times the usual beside it; "
            f"{seconds(lost_sec)} lost"
        )
        yield _of_worker(kind, row, lost_sec, sentence, calls)


def _slow_steps(
    evidence: Evidence, kind: str, timed: pl.DataFrame, slow: pl.DataFrame
) -> Iterator[Explained]:
    if slow.is_empty():
        return
    calls = excess_of(timed.join(slow.select(*STEP, "excess"), on=STEP))
    lost = evidence.worth(evidence.lost_in_requests(calls)).join(slow, on=STEP)
    of_step = calls.partition_by(STEP, as_dict=True)
    for row in lost.join(evidence.sizes, on=STEP).sort(STEP).iter_rows(named=True):
        times = math.exp(row["excess"])
        sentence = (
            f"{where(row)}: {kind} time per {UNITS[kind]} was {times:.1f} times the usual"
            f"{shared_by(row['having'], row['workers'])}; {seconds(row['lost_sec'])} lost"
        )
        finding = Finding(
            cause=kind,
            scope="step",
            lost_sec=row["lost_sec"],
            sentence=sentence,
            **place_of(row),
            event=kind,
            evidence={"times": times},
        )
        yield Explained(finding, of_step[row["step"], row["validate"]])


def _slow_workers(
    evidence: Evidence, kind: str, timed: pl.DataFrame, medians: pl.DataFrame
) -> Iterator[Explained]:
    slow = slow_workers(medians, WORK_LIMITS)
    if kind == "engine":
        slow = slow.filter(~pl.col("worker").is_in(_behind_logged_servers(evidence)))
        slow = beyond_load(evidence, slow, STEP_OF_WORKER)
    slow = _not_by_chance(timed, medians, slow)
    if slow.is_empty():
        return
    calls = excess_of(timed.join(slow.select(*STEP_OF_WORKER, "excess"), on=STEP_OF_WORKER))
    lost = evidence.worth(evidence.lost_by_each(evidence.late_by_requests(calls)))
    of_worker = calls.partition_by(STEP_OF_WORKER, as_dict=True)
    for row in lost.join(slow, on=STEP_OF_WORKER, maintain_order="left").iter_rows(named=True):
        lost_sec, times = row["lost_sec"], math.exp(row["excess"])
        sentence = (
            f"{where(row)} took {times:.1f} times the {kind} time per {UNITS[kind]} of the other workers; "
            f"{seconds(lost_sec)} lost"
        )
        yield _of_worker(
            kind, row, lost_sec, sentence, of_worker[row["step"], row["validate"], row["worker"]]
        )


def _behind_logged_servers(evidence: Evidence) -> list[int]:
    """Return the workers that share servers with others, where these log what they did for each call.

    Such a worker has no engine of its own that could be slow: its server is, or its way to it.
    """
    known = evidence.served.drop_nulls(["server", "queue_sec", "decode_sec"])
    shared = known.filter(pl.col("worker").n_unique().over("server") > 1)
    return sorted(shared["worker"].unique().to_list())


def _of_worker(
    kind: str, row: dict[str, Any], lost_sec: float, sentence: str, calls: pl.DataFrame
) -> Explained:
    finding = Finding(
        cause=kind,
        scope="worker",
        lost_sec=lost_sec,
        sentence=sentence,
        **place_of(row),
        event=kind,
        evidence={"times": math.exp(row["excess"]), "calls": row["calls"]},
    )
    return Explained(finding, calls)


def _not_by_chance(timed: pl.DataFrame, groups: pl.DataFrame, slow: pl.DataFrame) -> pl.DataFrame:
    """Return the slow workers most of whose calls are hardly drawn from those of all others.

    Each call is measured against what most workers of its step share. A worker that is slow in a step counts
    neither against itself nor against others that are slow there: one cause may slow several workers.
    """
    if slow.is_empty():
        return slow
    shared = groups.group_by(STEP).agg(shared=pl.col("value").quantile(0.5, "lower"))
    off = timed.join(shared, on=STEP).select(*STEP_OF_WORKER, off=(pl.col("log") - pl.col("shared")).exp())
    draws, of_slow = Draws(off["off"]), off.join(slow, on=STEP_OF_WORKER, how="semi")
    chances = {}
    for (worker,), mine in slow.join(shared, on=STEP).group_by("worker"):
        alike = of_slow.join(mine, on=STEP, how="semi")["off"].sort().to_numpy()
        for row in mine.iter_rows(named=True):
            share = draws.chance_to_reach(math.exp(row["reached"] - row["shared"]), alike)
            chance = chance_of_so_many(row["calls"] // 2 + 1, row["calls"], share)
            chances[row["step"], row["validate"], worker] = chance
    unlikely = [chances[key] * len(groups) < _CHANCE for key in slow.select(STEP_OF_WORKER).iter_rows()]
    return slow.filter(pl.Series(unlikely))
