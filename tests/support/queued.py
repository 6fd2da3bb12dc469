"""Write runs whose engines are slower the more calls they have at once, and whose truth is known.

Two runs of one seed have the same requests, whatever their engine, caps and factors are, so the prediction
from one can be held against the other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from sglang_instrument.analysis import Run, open_run
from sglang_instrument.testing import Cause, ColdStart, Engine, RunShape, Trainer, Workload
from sglang_instrument.testing.simulation.plan import StepPlan
from sglang_instrument.testing.synthetic import write_run


@dataclass(frozen=True)
class Queued:
    """What a run of `sglang_instrument.testing` is drawn from; times are seconds.

    A call takes `prefill_sec`, `context_sec` for each token of its prompt, and for each token of its reply
    `token_sec` and `load_sec` for each call in the engine, which runs at most `limit` calls at once. A reply
    of `most_tokens` is cut, and ends its request.
    """

    seed: int = 0
    steps: int = 5
    workers: int = 1
    requests: int = 48
    prefill_sec: float = 0.08
    context_sec: float = 0.0001
    token_sec: float = 0.01
    load_sec: float = 0.0003
    shared: bool = False
    limit: int | None = None
    most_tokens: int = 4096
    engine: float = 1.0  # factors
    tool: float = 1.0
    first_step: float = 1.0  # of the engine in the first step
    jitter: float = 0.05  # standard deviation of a call's work
    drift: float = 0.0  # how much the engine's speed wanders from step to step

    def write(self, folder: Path) -> Path:
        """Write the run."""
        shape = RunShape(
            steps=self.steps,
            workers=self.workers,
            requests=self.requests,
            seed=self.seed,
            engine=Engine(
                token_sec=self.token_sec,
                load_sec=self.load_sec,
                prefill_sec=self.context_sec,
                most_running=self.limit,
                shared=self.shared,
                call_sec=self.prefill_sec,
            ),
            workload=Workload(
                most_tokens=self.most_tokens,
                tool_share=1.0,
                tool_sec=(0.3, 0.9),
                tail=0.7,
                pace_spread=self.jitter * math.sqrt(3),
            ),
            trainer=Trainer(jitter=0.05),
        )
        causes: list[Cause] = [_Wandering(self.drift, self.seed)]
        if self.first_step != 1.0:
            causes.append(ColdStart(self.first_step, 0.0))
        return write_run(folder, shape.replayed(engine=self.engine, tools=self.tool), causes)


def runs_made_once(folder: Path) -> Callable[..., Run]:
    """Return what opens the run that is drawn from some fields of `Queued`; each is written once."""
    runs: dict[Queued, Run] = {}

    def run_of(**fields: Any) -> Run:
        queued = Queued(**fields)
        if queued not in runs:
            runs[queued] = open_run(queued.write(folder / str(len(runs))))
        return runs[queued]

    return run_of


@dataclass(frozen=True)
class _Wandering(Cause):
    """The speed of all engines wanders from step to step."""

    spread: float
    seed: int

    def change(self, plan: StepPlan) -> None:
        """Make the engines of a step slower or faster."""
        random, pace = Random(f"{self.seed}/wandering"), 0.0
        for _ in range(plan.index + 1):
            pace = 0.5 * pace + random.gauss(0, self.spread)
        for engine in plan.engines:
            engine.factor *= math.exp(pace)
