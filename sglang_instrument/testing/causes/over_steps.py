"""Plant what concerns the whole run: work that takes longer from step to step, and a cold first step."""

from dataclasses import dataclass
from pathlib import Path

import orjson

from sglang_instrument.testing.causes.base import Cause
from sglang_instrument.testing.simulation.plan import StepPlan
from sglang_instrument.testing.simulation.steps import PREPROCESS


@dataclass(frozen=True)
class Growth(Cause):
    """From each step to the next, a kind of work takes `share` of its first time longer.

    `kind` is "engine", "tool" or "reward".
    """

    share: float = 0.1
    kind: str = "engine"
    cause = "trend"
    size = "share"

    @property
    def in_event(self) -> str:
        """The kind of work."""
        return self.kind

    def change(self, plan: StepPlan) -> None:
        """Slow the work down, more so in later steps."""
        factor = 1 + self.share * plan.index
        if self.kind == "engine":
            for engine in plan.engines_of(None):
                engine.factor *= factor
        for request in plan.requests_of(None):
            if self.kind == "reward":
                request.reward_sec *= factor
            elif self.kind == "tool":
                for turn in request.turns:
                    turn.tools = [(name, sec * factor) for name, sec in turn.tools]


@dataclass(frozen=True)
class FallingAcceptance(Growth):
    """Engines decode speculatively, and from each step to the next, `share` of the first time longer.

    A verification accepts `accepted` tokens in the first step, and in later ones as many fewer as they take
    longer. With `share` 0 it goes on as it began.
    """

    accepted: float = 3.0
    cause = "speculation"

    def damage(self, folder: Path) -> None:
        """Add the number of verifications to each engine call."""
        steps = sorted(folder.glob("step_*"), key=lambda path: int(path.name.partition("_")[2]))
        for index, step in enumerate(steps):
            accepted = max(1.0, self.accepted / (1 + self.share * index))
            for path in sorted(step.glob("worker_*.jsonl")):
                lines = [_verified(line, accepted) for line in path.read_bytes().splitlines()]
                path.write_bytes(b"".join(line + b"\n" for line in lines))


def _verified(line: bytes, accepted: float) -> bytes:
    if b'"turn_engine_call"' not in line:
        return line
    record = orjson.loads(line)
    tokens = record["extra"].get("generated_tokens")
    if tokens:
        record["extra"]["spec_verify_ct"] = max(1, round(tokens / accepted))
    return orjson.dumps(record)


@dataclass(frozen=True)
class ColdStart(Cause):
    """In `step`, the first, engines take `factor` times as long, and preprocessing `seconds` longer.

    Workers warm up at somewhat different speeds.
    """

    factor: float = 1.3
    seconds: float = 2.0
    step: int = 1
    cause = "cold-start"
    size = "factor"

    @property
    def place(self) -> tuple[int | None, int | None]:
        """The step, and no worker."""
        return self.step, None

    def change(self, plan: StepPlan) -> None:
        """Slow the step down."""
        if plan.step == self.step:
            random = plan.random(None)
            for engine in plan.engines:
                engine.factor *= 1 + (self.factor - 1) * random.uniform(0.7, 1.3)
            for worker in plan.workers:
                worker.parts[PREPROCESS] += self.seconds * random.uniform(0.7, 1.3)
