"""Say what a synthetic run is drawn from, and plan its steps; causes change the plans."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from sglang_instrument.testing.causes.base import Cause
from sglang_instrument.testing.simulation.plan import StepPlan, WorkerPlan
from sglang_instrument.testing.simulation.queueing import Engine, EngineState
from sglang_instrument.testing.simulation.steps import Worker, WorkerStep, draw_parts, play
from sglang_instrument.testing.simulation.timeline import NEVER
from sglang_instrument.testing.simulation.trainer import Trainer
from sglang_instrument.testing.simulation.workload import Workload, draw_requests

_APART_SEC = 0.05  # from one rollout to the next, where the trainer trains meanwhile
_STREAMS = 0.75  # of a rollout's time: then the next begins, where they overlap


@dataclass(frozen=True)
class RunShape:
    """What a run is drawn from. The same shape and causes give the same bytes.

    A change of the engine, of the cap on tokens, of the factor on tools, or of the planted causes leaves all
    draws as they are: two such runs have the same requests.

    Attributes:
        steps: Number of steps; numbered from `first_step`.
        workers: Number of workers.
        requests: Requests of each worker in each step.
        seed: Seed of all random draws.
        first_step: Number of the first step.
        validate_every: Add a validation every so many steps; 0 is never.
        workload: What requests are drawn from.
        engine: How fast the engines are.
        trainer: What happens between two rollouts.
        parts_factor: Factor on the usual seconds of each event outside requests.
        clock_skew: How many seconds the clock of each worker is ahead.
        engine_clocks: Workers whose engine writes logs, too, in `engine/`, and how many seconds its clock is
            ahead. Its server, scheduler and detokenizer log when they had each call, by its `rid`. Of a
            shared engine these are the logs of the first.
        reference_format: Whether the lines are those of the reference: no header, no starts, no tasks.
    """

    steps: int = 10
    workers: int = 4
    requests: int = 16
    seed: int = 0
    first_step: int = 1
    validate_every: int = 0
    workload: Workload = field(default_factory=Workload)
    engine: Engine = field(default_factory=Engine)
    trainer: Trainer = field(default_factory=Trainer)
    parts_factor: float = 1.0
    clock_skew: Mapping[int, float] = field(default_factory=dict)
    engine_clocks: Mapping[int, float] = field(default_factory=dict)
    reference_format: bool = False

    def replayed(
        self, *, engine: float = 1.0, tools: float = 1.0, most_tokens: int | None = None
    ) -> "RunShape":
        """Return the shape with the same requests, served under other rules: the truth of a prediction.

        Args:
            engine: Factor on the seconds of the engine.
            tools: Factor on the seconds of tool calls.
            most_tokens: Most tokens of a reply.
        """
        work = self.workload
        capped = work.most_tokens if most_tokens is None else min(most_tokens, work.most_tokens)
        changed = replace(work, tool_factor=work.tool_factor * tools, most_tokens=capped)
        return replace(self, engine=self.engine.times(engine), workload=changed)

    def redrawn(self, seed: int) -> "RunShape":
        """Return the shape with other requests: a run that differs from this one by chance alone."""
        return replace(self, seed=seed)


@dataclass
class PlayedStep:
    """What happened in a step.

    Attributes:
        step: Its number.
        begin: When it began, in seconds after the run.
        done: When the last worker was done; NEVER if one hangs.
        waited: Since when the trainer waited for it.
        trained: From when to when the trainer trained on it.
        next_begin: When the next step, or a validation before it, begins.
        between_sec: Seconds of each phase of the trainer.
        workers: What happened on each worker.
        validation: What happened on each worker in the validation after it, if there is one.
    """

    step: int
    begin: float
    done: float
    waited: float
    trained: tuple[float, float]
    next_begin: float
    between_sec: dict[str, float]
    workers: list[WorkerStep]
    validation: tuple[float, list[float]] | None = None

    @property
    def wall_sec(self) -> float:
        """From the begin of the step to the begin of the next."""
        return self.next_begin - self.begin


def play_run(shape: RunShape, causes: Sequence[Cause] = (), only: int | None = None) -> Iterator[PlayedStep]:
    """Yield the steps of a run; a hang ends it.

    Args:
        shape: What the run is drawn from.
        causes: What is planted.
        only: Play this step alone; the others are drawn, but not simulated.
    """
    workers = [Worker(rank, Random(shape.seed * 1_000_003 + rank)) for rank in range(shape.workers)]  # noqa: S311 - repeatable, not secret
    begin = trained = 0.0
    for index in range(shape.steps):
        plan = plan_step(shape, workers, index)
        for cause in causes:
            cause.change(plan)
        validated = _draw_validation(shape, workers, plan.step)
        if only is not None and plan.step != only:
            continue
        played = _play_step(shape, plan, workers, begin, trained)
        if validated and played.next_begin < NEVER:
            played.validation = played.next_begin, validated
            begin = played.next_begin + max(validated) + 1e-3
        else:
            begin = played.next_begin
        yield played
        trained = played.trained[1]
        if begin == NEVER or only is not None:
            return


def plan_step(shape: RunShape, workers: list[Worker], index: int) -> StepPlan:
    """Draw what happens in a step, without any cause."""
    step = shape.first_step + index
    growth = (1 + shape.workload.growth) ** index
    plans = []
    for worker in workers:
        requests = draw_requests(worker.random, shape.requests, step, worker.rank, shape.workload, growth)
        plans.append(WorkerPlan(worker.rank, requests, draw_parts(worker.random, shape.parts_factor)))
    engines = [EngineState() for _ in range(1 if shape.engine.shared else shape.workers)]
    between = shape.trainer.draw(Random(f"{shape.seed}/trainer/{step}"))  # noqa: S311 - repeatable, not secret
    return StepPlan(step, index, plans, shape.engine, engines, between, shape.seed)


def _draw_validation(shape: RunShape, workers: list[Worker], step: int) -> list[float]:
    """Return the seconds of each worker's validation after a step; none if there is no validation."""
    if not shape.validate_every or step % shape.validate_every:
        return []
    return [worker.random.uniform(2.0, 6.0) for worker in workers]


def _play_step(
    shape: RunShape, plan: StepPlan, workers: list[Worker], begin: float, trained: float
) -> PlayedStep:
    """Play a step; the trainer is busy with earlier ones until `trained`."""
    rollouts = play(plan, workers, begin)
    done = max(rollout.end for rollout in rollouts)
    start = max(done, trained)
    training = start, start + sum(plan.between_sec.values())
    waited = trained if shape.trainer.overlaps else begin
    next_begin = _next_begin(shape.trainer, begin, done, training, trained)
    return PlayedStep(plan.step, begin, done, waited, training, next_begin, plan.between_sec, rollouts)


def _next_begin(
    trainer: Trainer, begin: float, done: float, training: tuple[float, float], trained: float
) -> float:
    """Return when the next rollout begins: at most one step ahead of the trainer."""
    if not trainer.overlaps:
        return training[1]
    ready = begin + _STREAMS * (done - begin) if trainer.streams else done + _APART_SEC + trainer.pauses_sec
    return max(ready, trained)
