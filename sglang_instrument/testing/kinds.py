"""Name the kinds of causes, and make each as large as it takes to cost its step so much."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sglang_instrument.testing.causes import (
    BlockedLoop,
    Cause,
    ColdStart,
    Death,
    FallingAcceptance,
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
from sglang_instrument.testing.causes.slow_work import TwoSlowEngines
from sglang_instrument.testing.run_shape import RunShape, play_run
from sglang_instrument.testing.simulation.trainer import Trainer
from sglang_instrument.testing.usual_run import usual_shape

STEP: Final = 6  # in which causes are planted
WORKER: Final = 2  # on which they are, unless they concern all
_STEPS: Final = 10
_DOUBLINGS: Final = 40  # of a size, until a cause is said to have no effect
_CLOSE: Final = 0.03  # a cost this near to what was asked for is near enough


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


#: Each kind of cause by its name: the part, then whether one worker has it, or all.
KINDS: Final[dict[str, Kind]] = {
    "engine-one": Kind(SlowEngine(STEP, WORKER), 1.0),
    "engine-two": Kind(TwoSlowEngines(STEP, WORKER), 1.0),
    "engine-all": Kind(SlowEngine(STEP, None), 1.0),
    "engine-calls": Kind(SlowCalls(STEP, WORKER)),
    "engine-call": Kind(SlowCall(STEP, WORKER, kind="engine")),
    "tool-call": Kind(SlowCall(STEP, WORKER, kind="tool")),
    "reward-call": Kind(SlowCall(STEP, WORKER, kind="reward")),
    "reward-one": Kind(SlowReward(STEP, WORKER)),
    "reward-all": Kind(SlowReward(STEP, None)),
    "tool-one": Kind(SlowTools(STEP, WORKER)),
    "tool-all": Kind(SlowTools(STEP, None)),
    "interaction-one": Kind(SlowInteractions(STEP, WORKER)),
    "preprocess-one": _part("preprocessing_duration", WORKER),
    "preprocess-all": _part("preprocessing_duration"),
    "sort-one": _part("sorting_duration", WORKER),
    "pad-one": _part("padding_duration", WORKER),
    "batch-all": _part("batch_construction_duration"),
    "cache-flush-all": _part("cache_flush_duration"),
    "broadcast-all": _part("broadcast_duration"),
    "gap": Kind(Gap(STEP)),
    "gap-recorded": Kind(Gap(STEP), shape=_recorded),
    "growing-engine": Kind(Growth(kind="engine"), step=_STEPS),
    "growing-tool": Kind(Growth(kind="tool"), step=_STEPS),
    "growing-reward": Kind(Growth(kind="reward"), step=_STEPS),
    "speculation": Kind(FallingAcceptance(), step=_STEPS),
    "long-reply": Kind(LongReply(STEP, WORKER), 100.0),
    "long-replies": Kind(LongReplies(STEP, None), 1.0),
    "standstill-one": Kind(StandStill(STEP, WORKER)),
    "standstill-all": Kind(StandStill(STEP, None)),
    "blocked-loop-one": Kind(BlockedLoop(STEP, WORKER)),
    "blocked-loop-all": Kind(BlockedLoop(STEP, None)),
    "cold-start": Kind(ColdStart(), 1.0, step=1),
    "hang": Kind(Hang(STEP, WORKER), step=None),
    "death": Kind(Death(STEP, WORKER, ahead_sec=10.0), step=None),
    "death-early": Kind(Death(STEP, WORKER, ahead_sec=60.0), step=None),
    "missing-file": Kind(MissingFile(STEP, WORKER), step=None),
}


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
