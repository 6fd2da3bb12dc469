"""Name the runs with a cause, and make each cause as large as it takes to cost its step so much."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from clean_shapes import usual_shape

from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.testing.causes import (
    BlockedLoop,
    Cause,
    ColdStart,
    Death,
    Gap,
    Growth,
    Hang,
    LongReplies,
    LongReply,
    MissingFile,
    SlowCall,
    SlowCalls,
    SlowEngine,
    SlowInteractions,
    SlowPart,
    SlowReward,
    SlowTools,
    StandStill,
)
from sglang_instrument.testing.run_shape import RunShape, play_run
from sglang_instrument.testing.simulation.plan import StepPlan
from sglang_instrument.testing.simulation.trainer import Trainer

STEP: Final = 6  # in which causes are planted
WORKER: Final = 2  # on which they are, unless they concern all
_STEPS: Final = 10
#: Words of findings that are right for a cause beside its own: either word describes what the log shows.
_ALSO_RIGHT: Final = {"slow-calls": {"standstill"}, "hang": {"death"}, "death": {"hang"}}
_DOUBLINGS: Final = 40  # of a size, until a cause is said to have no effect
_CLOSE: Final = 0.03  # a cost this near to what was asked for is near enough


@dataclass(frozen=True)
class TwoSlowEngines(SlowEngine):
    """The engines of `worker` and of the next take `factor` times as long."""

    def plant(self, plan: StepPlan) -> None:
        """Slow both engines down."""
        assert self.worker is not None
        for worker in (self.worker, self.worker + 1):
            for engine in plan.engines_of(worker):
                engine.factor *= self.factor


@dataclass(frozen=True)
class Kind:
    """A kind of cause.

    Attributes:
        cause: Such a cause, of any size.
        none: The size at which the cause costs no time.
        step: The step whose time it costs; None if it costs none, and has but one size.
        shape: Fields of the run's shape that differ from the usual.
    """

    cause: Cause
    none: float = 0.0
    step: int | None = STEP
    shape: Callable[[int], RunShape] = usual_shape


def _recorded(seed: int) -> RunShape:
    return replace(usual_shape(seed), trainer=Trainer(sec=30.0, jitter=0.05, recorded=True))


def _part(event: str, worker: int | None = None) -> Kind:
    return Kind(SlowPart(STEP, worker, event=event))


#: Each kind of cause by its name.
KINDS: Final[dict[str, Kind]] = {
    "engine, one worker": Kind(SlowEngine(STEP, WORKER), 1.0),
    "engine, two of four": Kind(TwoSlowEngines(STEP, WORKER), 1.0),
    "engine, all": Kind(SlowEngine(STEP, None), 1.0),
    "8 of 48 calls": Kind(SlowCalls(STEP, WORKER)),
    "one engine call": Kind(SlowCall(STEP, WORKER, kind="engine")),
    "one tool call": Kind(SlowCall(STEP, WORKER, kind="tool")),
    "one reward": Kind(SlowCall(STEP, WORKER, kind="reward")),
    "rewards, one worker": Kind(SlowReward(STEP, WORKER)),
    "rewards, all": Kind(SlowReward(STEP, None)),
    "tools, one worker": Kind(SlowTools(STEP, WORKER)),
    "tools, all": Kind(SlowTools(STEP, None)),
    "interactions, one worker": Kind(SlowInteractions(STEP, WORKER)),
    "preprocessing, one worker": _part("preprocessing_duration", WORKER),
    "preprocessing, all": _part("preprocessing_duration"),
    "sorting, one worker": _part("sorting_duration", WORKER),
    "padding, one worker": _part("padding_duration", WORKER),
    "batch building, all": _part("batch_construction_duration"),
    "cache flush, all": _part("cache_flush_duration"),
    "broadcast, all": _part("broadcast_duration"),
    "gap between steps": Kind(Gap(STEP)),
    "gap, trainer recorded": Kind(Gap(STEP), shape=_recorded),
    "growing engine": Kind(Growth(kind="engine"), step=_STEPS),
    "growing tools": Kind(Growth(kind="tool"), step=_STEPS),
    "growing rewards": Kind(Growth(kind="reward"), step=_STEPS),
    "one long reply": Kind(LongReply(STEP, WORKER), 100.0),
    "long replies, all": Kind(LongReplies(STEP, None), 1.0),
    "standstill, one worker": Kind(StandStill(STEP, WORKER)),
    "standstill, all": Kind(StandStill(STEP, None)),
    "blocked loop": Kind(BlockedLoop(STEP, WORKER)),
    "blocked loop, all": Kind(BlockedLoop(STEP, None)),
    "cold first step": Kind(ColdStart(), 1.0, step=1),
    "hang": Kind(Hang(STEP, WORKER), step=None),
    "death, 10 s before": Kind(Death(STEP, WORKER, ahead_sec=10.0), step=None),
    "death, 60 s before": Kind(Death(STEP, WORKER, ahead_sec=60.0), step=None),
    "missing file": Kind(MissingFile(STEP, WORKER), step=None),
}


def workers_of(cause: Cause) -> set[int | None]:
    """Return the workers that the finding of a cause may name; None where it concerns all."""
    if isinstance(cause, TwoSlowEngines) and cause.worker is not None:
        # Half of the workers: of each, or of the step.
        return {cause.worker, cause.worker + 1, None}
    return {cause.place[1]}


def is_right(finding: Finding, cause: Cause) -> bool:
    """Return whether a finding names a planted cause: its word, its step, its worker, and its part."""
    return (
        finding.cause in {cause.cause, *_ALSO_RIGHT.get(cause.cause, ())}
        and cause.place[0] in (None, finding.step)
        and finding.worker in workers_of(cause)
        and cause.in_event in (None, finding.event)
    )


def wall_of(shape: RunShape, step: int, causes: Sequence[Cause] = ()) -> float:
    """Return the seconds from the begin of a step to that of the next."""
    return next(play_run(shape, causes, only=step)).wall_sec


def resized(cause: Cause, size: float) -> Cause:
    """Return the cause with another size."""
    changed: dict[str, Any] = {cause.size: size}
    made: Cause = replace(cause, **changed)  # type: ignore[type-var]  # all causes are dataclasses
    return made


def cost_of(kind: Kind, shape: RunShape, cause: Cause) -> float:
    """Return the share by which a cause lengthens its step: the same draw with it and without it."""
    if kind.step is None:
        return 1.0
    return wall_of(shape, kind.step, [cause]) / wall_of(shape, kind.step) - 1


def sized(kind: Kind, shape: RunShape, share: float) -> Cause:
    """Return a cause that lengthens its step by about this share of its time without it."""
    if kind.step is None:
        return kind.cause
    usual_sec = wall_of(shape, kind.step)
    least, most = kind.none, max(1.0, 2 * kind.none)
    for _ in range(_DOUBLINGS):
        if wall_of(shape, kind.step, [resized(kind.cause, most)]) >= usual_sec * (1 + share):
            break
        least, most = most, most * 2
    else:
        raise ValueError(f"{kind.cause!r} of any size makes step {kind.step} less than {share:.0%} longer")
    while True:
        cause = resized(kind.cause, (least + most) / 2)
        cost = wall_of(shape, kind.step, [cause]) / usual_sec - 1
        if abs(cost - share) <= _CLOSE * share or most - least < 1e-3 * most:
            return cause
        least, most = ((least + most) / 2, most) if cost < share else (least, (least + most) / 2)
