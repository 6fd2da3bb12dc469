"""Hold what the detectors look at, and estimate what a step would gain without a delay."""

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.asynchronous.fates import sample_fates
from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests
from sglang_instrument.analysis.answers.routing.conversations import followed_calls
from sglang_instrument.analysis.answers.routing.gauges import SCHEMA as GAUGES
from sglang_instrument.analysis.answers.routing.gauges import cached_gauges
from sglang_instrument.analysis.answers.routing.server_calls import CALLS, server_calls
from sglang_instrument.analysis.answers.steps import worker_steps
from sglang_instrument.analysis.answers.weights.records import weight_spans
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.deciding_paths import Paths
from sglang_instrument.analysis.ledger.flows import flows_of
from sglang_instrument.analysis.ledger.intervals import sec_between
from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER, worker_parts
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.verdict.evidence.calls import calls_of, less_time
from sglang_instrument.analysis.verdict.evidence.deaths import UnfinishedStep, unfinished_steps
from sglang_instrument.analysis.verdict.evidence.gaps import Gaps, gaps_of
from sglang_instrument.analysis.verdict.evidence.named_tools import usual_by_tool
from sglang_instrument.analysis.verdict.evidence.outside import StepPart, parts_that_vary
from sglang_instrument.analysis.verdict.evidence.request_batches import LEAST_SEC as LEAST_SEC
from sglang_instrument.analysis.verdict.evidence.request_batches import numbered_batches, uncut
from sglang_instrument.analysis.verdict.evidence.work import Work, work_of

OF_STEP: Final = 0.05  # nor is a smaller share of the step
_OF_DETECTORS: Final = ("blocked loop",)  # parts that have a detector of their own
_LATE: Final = "late start"
_SET_UP: Final = "environment"


@dataclass
class Evidence:
    """What the detectors look at. No detector changes it.

    Attributes:
        digest: Of the run's rollout workers.
        everything: Of all processes.
        files: The files of the run.
        over: Whether the run is over.
        server_calls: Returns `server_calls` of the run; they are read if a detector asks.
        run: The run, for records that no digest holds; None where only its digest is known.
        calls: The calls within requests: `calls.calls_of`. What detectors of an earlier level explained is
            taken away from their `sec`: `without`.
    """

    digest: Digest
    everything: Digest
    files: Sequence[File]
    over: bool
    server_calls: Callable[[], pl.DataFrame] = lambda: pl.DataFrame(schema=CALLS)
    run: Run | None = None
    calls: pl.DataFrame = field(init=False)

    @classmethod
    def of(cls, run: Run, over: bool | None = None, paths: Paths | None = None) -> "Evidence":
        """Return the evidence of a run.

        Args:
            run: The run.
            over: Whether the run is over, default `run.is_over`.
            paths: Of `paths_of(run)`, if known; those that the engine's own logs split are not used.
        """
        over = run.is_over if over is None else over
        evidence = cls(run.digest.of_workers(), run.digest, run.files, over, lambda: server_calls(run), run)
        if paths is not None and paths.digest is run.digest and paths.call_times is None:
            evidence.paths = paths
        return evidence

    def __post_init__(self) -> None:
        self.calls = calls_of(self.digest)

    @cached_property
    def paths(self) -> Paths:
        """The critical paths of the workers on one clock."""
        return Paths.of(self.everything)

    @cached_property
    def work(self) -> dict[str, Work]:
        """Each kind of work within requests: `work.work_of`."""
        return work_of(self.calls, self.windows)

    @cached_property
    def outside(self) -> list[StepPart]:
        """The parts outside of requests whose times vary: `outside.parts_that_vary`."""
        return list(parts_that_vary(self.parts, self.windows, LEAST_SEC))

    @cached_property
    def gaps(self) -> Gaps:
        """The time between steps: `gaps.gaps_of`."""
        return gaps_of(self.paths)

    @cached_property
    def served(self) -> pl.DataFrame:
        """The engine calls of workers whose server or cache is known: `conversations.followed_calls`."""
        calls = self.server_calls().drop_nulls("step")
        is_known = calls["server"].count() or calls["cached_tokens"].count()
        return followed_calls(calls if is_known else calls.clear())

    @cached_property
    def gauges(self) -> pl.DataFrame:
        """What the schedulers logged once a second while they ran batches: `gauges.gauge_table`."""
        return pl.DataFrame(schema=GAUGES) if self.run is None else cached_gauges(self.run)

    @cached_property
    def weight_spans(self) -> pl.DataFrame:
        """The records of weight updates: `records.weight_spans`; without a run, none."""
        return pl.DataFrame({"part": [], "step": []}) if self.run is None else weight_spans(self.run)

    @cached_property
    def update_windows(self) -> pl.DataFrame:
        """When each server updated its weights, with its pause and drain before: server, from_us, to_us."""
        schema = {"server": pl.String, "from_us": pl.Int64, "to_us": pl.Int64}
        if self.run is None:
            return pl.DataFrame(schema=schema)
        spans = self.weight_spans.filter(pl.col("part").is_in(("pause", "drain", "transfer", "flush")))
        if spans.is_empty():  # as in runs whose servers do not log
            return pl.DataFrame(schema=schema)
        names = cached_engine_requests(self.run).select("server", process="scheduler").unique().drop_nulls()
        spans = spans.select("process", from_us="start_us", to_us="end_us")
        spans = spans.join(names, on="process", how="left")
        return spans.select(pl.coalesce("server", "process").alias("server"), "from_us", "to_us")

    @cached_property
    def fates(self) -> pl.DataFrame:
        """What became of each sample: `fates.sample_fates`."""
        return sample_fates(self.everything)

    @cached_property
    def flows(self) -> bool:
        """Whether requests flow through the workers, and steps are no batches: `flows.flows_of`."""
        return flows_of(self.everything)

    @cached_property
    def windows(self) -> pl.DataFrame:
        """When each step was, in the order of time: `ledger.step_windows`."""
        return self.paths.windows

    @cached_property
    def workers(self) -> pl.DataFrame:
        """The steps of workers: `steps.worker_steps`; `late_sec`: from the begin of the step to theirs."""
        late = self.paths.worker_windows.select(*STEP_OF_WORKER, late_sec=sec_between("begin_us", "start_us"))
        return worker_steps(self.digest).join(late, on=STEP_OF_WORKER, how="left", maintain_order="left")

    @cached_property
    def sizes(self) -> pl.DataFrame:
        """How many `workers` each step has."""
        return self.workers.group_by(STEP).agg(workers=pl.len())

    @cached_property
    def unfinished(self) -> list[UnfinishedStep]:
        """The steps that never ended: `deaths.unfinished_steps`."""
        return unfinished_steps(self.digest, self.files)

    @cached_property
    def parts(self) -> pl.DataFrame:
        """Seconds of each part outside of requests: `ledger.worker_parts`.

        With what each worker started late, and with what barriers took themselves: the shortest wait at each.
        Where requests flow, nobody waits for all workers to begin, and none begins late.
        """
        late = self.workers.select(*STEP_OF_WORKER, part=pl.lit(_LATE), event=pl.lit(_LATE), sec="late_sec")
        parts = worker_parts(self.paths).filter(~pl.col("part").is_in(_OF_DETECTORS))
        if self.flows:
            late = late.clear()
        parts = parts.filter(pl.col("part") != _SET_UP)
        parts = pl.concat([parts, late, self._barriers(), self._set_ups()], how="diagonal_relaxed")
        return parts.sort("part", "event", *STEP_OF_WORKER)

    def _set_ups(self) -> pl.DataFrame:
        """Return the seconds in which environments were set up on each worker's path, within requests, too.

        A step without any took 0 s for it.
        """
        rows = self.paths.waiting_sums.filter(pl.col("part") == _SET_UP)
        sums = rows.group_by(*STEP_OF_WORKER, "event").agg(pl.col("sec").sum())
        every = self.workers.select(STEP_OF_WORKER).join(sums.select("event").unique(), how="cross")
        every = every.join(sums, on=[*STEP_OF_WORKER, "event"], how="left", maintain_order="left")
        return every.with_columns(pl.col("sec").fill_null(0.0), part=pl.lit(_SET_UP))

    def _barriers(self) -> pl.DataFrame:
        """Return the seconds of the barriers at which all workers meet, but for waiting for others.

        In a step that lacks a worker, the others may have waited for it.
        """
        whole = self.sizes.filter(pl.col("workers") == pl.col("workers").max().over("validate"))
        whole = whole.join(self.paths.meeting, on=STEP, how="semi")
        waits = self.paths.barriers.join(whole, on=STEP, how="semi")
        least = pl.col("wait_us").min().over(*STEP, "barrier") / 1e6
        sums = waits.with_columns(sec=least).group_by(STEP_OF_WORKER).agg(pl.col("sec").sum())
        return sums.with_columns(part=pl.lit("barrier"), event=pl.lit("barrier"))

    def with_tools_by_name(self, steps: Collection[int]) -> "Evidence":
        """Return the evidence with what turns usually take that call the same tools; as it is without names.

        Args:
            steps: The steps in question, whose records are read.
        """
        if self.run is None:
            return self
        calls = usual_by_tool(self.run, self.calls, steps)
        if calls is self.calls:
            return self
        named = copy(self)
        vars(named).pop("work", None)
        named.calls = calls
        return named

    def without(self, explained: Sequence[pl.DataFrame]) -> "Evidence":
        """Return the evidence without time of calls that findings explained.

        Args:
            explained: Each with the columns row and `excess_sec` of `calls`.
        """
        explained = [calls for calls in explained if len(calls)]
        if not explained:
            return self
        rest = copy(self)  # with all that is known already
        vars(rest).pop("work", None)
        rest.calls = less_time(self.calls, explained)
        return rest

    def lost_in_requests(self, excess: pl.DataFrame) -> pl.DataFrame:
        """Return what steps lost by delays of requests.

        Args:
            excess: step, validate, worker, request_id, and `excess_sec`, the delay.

        Returns:
            step, validate, lost_sec: how much sooner the last worker would have been done.
        """
        return self.lost_by_workers(self.late_by_requests(excess))

    def lost_in_requests_or_flow(self, excess: pl.DataFrame) -> pl.DataFrame:
        """Return the same, and of steps that do not wait for their last request what their flow lost.

        Where requests overlap those of other steps, or are aborted because enough others are done, no single
        one decides: a step takes as long as its requests together, over how many of them are in flight at
        once (Little's law).

        Args:
            excess: As for `lost_in_requests`.
        """
        lost = self.lost_in_requests(excess).select(*STEP, "lost_sec")
        aborted = self.digest.requests.filter(finish_reason="abort")
        if excess.is_empty() or not (self.flows or len(aborted)):
            return lost
        if not self.flows:
            excess = excess.join(aborted, on=STEP, how="semi")
        late = excess.group_by(STEP).agg(late_sec=pl.col("excess_sec").sum())
        spent = self.digest.requests.group_by(STEP).agg(spent_sec=pl.col("duration_sec").sum())
        took = self.windows.select(*STEP, took_sec=sec_between("begin_us", "done_us"))
        share = (pl.col("late_sec") / pl.col("spent_sec")).clip(upper_bound=1.0)
        flow = (
            late.join(spent, on=STEP).join(took, on=STEP).select(*STEP, lost_sec=share * pl.col("took_sec"))
        )
        return pl.concat([lost, flow]).group_by(STEP).agg(pl.col("lost_sec").max()).sort(STEP)

    def late_by_requests(self, excess: pl.DataFrame) -> pl.DataFrame:
        """Return by how much delays of requests delayed the last request of their workers.

        Requests that begin when all before have ended, as those of a second rollout in a step, wait for them:
        the delays of both add up.

        Args:
            excess: As for `lost_in_requests`.

        Returns:
            step, validate, worker, excess_sec: of the workers that were delayed.
        """
        if excess.is_empty():  # as in most runs
            return excess.select(*STEP_OF_WORKER, "excess_sec")
        in_steps = pl.col("step").is_in(excess["step"].unique().implode())  # mostly one of many
        ends = uncut(self.digest.requests.filter(in_steps).join(excess, on=STEP_OF_WORKER, how="semi"))
        by_request = excess.group_by(*STEP_OF_WORKER, "request_id").agg(pl.col("excess_sec").sum())
        ends = ends.select(*STEP_OF_WORKER, "request_id", "start_us", "end_us").join(
            by_request, on=[*STEP_OF_WORKER, "request_id"], how="left"
        )
        sooner = pl.col("end_us") - (pl.col("excess_sec").fill_null(0.0) * 1e6).cast(pl.Int64)
        batches = numbered_batches(ends).group_by(*STEP_OF_WORKER, "batch")
        late = batches.agg(excess_sec=(pl.col("end_us").max() - sooner.max()) / 1e6)
        done = late.group_by(STEP_OF_WORKER).agg(pl.col("excess_sec").sum())
        return done.filter(pl.col("excess_sec") > 0)

    def lost_by_workers(self, excess: pl.DataFrame) -> pl.DataFrame:
        """Return what steps lost by delays of workers.

        Args:
            excess: step, validate, worker, and `excess_sec`, the delay.

        Returns:
            step, validate, lost_sec: how much sooner the last worker would have been done.
        """
        if excess.is_empty():
            return excess.select(*STEP, lost_sec="excess_sec")
        busy, without = self._without(excess)
        return busy.group_by(STEP).agg(lost_sec=pl.col("busy_sec").max() - without.max())

    def lost_by_each(self, excess: pl.DataFrame) -> pl.DataFrame:
        """Return what steps lost by each of several late workers: two of them do not hide each other.

        Args:
            excess: As for `lost_by_workers`.

        Returns:
            step, validate, worker; lost_sec: how much sooner this worker would have been done, but at most
            what it took longer than the last of all workers if none of them were late.
        """
        if excess.is_empty():
            return excess.select(*STEP_OF_WORKER, lost_sec="excess_sec")
        busy, without = self._without(excess)
        over = (pl.col("busy_sec") - without.max().over(STEP)).clip(lower_bound=0.0)
        lost = busy.with_columns(lost_sec=pl.min_horizontal("excess_sec", over))
        return lost.drop_nulls("excess_sec").select(*STEP_OF_WORKER, "lost_sec").sort(STEP_OF_WORKER)

    def _without(self, excess: pl.DataFrame) -> tuple[pl.DataFrame, pl.Expr]:
        """Return how long workers took in these steps, with a late start, and as long without the delays."""
        late = excess.group_by(STEP_OF_WORKER).agg(pl.col("excess_sec").sum())
        busy = self.workers.join(late, on=STEP, how="semi").select(
            *STEP_OF_WORKER, busy_sec=pl.col("busy_sec") + pl.col("late_sec").fill_null(0.0)
        )
        busy = busy.join(late, on=STEP_OF_WORKER, how="left")
        return busy, pl.col("busy_sec") - pl.col("excess_sec").fill_null(0.0)

    def worth(self, lost: pl.DataFrame) -> pl.DataFrame:
        """Return the rows whose `lost_sec` is worth a finding, by how long the step's workers took."""
        if lost.is_empty():
            return lost
        took = self.windows.select(*STEP, took_sec=sec_between("begin_us", "done_us"))
        of_step = lost.join(took, on=STEP, how="left", maintain_order="left")
        least = pl.max_horizontal(pl.lit(LEAST_SEC), OF_STEP * pl.col("took_sec"))
        return of_step.filter(pl.col("lost_sec") > least).drop("took_sec")
