"""What the report tells of all steps of a run, also of one of which only some steps are read in detail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from sglang_instrument.analysis.answers.lengths import length_table
from sglang_instrument.analysis.answers.steps import step_table
from sglang_instrument.analysis.verdict.verdict import Verdict, judge

if TYPE_CHECKING:
    from sglang_instrument.analysis.long_runs.pieces import LongRun
    from sglang_instrument.analysis.long_runs.summary import LongSummary
    from sglang_instrument.analysis.run.health import Health
    from sglang_instrument.analysis.run.opening import Run


@dataclass(frozen=True)
class Overview:
    """What is known of all steps of a run.

    Attributes:
        name: The folder and, if several runs share it, which of them is shown.
        steps: `step_table`.
        lengths: `length_table`, training and validation.
        verdict: `judge`.
        workers: How many rollout workers there are.
        bytes: How large the log is.
        health: What was read of it and what was left out.
        in_detail: How many steps are read in detail, of how many; None if all are.
        sample: The run, or steps of it that stand for all: what other settings would save is simulated on it.
    """

    name: str
    steps: pl.DataFrame
    lengths: pl.DataFrame
    verdict: Verdict
    workers: int
    bytes: int
    health: Health
    sample: Run
    in_detail: tuple[int, int] | None = None

    @classmethod
    def of(cls, run: Run) -> Overview:
        """Return what a run tells that is read as a whole."""
        return cls(
            name=run.name,
            steps=step_table(run.digest),
            lengths=length_table(run.digest),
            verdict=judge(run),
            workers=len(run.worker_ranks),
            bytes=sum(file.size for file in run.files),
            health=run.health,
            sample=run,
        )

    @classmethod
    def of_long(cls, run: LongRun, summary: LongSummary, part: Run, sample: Run) -> Overview:
        """Return what the pieces of a long run tell; `part` has the steps that are read in detail."""
        steps, workers = summary.tables[:2]
        advice = summary.findings[0].advice if summary.findings else ""
        in_detail = part.digest.steps.n_unique("step"), steps.n_unique("step")
        return cls(
            name=summary.name,
            steps=steps,
            lengths=summary.lengths,
            verdict=Verdict(summary.findings, summary.sentence, advice, summary.calm),
            workers=workers["worker"].n_unique(),
            bytes=run.bytes,
            health=summary.health,
            sample=sample,
            in_detail=in_detail,
        )
