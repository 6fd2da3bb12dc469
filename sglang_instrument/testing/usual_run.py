"""Say what a usual run is drawn from: the one in which causes are planted, and that clean runs vary."""

from typing import Final

from sglang_instrument.testing.run_shape import RunShape
from sglang_instrument.testing.simulation.queueing import Engine
from sglang_instrument.testing.simulation.trainer import Trainer
from sglang_instrument.testing.simulation.workload import Workload

ENGINE: Final = Engine(token_sec=0.01, load_sec=4e-4, prefill_sec=5e-5, most_running=32)
WORKLOAD: Final = Workload(
    tokens_log=5.0,
    tokens_sigma=0.8,
    most_tokens=1024,
    tool_sec=(0.3, 1.5),
    reply_sec=(0.05, 0.3),
    reward_sec=(0.05, 0.3),
    tail=0.5,
)


def usual_shape(seed: int, steps: int = 10) -> RunShape:
    """Return a run of four workers with 48 requests each, whose engines queue and slow down under load.

    A step takes about a minute, half of it training.
    """
    return RunShape(
        steps=steps,
        workers=4,
        requests=48,
        seed=seed,
        engine=ENGINE,
        workload=WORKLOAD,
        trainer=Trainer(sec=30.0, jitter=0.05),
        parts_factor=10.0,
    )
