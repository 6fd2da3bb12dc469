"""Play a world, write its log, and measure what its faults cost against the same world without them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sglang_instrument.gc_pause import uncollected
from sglang_instrument.testing.world.faults.fault import WorldFault
from sglang_instrument.testing.world.files import WorldWriter
from sglang_instrument.testing.world.rollout.asynchronous import asynchronous
from sglang_instrument.testing.world.rollout.shape import (
    ASYNCHRONOUS,
    DRAINED,
    ONE_OFF,
    OVERSAMPLED,
    OWN,
    ROUTED,
    WorldShape,
)
from sglang_instrument.testing.world.rollout.trainers import one_step_off, oversampling, synchronous
from sglang_instrument.testing.world.serving.clock import Process
from sglang_instrument.testing.world.stage import Stage

#: What plays the trainer of each family.
TRAINERS: Final[dict[str, Callable[[Stage], Process]]] = {
    ROUTED: synchronous,
    OWN: synchronous,
    OVERSAMPLED: oversampling,
    ONE_OFF: one_step_off,
    ASYNCHRONOUS: asynchronous,
    DRAINED: asynchronous,
}


@dataclass(frozen=True)
class Cost:
    """What faults cost.

    Attributes:
        sec: Seconds that the run takes longer.
        share: These over the seconds of the steps in which the faults are, without them.
    """

    sec: float
    share: float


def play(shape: WorldShape, faults: Sequence[WorldFault] = ()) -> Stage:
    """Play a world; return it as it stands at its end."""
    stage = Stage(shape, faults)
    with uncollected():
        stage.play(TRAINERS[shape.family])
    return stage


def walls(stage: Stage) -> dict[int, float]:
    """Return the seconds of each step, from the begin of the trainer's step to that of the next."""
    return {step: end - begin for step, (begin, end) in stage.steps.items()}


def cost_of(usual: dict[int, float], planted: dict[int, float], fault: WorldFault) -> Cost:
    """Return what a fault cost.

    Args:
        usual: Seconds of each step without it.
        planted: Seconds of each step with it.
        fault: It.
    """
    sec = sum(planted.values()) - sum(usual.values())
    return Cost(sec, sec / sum(usual[step] for step in fault.steps if step in usual))


def write_world(folder: Path, stage: Stage) -> Path:
    """Write the log of a world; return its folder."""
    with uncollected():
        WorldWriter(folder, stage.shape, [server.shape for server in stage.servers]).write(
            stage.records.files
        )
    return folder
