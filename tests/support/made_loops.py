"""Make up training loops, tick by tick: what the trainer does, and when requests are in flight."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st
from made_steps import EPOCH_US, TICK_US

OWN = ""  # the trainer's step without a span inside
#: What the trainer may do, with the part of the loop that it is.
TRAINER_EVENTS = {
    "trainer_generate": "waiting for rollout",
    "trainer_reward": "reward",
    "trainer_old_log_prob": "log-probs",
    "trainer_update_actor": "update",
    "weights_update": "weight sync",
    "trainer_save_checkpoint": "checkpoint",
    OWN: "other",
}


class Request(NamedTuple):
    """A request: its step, from when to when it is in flight, and the last ticks of that with its reward."""

    step: int
    begin: int
    end: int
    reward: int = 0


class TrainerStep(NamedTuple):
    """A step of the trainer: its events with their ticks, and the ticks until the next step begins."""

    events: list[tuple[str, int]]
    gap: int


class MadeLoop(NamedTuple):
    """A loop. Its trainer begins at tick 0; steps count from 1."""

    trainer: list[TrainerStep]
    requests: list[Request]

    def begins(self) -> list[int]:
        """Return when each step of the trainer begins, and when the last one ends."""
        begins = [0]
        for step in self.trainer:
            begins.append(begins[-1] + sum(ticks for _, ticks in step.events) + step.gap)
        return [*begins[:-1], begins[-1] - self.trainer[-1].gap]


events = st.lists(
    st.tuples(st.sampled_from(sorted(TRAINER_EVENTS)), st.integers(1, 6)), min_size=1, max_size=5
)


@st.composite
def made_loops(draw: st.DrawFn) -> MadeLoop:
    """Return a loop whose trainer updates at least once."""
    steps = [TrainerStep(draw(events), draw(st.integers(0, 3))) for _ in range(draw(st.integers(1, 4)))]
    steps[0].events.append(("trainer_update_actor", 1))
    last = MadeLoop(steps, []).begins()[-1]
    requests = []
    for _ in range(draw(st.integers(1, 8))):
        begin = draw(st.integers(0, last))
        requests.append(Request(draw(st.integers(1, len(steps))), begin, begin + draw(st.integers(1, 12))))
    return MadeLoop(steps, requests)


def line(event: str, begin: int, end: int, task: int = 0, **extra: Any) -> dict[str, Any]:
    """Return the record of a span, in ticks."""
    times = {"duration_sec": (end - begin) * TICK_US / 1e6, "start_us": EPOCH_US + begin * TICK_US}
    of_extra = {"extra": extra} if extra else {}
    return {"timestamp": "2026-01-05T08:00:00+00:00", "event": event, **times, "task": task, **of_extra}


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Append records to a file of the run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def write_loop(folder: Path, loop: MadeLoop) -> Path:
    """Write the files of a trainer and of one worker."""
    begins = loop.begins()
    for number, (step, begin) in enumerate(zip(loop.trainer, begins, strict=False), 1):
        now, lines = begin, []
        for event, ticks in step.events:
            if event != OWN:
                lines.append(line(event, now, now + ticks))
            now += ticks
        lines.append(line("trainer_step", begin, now))
        write_lines(folder / f"step_{number}" / "trainer_0.jsonl", lines)
    for task, request in enumerate(loop.requests, 1):
        name = f"r{task}"
        lines = [line("async_rollout_request_complete", request.begin, request.end, task, request_id=name)]
        if request.reward:
            begin = request.end - request.reward
            lines.insert(0, line("reward_calculation", begin, request.end, task, request_id=name))
        write_lines(folder / f"step_{request.step}" / "worker_0.jsonl", lines)
    return folder


def trainer_ticks(loop: MadeLoop) -> list[str]:
    """Return the part of the trainer's lane in each tick."""
    ticks: list[str] = []
    for number, step in enumerate(loop.trainer):
        for event, length in step.events:
            ticks += [TRAINER_EVENTS[event]] * length
        ticks += ["not recorded"] * (step.gap if number < len(loop.trainer) - 1 else 0)
    return ticks


def in_flight(loop: MadeLoop, tick: int) -> bool:
    """Return whether a request is in flight."""
    return any(request.begin <= tick < request.end for request in loop.requests)
