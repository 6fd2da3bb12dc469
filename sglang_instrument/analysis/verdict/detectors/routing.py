"""Find what the way of calls to servers cost: lost caches, moved conversations, one server with too many."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.chance import chance_of_so_many
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

_FEWEST: Final = 8  # calls; with fewer, their share in the cache is not judged
_FEWEST_STEPS: Final = 3
_USUAL: Final = 0.75  # quantile over the other steps: a collapse may last for most of a run
_SOME: Final = 0.3  # of the expected tokens; where less is usual, nothing can collapse
_COLLAPSED: Final = 0.5  # times the usual
_UNEVEN: Final = 1.3  # times the mean time in calls of all servers
_CHANCE: Final = 1e-3
_MOST_STEPS: Final = 0.5  # of the steps; if more have it, it is said of the run

_MOVED: Final = ("moved", "of", "tokens")

_MISSING: Final = pl.col("missing_tokens")


def find_lost_caches(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each step whose later calls found far less in the cache than is usual."""
    later = _later(evidence)
    steps = later.group_by(STEP).agg(pl.len(), share=_hit_share())
    steps = steps.filter(pl.col("len") >= _FEWEST)
    for row in steps.sort(STEP).iter_rows(named=True):
        others = steps.filter(validate=row["validate"]).filter(pl.col("step") != row["step"])["share"]
        usual: Any = others.quantile(_USUAL, "nearest")
        if len(others) + 1 < _FEWEST_STEPS or usual < _SOME or row["share"] >= _COLLAPSED * usual:
            continue
        found = _read_again(later.filter(*(pl.col(name) == row[name] for name in STEP)), usual)
        lost_sec = _lost(evidence, found)
        if lost_sec is None:
            continue
        sentence = (
            f"{where(row)}: the caches had {_percent(row['share'])} of what conversations had left there, "
            f"where {_percent(usual)} are usual; {seconds(lost_sec)} lost"
        )
        numbers = {"share": row["share"], "usual_share": usual, "tokens": _tokens(found)}
        yield Finding(
            "cache-lost", "step", lost_sec, sentence, **place_of(row), event="engine", evidence=numbers
        )


def find_moved_conversations(evidence: Evidence) -> Iterator[Finding]:
    """Yield what steps lost because later calls went to servers without their conversation."""
    later = _later(evidence).drop_nulls("moved")
    moved, stayed = later.filter("moved"), later.filter(~pl.col("moved"))
    if len(moved) < _FEWEST or len(stayed) < _FEWEST:
        return
    usual = stayed.select(_hit_share()).item()
    found = []
    for _, part in moved.group_by(STEP, maintain_order=True) if usual >= _SOME else ():
        again = _read_again(part, usual)
        lost_sec = _lost(evidence, again)
        if lost_sec is not None:
            row = {name: part[name][0] for name in STEP}
            numbers = {"moved": len(part), "of": len(_in_step(later, part)), "tokens": _tokens(again)}
            found.append({**row, "lost_sec": lost_sec, **numbers})
    yield from _of_run(found, evidence, usual)


def _of_run(found: list[dict[str, Any]], evidence: Evidence, usual: float) -> Iterator[Finding]:
    """Yield a finding for each step, or one for the run if most steps have it."""
    if len(found) > _MOST_STEPS * len(evidence.windows) and len(found) > 1:
        sums = {name: sum(one[name] for one in found) for name in _MOVED}
        lost_sec = sum(one["lost_sec"] for one in found) / len(found)
        sentence = f"{_moved_words(sums)}; {seconds(lost_sec)} lost in a step, in {len(found)} steps"
        numbers = {**sums, "steps": len(found), "cached_share_stayed": usual}
        yield Finding("conversations-moved", "run", lost_sec, sentence, event="engine", evidence=numbers)
        return
    for row in found:
        sentence = f"{where(row)}: {_moved_words(row)}; {seconds(row['lost_sec'])} lost"
        numbers = {**{name: row[name] for name in _MOVED}, "cached_share_stayed": usual}
        yield Finding(
            "conversations-moved",
            "step",
            row["lost_sec"],
            sentence,
            **place_of(row),
            event="engine",
            evidence=numbers,
        )


def _moved_words(row: dict[str, Any]) -> str:
    return (
        f"{row['moved']:,} of {row['of']:,} later calls went to a server without their conversation, and "
        f"{row['tokens']:,} tokens were read again"
    )


def find_uneven_servers(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each step in which one server got far more conversations, and made them wait.

    Servers that had joined later, or had left before, do not count in a step.
    """
    calls = _shared(evidence).drop_nulls(["server", "call_sec"])
    lives = calls.group_by("server").agg(pl.col("start_us").min(), pl.col("end_us").max())
    homes = calls.group_by(*STEP_OF_WORKER, "request_id").agg(pl.col("server").mode().sort().first())
    steps = [(part, _lived(lives, part)) for _, part in calls.group_by(STEP, maintain_order=True)]
    whole = [_in_step(homes, part) for part, servers in steps if servers == len(lives)]
    of_run = _unlikely(pl.concat(whole), len(lives), 1) if whole else set()
    for part, servers in steps:
        own = _in_step(homes, part)
        spent = part.group_by("server").agg(sec=pl.col("call_sec").sum()).sort("sec", "server")
        busiest, most_sec = spent.row(-1)
        is_uneven = servers > 1 and most_sec * servers > _UNEVEN * float(spent["sec"].sum())
        if is_uneven and busiest in of_run | _unlikely(own, servers, len(evidence.windows)):
            yield from _uneven(evidence, part, own, busiest, servers)


def _lived(lives: pl.DataFrame, part: pl.DataFrame) -> int:
    """Return how many servers had calls before the end of a step, and after its begin."""
    return len(
        lives.filter(pl.col("start_us") <= part["end_us"].max(), pl.col("end_us") >= part["start_us"].min())
    )


def _in_step(rows: pl.DataFrame, part: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(*(pl.col(name) == part[name][0] for name in STEP))


def _unlikely(homes: pl.DataFrame, servers: int, tries: int) -> set[str]:
    """Return the servers of which chance does not explain how many conversations they got."""
    counts = homes.group_by("server").len().iter_rows()
    return {
        name
        for name, had in counts
        if chance_of_so_many(had, len(homes), 1 / servers) * servers * tries < _CHANCE
    }


def _uneven(
    evidence: Evidence, part: pl.DataFrame, homes: pl.DataFrame, busiest: str, servers: int
) -> Iterator[Finding]:
    had, of = len(homes.filter(server=busiest)), len(homes)
    late = _longer(part, busiest, servers)
    lost_sec = _lost(evidence, late)
    if lost_sec is None:
        return
    row = {name: part[name][0] for name in STEP}
    own_queue, others_queue = _queued(part, busiest)
    waited = ""
    if own_queue is not None and others_queue is not None:
        waited = f", and its calls queued {seconds(own_queue)} ({seconds(others_queue)} elsewhere)"
    sentence = (
        f"{where(row)}: {busiest} got {had} of {of} conversations, of {servers} servers{waited}; "
        f"{seconds(lost_sec)} lost"
    )
    numbers = {
        "server": busiest,
        "conversations": had,
        "of": of,
        "servers": servers,
        "queue_sec": own_queue,
        "others_queue_sec": others_queue,
    }
    yield Finding(
        "uneven-servers", "step", lost_sec, sentence, **place_of(row), event="engine", evidence=numbers
    )


def _queued(part: pl.DataFrame, busiest: str) -> tuple[float | None, float | None]:
    """Return how long calls queued at the busiest server, and at the others, on average."""
    queues: Any = part.select(
        own=pl.col("queue_sec").filter(pl.col("server") == busiest).mean(),
        others=pl.col("queue_sec").filter(pl.col("server") != busiest).mean(),
    ).row(0)
    return queues[0], queues[1]


def _longer(part: pl.DataFrame, busiest: str, servers: int) -> pl.DataFrame:
    """Return the calls of the busiest server with what they took longer than on the average server.

    A server without any call in the step would have had no queue.
    """
    queue = part["queue_sec"].is_not_null().any()
    running = pl.col("call_sec") - pl.col("queue_sec").fill_null(0.0)
    rated = part.with_columns(running_sec=running, rate=running / (pl.col("completion_tokens") + 1))
    usual = rated.group_by("server").agg(pl.col("queue_sec").mean(), pl.col("rate").median()).sort("server")
    mean_queue = float(usual["queue_sec"].sum() or 0.0) / servers if queue else 0.0
    mean_rate: Any = usual["rate"].mean()
    own: Any = usual.filter(server=busiest)["rate"].item()
    slower = max(0.0, 1 - mean_rate / own) if mean_rate is not None and own else 0.0
    waited = (pl.col("queue_sec").fill_null(0.0) - mean_queue).clip(lower_bound=0.0)
    late = rated.filter(server=busiest).with_columns(excess_sec=waited + pl.col("running_sec") * slower)
    return late.filter(pl.col("excess_sec") > 0)


def _shared(evidence: Evidence) -> pl.DataFrame:
    """Return the calls of workers that use several servers; where each has its own, nothing is routed."""
    calls = evidence.served
    several = pl.col("server").drop_nulls().n_unique().over("worker") > 1
    return calls.filter(several)


def _later(evidence: Evidence) -> pl.DataFrame:
    """Return the calls whose conversation had left something in a cache, and of which the cache is known."""
    calls = evidence.served
    known = pl.col("cached_tokens").is_not_null() & (pl.col("expected_tokens") > 0)
    return calls.filter(known & (pl.col("number") > 0))


def _hit_share() -> pl.Expr:
    return pl.min_horizontal("cached_tokens", "expected_tokens").sum() / pl.col("expected_tokens").sum()


def _read_again(calls: pl.DataFrame, usual: float) -> pl.DataFrame:
    """Return the calls that read more of their prompt than usual, and the seconds that this took.

    The prefill of a call took the longer, the more tokens it read: those of other calls in its batch, too.
    """
    missing = (usual * pl.col("expected_tokens") - pl.col("cached_tokens")).clip(lower_bound=0.0)
    read = pl.col("prompt_tokens") - pl.col("cached_tokens")
    rows = calls.with_columns(missing_tokens=missing).filter((_MISSING > 0) & (read > 0))
    return rows.with_columns(excess_sec=pl.col("prefill_sec") * (_MISSING / read).clip(upper_bound=1.0))


def _lost(evidence: Evidence, late: pl.DataFrame) -> float | None:
    """Return what the step lost by calls with `excess_sec`, and explain these; None if it is too little."""
    late = late.drop_nulls("excess_sec")
    if late.is_empty():
        return None
    lost = evidence.worth(evidence.lost_in_requests(late))
    if lost.is_empty():
        return None
    own = late.select(*STEP_OF_WORKER, "request_id", "turn", "excess_sec")
    engine = evidence.calls.filter(kind="engine").drop("excess_sec", strict=False)
    evidence.explain(engine.join(own, on=[*STEP_OF_WORKER, "request_id", "turn"], maintain_order="left"))
    return float(lost["lost_sec"].sum())


def _tokens(again: pl.DataFrame) -> int:
    return int(again["missing_tokens"].sum())


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
