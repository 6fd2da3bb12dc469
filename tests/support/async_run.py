"""Write a small run of an asynchronous trainer by hand: groups of samples, versions, what each step takes.

Step N of the trainer takes what the rollout made in step N - 1: one rollout ahead. One unit of time is a
second; a step lasts ten. The trainer's version in step N is N.
"""

import json
from pathlib import Path
from typing import Any

from hand_written import EPOCH_US, record, write_file

STEP_SEC = 10.0


def instant(event: str, time_sec: float, **extra: Any) -> dict[str, Any]:
    """Return an instant event."""
    line = record(event, time_sec, time_sec, extra=extra, task=0)
    del line["duration_sec"], line["start_us"]
    return line


def sample(name: str, begin: float, end: float, **fields: Any) -> list[dict[str, Any]]:
    """Return the records of a request in a task of its own; its engine call begins half a second later."""
    task = 1 + sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 2**31
    keys = {key: fields.pop(key) for key in ("error",) if key in fields}
    call = {"request_id": name, "turn": 0}
    return [
        record("turn_engine_call", begin + 0.5, end, extra=call, task=task),
        record(
            "async_rollout_request_complete",
            begin,
            end,
            extra={"request_id": name, **fields},
            task=task,
            spawned_by=0,
            **keys,
        ),
    ]


class AsyncRun:
    """A run in which each step of the rollout makes groups of samples.

    Attributes:
        rollouts: The records of each step of the rollout.
        trainer: The records of each step of the trainer.
    """

    def __init__(self, steps: int = 4, groups: int = 2, members: int = 3, behind: int = 1) -> None:
        """Make a clean run: each sample has 100 tokens, and is used a step later."""
        self.steps = steps
        self.rollouts: dict[int, list[dict[str, Any]]] = {step: [] for step in range(1, steps + 1)}
        self.trainer: dict[int, list[dict[str, Any]]] = {step: [] for step in range(1, steps + 1)}
        self.names: dict[int, list[str]] = {}
        for step in self.rollouts:
            begin = step * STEP_SEC
            self.names[step] = []
            for group in range(groups):
                for member in range(members):
                    name = f"s{step}g{group}m{member}"
                    self.names[step].append(name)
                    self.rollouts[step] += sample(
                        name,
                        begin,
                        begin + 2 + member,
                        group=f"{step}-{group}",
                        weight_version=step,
                        first_weight_version=step,
                        response_length=100,
                        finish_reason="stop",
                        reward=float(member % 2),
                    )
            if step - behind in self.names:
                self.take(step, self.names[step - behind])

    def take(self, step: int, names: list[str], **fields: Any) -> None:
        """Let a step of the trainer take samples, half a second after it began."""
        time_sec = step * STEP_SEC + 0.5
        taken = {"samples": names, "weight_version": step, "max_staleness": 2, **fields}
        self.trainer[step].append(instant("samples_consumed", time_sec, **taken))

    def write(self, folder: Path) -> Path:
        """Write the run."""
        for step, records in self.rollouts.items():
            begin = step * STEP_SEC
            whole = record("total_step_duration", begin, begin + 9, task=0)
            write_file(folder, step, 0, [*records, whole])
        for step, records in self.trainer.items():
            begin = step * STEP_SEC
            path = folder / f"step_{step}" / "trainer_0.jsonl"
            timestamp = record("", begin, begin)["timestamp"]
            header = {
                "timestamp": timestamp,
                "event": "log_opened",
                "extra": {"log_version": 1, "run_id": "now"},
            }
            whole = record("trainer_step", begin, begin + STEP_SEC, task=0)
            lines = [json.dumps({**line, "workid": 0, "step": step}) for line in (header, *records, whole)]
            path.write_text("\n".join(lines) + "\n")
        return folder


def at_us(sec: float) -> int:
    """Return a time of the run as Unix microseconds."""
    return EPOCH_US + int(sec * 1e6)
