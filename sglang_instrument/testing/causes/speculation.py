"""Plant speculative decoding that accepts less from step to step."""

from dataclasses import dataclass
from pathlib import Path

import orjson

from sglang_instrument.testing.causes.trend import Growth


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
