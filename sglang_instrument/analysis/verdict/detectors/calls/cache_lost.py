"""Find steps in which the engines' caches had lost what conversations had left there."""

from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.verdict.evidence.detector import (
    Explained,
    Findings,
    NamedCause,
    Precedence,
    detector,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.servers.routed import (
    FEWEST_CALLS,
    NOT_PLANTED,
    SOME_SHARE,
    hit_share,
    later_calls,
    lost_by,
    missing_tokens,
    read_again,
)

CACHE_LOST: Final = NamedCause(
    "cache-lost",
    "step",
    "the caches of the engines had [less than half as much](#servers-and-their-caches) of the "
    "conversations as is usual in the run",
    "look for a flush, a restart, a router that forgot its servers: `servers LOGS{step} --over-time`",
    not_planted=NOT_PLANTED,
)
_FEWEST_STEPS: Final = 3
_USUAL: Final = 0.75  # quantile over the other steps: a collapse may last for most of a run
_COLLAPSED: Final = 0.5  # times the usual


@detector(CACHE_LOST, precedence=Precedence.SERVER)
def find_lost_caches(evidence: Evidence) -> Findings:
    """Yield a finding for each step whose later calls found far less in the cache than is usual."""
    if evidence.served.is_empty():
        return
    later = later_calls(evidence)
    steps = later.group_by(STEP).agg(pl.len(), share=hit_share())
    steps = steps.filter(pl.col("len") >= FEWEST_CALLS)
    for row in steps.sort(STEP).iter_rows(named=True):
        others = steps.filter(validate=row["validate"]).filter(pl.col("step") != row["step"])["share"]
        usual: Any = others.quantile(_USUAL, "nearest")
        if len(others) + 1 < _FEWEST_STEPS or usual < SOME_SHARE or row["share"] >= _COLLAPSED * usual:
            continue
        again = read_again(evidence, later.filter(*(pl.col(name) == row[name] for name in STEP)), usual)
        lost = lost_by(evidence, again, in_flow=True)
        if lost is None:
            continue
        lost_sec, calls = lost
        sentence = (
            f"{where(row)}: the caches had {_percent(row['share'])} of what conversations had left there, "
            f"where {_percent(usual)} are usual; {seconds(lost_sec)} lost"
        )
        numbers = {"share": row["share"], "usual_share": usual, "tokens": missing_tokens(again)}
        finding = Finding(
            CACHE_LOST.name, "step", lost_sec, sentence, **place_of(row), event="engine", evidence=numbers
        )
        yield Explained(finding, calls)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
