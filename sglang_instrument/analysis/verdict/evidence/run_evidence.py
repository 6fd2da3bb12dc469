"""Hold what the detectors look at, and estimate what a step would gain without a delay."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.steps import worker_steps
from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER, step_windows, worker_parts
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.digest import Digest
from sglang_instrument.analysis.verdict.evidence.calls import calls_of

LEAST_SEC: Final = 0.5  # a shorter time is not worth a finding
OF_STEP: Final = 0.05  # nor is a smaller share of the step


@dataclass
class Evidence:
    """What the detectors look at.

    A detector that explains a part of a call's time takes it away from `calls`, so that those after it do not
    explain it again.

    Attributes:
        digest: Of the run's rollout workers.
        everything: Of all processes.
        files: The files of the run.
        over: Whether the run is over.
    """

    digest: Digest
    everything: Digest
    files: list[File]
    over: bool

    @cached_property
    def windows(self) -> pl.DataFrame:
        """When each step was, in the order of time: `ledger.step_windows`."""
        return step_windows(self.digest)

    @cached_property
    def workers(self) -> pl.DataFrame:
        """The steps of workers, with `duration_sec` and `busy_sec`: `steps.worker_steps`."""
        return worker_steps(self.digest)

    @cached_property
    def calls(self) -> pl.DataFrame:
        """The calls within requests: `calls.calls_of`."""
        return calls_of(self.digest)

    @cached_property
    def parts(self) -> pl.DataFrame:
        """Seconds of each part outside of requests: `ledger.worker_parts`."""
        parts = worker_parts(self.digest).filter(pl.col("part") != "blocked loop")  # has a detector of its own
        return parts.sort("part", "event", *STEP_OF_WORKER)

    def explain(self, calls: pl.DataFrame) -> None:
        """Take the `excess_sec` of calls, which have their `row` in `calls`, away from their seconds."""
        rest = self.calls["sec"].gather(calls["row"]) - calls["excess_sec"]
        self.__dict__["calls"] = self.calls.with_columns(sec=self.calls["sec"].scatter(calls["row"], rest))

    def lost_in_requests(self, excess: pl.DataFrame) -> pl.DataFrame:
        """Return what steps lost by delays of requests.

        Args:
            excess: step, validate, worker, request_id, and `excess_sec`, the delay.

        Returns:
            step, validate, lost_sec: how much sooner the last worker would have been done.
        """
        ends = self.digest.requests.join(excess, on=STEP_OF_WORKER, how="semi")
        by_request = excess.group_by(*STEP_OF_WORKER, "request_id").agg(pl.col("excess_sec").sum())
        ends = ends.select(*STEP_OF_WORKER, "request_id", "end_us").join(
            by_request, on=[*STEP_OF_WORKER, "request_id"], how="left"
        )
        sooner = pl.col("end_us") - (pl.col("excess_sec").fill_null(0.0) * 1e6).cast(pl.Int64)
        done = ends.group_by(STEP_OF_WORKER).agg(excess_sec=(pl.col("end_us").max() - sooner.max()) / 1e6)
        return self.lost_by_workers(done.filter(pl.col("excess_sec") > 0))

    def lost_by_workers(self, excess: pl.DataFrame) -> pl.DataFrame:
        """Return what steps lost by delays of workers.

        Args:
            excess: step, validate, worker, and `excess_sec`, the delay.

        Returns:
            step, validate, lost_sec: how much sooner the last worker would have been done.
        """
        late = excess.group_by(STEP_OF_WORKER).agg(pl.col("excess_sec").sum())
        busy = self.workers.join(late, on=STEP, how="semi").select(*STEP_OF_WORKER, "busy_sec")
        busy = busy.join(late, on=STEP_OF_WORKER, how="left")
        without = pl.col("busy_sec") - pl.col("excess_sec").fill_null(0.0)
        return busy.group_by(STEP).agg(lost_sec=pl.col("busy_sec").max() - without.max())

    def worth(self, lost: pl.DataFrame) -> pl.DataFrame:
        """Return the rows whose `lost_sec` is worth a finding, by how long the step's workers took."""
        took = self.windows.select(*STEP, took_sec=(pl.col("done_us") - pl.col("begin_us")) / 1e6)
        of_step = lost.join(took, on=STEP, how="left", maintain_order="left")
        least = pl.max_horizontal(pl.lit(LEAST_SEC), OF_STEP * pl.col("took_sec"))
        return of_step.filter(pl.col("lost_sec") > least).drop("took_sec")
