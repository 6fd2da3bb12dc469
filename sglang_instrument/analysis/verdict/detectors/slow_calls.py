"""Find calls that took far longer than all others: a single one, or several of a worker or a step."""

import math
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.calls import KINDS
from sglang_instrument.analysis.verdict.evidence import LEAST_SEC, OF_STEP, Evidence
from sglang_instrument.analysis.verdict.finding import Finding, seconds, step_name
from sglang_instrument.analysis.verdict.outliers import chance_to_reach

_TIMES: Final = 3.0  # times the usual of such a call
_CHANCE: Final = 1e-4  # largest allowed probability that any worker draws so many long calls
_CALLS: Final = {"engine": "engine calls", "tool": "tool calls", "interaction": "interactions", "reward": "rewards"}


def find_slow_calls(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each worker with calls that are no part of the usual spread."""
    for kind in KINDS:
        yield from _of_kind(evidence, kind)


def _of_kind(evidence: Evidence, kind: str) -> Iterator[Finding]:
    calls = evidence.calls.with_row_index("row").filter((pl.col("kind") == kind) & (pl.col("usual_sec") > 0))
    calls = calls.join(evidence.windows.select(*STEP, "wall_sec"), on=STEP, maintain_order="left")
    over = pl.col("sec") - pl.col("usual_sec")
    least = pl.max_horizontal(pl.lit(LEAST_SEC), OF_STEP * pl.col("wall_sec"))
    calls = calls.with_columns(excess_sec=over, times=pl.col("sec") / pl.col("usual_sec"))
    long = calls.filter((pl.col("times") > _TIMES) & (over > least))
    groups = calls.group_by(STEP_OF_WORKER).len()
    for key, found in long.group_by(STEP_OF_WORKER, maintain_order=True):
        mine = pl.all_horizontal(pl.col(name) == value for name, value in zip(STEP_OF_WORKER, key, strict=True))
        total = int(groups.filter(mine)["len"][0])
        others = calls.filter(~mine)["times"]
        likely = _most_unlikely(found["times"].sort(descending=True).to_list(), total, others)
        if likely is None or likely[1] * len(groups) > _CHANCE:
            continue
        found = found.sort("times", descending=True).head(likely[0])
        lost = evidence.lost_in_requests(found.select(*STEP_OF_WORKER, "request_id", "excess_sec"))
        lost_sec = float(lost["lost_sec"].sum())
        evidence.explain(found["row"], found["excess_sec"])
        yield _finding(kind, dict(zip(STEP_OF_WORKER, key, strict=True)), found, total, lost_sec)


def _most_unlikely(times: list[float], total: int, others: pl.Series) -> tuple[int, float] | None:
    """Return how many of the longest calls are least likely to be drawn from the others, and that chance."""
    from scipy.stats import binom

    best: tuple[int, float] | None = None
    for count, reached in enumerate(times, 1):
        chance = float(binom.sf(count - 1, total, chance_to_reach(others, reached)))
        if best is None or chance <= best[1]:
            best = (count, chance)
    return best


def _finding(kind: str, place: dict[str, Any], found: pl.DataFrame, total: int, lost_sec: float) -> Finding:
    longest = found.sort("excess_sec").row(-1, named=True)
    where = f"{step_name(place['step'], place['validate'])}: worker {place['worker']}"
    numbers = {
        "calls": len(found),
        "of": total,
        "excess_sec": float(found["excess_sec"].sum()),
        "longest_sec": longest["sec"],
        "usual_sec": longest["usual_sec"],
        "requests": found["request_id"].unique().sort().to_list()[:20],
    }
    cost = f"{seconds(lost_sec)} lost" if lost_sec > 0.05 else "other requests took even longer"
    if len(found) == 1:
        sentence = (
            f"{where}: one of {total} {_CALLS[kind]} took {seconds(longest['sec'])}, where "
            f"{seconds(longest['usual_sec'])} are usual (request {longest['request_id']}); {cost}"
        )
        named: dict[str, Any] = {"request_id": longest["request_id"]}
        return Finding("slow-call", "request", lost_sec, sentence, **place, **named, event=kind, evidence=numbers)
    usual = math.exp(float(found["times"].log().median() or 0.0))  # type: ignore[arg-type]
    sentence = f"{where}: {len(found)} of {total} {_CALLS[kind]} took {usual:.0f} times the usual; {cost}"
    return Finding("slow-calls", "worker", lost_sec, sentence, **place, event=kind, evidence=numbers)
