"""Find steps, or a run, in which later calls went to servers without their conversation."""

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
    in_step_of,
    later_calls,
    lost_by,
    missing_tokens,
    read_again,
)

CONVERSATIONS_MOVED: Final = NamedCause(
    "conversations-moved",
    "step, run",
    "later calls went to servers [without their conversation](#servers-and-their-caches), which read it "
    "again; of the run if most steps have it",
    "use a cache-aware policy of the router, or pin a conversation to its server; `servers LOGS{step}`",
    not_planted=NOT_PLANTED,
)
_MOST_STEPS: Final = 0.5  # of the steps; if more have it, it is said of the run
_MOVED: Final = ("moved", "of", "tokens")

_Step = tuple[dict[str, Any], pl.DataFrame]  # the numbers of a step, and the time of calls that they explain


@detector(CONVERSATIONS_MOVED, precedence=Precedence.SERVER)
def find_moved_conversations(evidence: Evidence) -> Findings:
    """Yield what steps lost because later calls went to servers without their conversation."""
    if evidence.served.is_empty():
        return
    later = later_calls(evidence).drop_nulls("moved")
    moved, stayed = later.filter("moved"), later.filter(~pl.col("moved"))
    if len(moved) < FEWEST_CALLS or len(stayed) < FEWEST_CALLS:
        return
    usual = stayed.select(hit_share()).item()
    steps = []
    for _, part in moved.group_by(STEP, maintain_order=True) if usual >= SOME_SHARE else ():
        again = read_again(evidence, part, usual)
        lost = lost_by(evidence, again, in_flow=True)
        if lost is not None:
            row = {name: part[name][0] for name in STEP}
            numbers = {
                "moved": len(part),
                "of": len(in_step_of(later, part)),
                "tokens": missing_tokens(again),
            }
            steps.append(({**row, "lost_sec": lost[0], **numbers}, lost[1]))
    if len(steps) > _MOST_STEPS * len(evidence.windows) and len(steps) > 1:
        yield _of_run(steps, usual)
    else:
        yield from (_of_step(row, calls, usual) for row, calls in steps)


def _of_run(steps: list[_Step], usual: float) -> Explained:
    sums = {name: sum(row[name] for row, _ in steps) for name in _MOVED}
    lost_sec = sum(row["lost_sec"] for row, _ in steps) / len(steps)
    sentence = f"{_moved_words(sums)}; {seconds(lost_sec)} lost in a step, in {len(steps)} steps"
    numbers = {**sums, "steps": len(steps), "cached_share_stayed": usual}
    finding = Finding(CONVERSATIONS_MOVED.name, "run", lost_sec, sentence, event="engine", evidence=numbers)
    return Explained(finding, pl.concat(calls for _, calls in steps))


def _of_step(row: dict[str, Any], calls: pl.DataFrame, usual: float) -> Explained:
    sentence = f"{where(row)}: {_moved_words(row)}; {seconds(row['lost_sec'])} lost"
    numbers = {**{name: row[name] for name in _MOVED}, "cached_share_stayed": usual}
    finding = Finding(
        CONVERSATIONS_MOVED.name,
        "step",
        row["lost_sec"],
        sentence,
        **place_of(row),
        event="engine",
        evidence=numbers,
    )
    return Explained(finding, calls)


def _moved_words(row: dict[str, Any]) -> str:
    return (
        f"{row['moved']:,} of {row['of']:,} later calls went to a server without their conversation, and "
        f"{row['tokens']:,} tokens were read again"
    )
