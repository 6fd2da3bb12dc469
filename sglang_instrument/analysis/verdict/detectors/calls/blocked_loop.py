"""Find event loops that code blocked for a large part of a step, and name the code."""

from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.gaps import loop_blocks
from sglang_instrument.analysis.ledger.intervals import one_at_a_time, sec_between
from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.detector import (
    Explained,
    Findings,
    NamedCause,
    Precedence,
    detector,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.servers.routed import at_least, lost_in_flow

BLOCKED_LOOP: Final = NamedCause(
    "blocked-loop",
    "worker, step",
    "code blocked the event loop. The sampled frame names it. It is the step's if more than half of its "
    "workers were blocked for at least half as long as the longest",
    "move the named code off the event loop, into a thread or process pool; `gaps LOGS` lists all",
)
_BUSY: Final = 0.5  # so much CPU in a second, though the loop's own code was not seen to run
_ALIKE: Final = 0.5  # blocked for this share of the longest time of a step's workers


@detector(BLOCKED_LOOP, precedence=Precedence.RECORDED)
def find_blocked_loops(evidence: Evidence) -> Findings:
    """Yield a finding for each worker whose event loop was blocked, with the code that blocked it longest.

    Where most workers were blocked for about as long, it is one finding of the step.
    """
    steps = evidence.digest.steps
    blocks = loop_blocks(evidence.files).join(
        steps, on=["role", *STEP_OF_WORKER], how="semi", maintain_order="left"
    )
    if blocks.is_empty():
        return
    begun = pl.col("at_us") - (pl.col("blocked_sec") * 1e6).cast(pl.Int64)
    intervals = blocks.select(*STEP_OF_WORKER, from_us=begun, to_us="at_us")
    # Two loops of a process block each other: what both report counts once.
    intervals = one_at_a_time(intervals, STEP_OF_WORKER).with_columns(sec=sec_between("from_us", "to_us"))
    sums = intervals.group_by(STEP_OF_WORKER).agg(excess_sec=pl.col("sec").sum())
    alike = pl.col("excess_sec") >= _ALIKE * pl.col("excess_sec").max().over(STEP)
    shared = (alike.sum().over(STEP) * 2 > pl.col("workers")) & (pl.col("workers") > 1)
    blocked = sums.join(evidence.sizes, on=STEP).with_columns(shared=shared)
    of_steps = blocked.filter("shared")
    of_steps = of_steps.join(evidence.worth(evidence.lost_by_workers(of_steps)), on=STEP)
    of_workers = blocked.filter(~pl.col("shared"))
    lost = evidence.lost_by_each(of_workers)
    if evidence.flows:
        calls = evidence.calls.with_columns(call_sec="sec")
        late = _calls_in(calls, intervals.join(of_workers, on=STEP_OF_WORKER, how="semi"))
        late = late.join(calls.select("row", *STEP_OF_WORKER), on="row")
        in_flow = lost_in_flow(evidence, calls, late, STEP_OF_WORKER)
        lost = at_least(lost, in_flow, STEP_OF_WORKER)
    of_workers = of_workers.join(evidence.worth(lost), on=STEP_OF_WORKER)
    worth = blocks.join(pl.concat([of_steps, of_workers]), on=STEP_OF_WORKER, maintain_order="left")
    for _, rows in worth.group_by(*STEP, pl.when(~pl.col("shared")).then("worker"), maintain_order=True):
        blocked = intervals.join(rows, on=STEP_OF_WORKER, how="semi")
        yield Explained(_finding(rows), _calls_in(evidence.calls, blocked))


def _finding(blocks: pl.DataFrame) -> Finding:
    """Return the finding of a worker, or of a step, from its blocks, the longest first."""
    longest = blocks.row(0, named=True)
    shared, blocked_sec = longest["shared"], float(blocks["excess_sec"].max())  # type: ignore[arg-type]  # a float
    place = {name: longest[name] for name in STEP} if shared else place_of(longest)
    by = longest["culprit"] or longest["in_span"]
    sentence = f"{where(place)} had its event loop blocked for {seconds(blocked_sec)}"
    if shared:
        workers = f"{blocks['worker'].n_unique()} of {longest['workers']} workers"
        sentence = (
            f"{where(place)}: {workers} had their event loops blocked, for up to {seconds(blocked_sec)}"
        )
    return Finding(
        cause=BLOCKED_LOOP.name,
        scope="step" if shared else "worker",
        lost_sec=longest["lost_sec"],
        sentence=sentence + (f" by {by}" if by else _by_nothing_seen(longest)),
        **place,
        event=longest["in_span"],
        evidence={
            "blocked_sec": blocked_sec,
            "times": len(blocks),
            "in_span": longest["in_span"],
            "culprit": by,
            "cpu_sec": longest["cpu_sec"],
        },
    )


def _by_nothing_seen(block: dict[str, Any]) -> str:
    """Return what kept a loop from running whose own code was not seen to run."""
    cpu_sec, blocked_sec = block["cpu_sec"], block["blocked_sec"]
    if cpu_sec is None:
        return ""
    used = f"({seconds(cpu_sec)} of CPU in {seconds(blocked_sec)})"
    if (block["thread_cpu_sec"] or 0.0) >= _BUSY * blocked_sec:
        return f" by its own code, which held the interpreter's lock {used}"
    if cpu_sec >= _BUSY * blocked_sec:
        return f" by another thread, which held the interpreter's lock {used}"
    return f": its process was stopped, had no core, or waited with the interpreter's lock held {used}"


def _calls_in(calls: pl.DataFrame, blocked: pl.DataFrame) -> pl.DataFrame:
    """Return the time of calls in which the loops of their workers were blocked: row, excess_sec."""
    calls = calls.join(blocked, on=STEP_OF_WORKER)
    inside = pl.min_horizontal("end_us", "to_us") - pl.max_horizontal("start_us", "from_us")
    calls = calls.filter(inside > 0).with_columns(excess_sec=inside / 1e6)
    over = (pl.col("sec") - pl.col("usual_sec")).first().clip(lower_bound=0.0)
    # The engine goes on meanwhile, so a call lost at most what it took longer than usual.
    sums = calls.group_by("row").agg(pl.col("excess_sec").sum(), over_sec=over)
    return sums.with_columns(excess_sec=pl.min_horizontal("excess_sec", "over_sec"))
