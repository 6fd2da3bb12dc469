"""Make up steps of one worker: spans in tasks that spawn one another, with their parents."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

EPOCH_US = 1_767_600_000_000_000
TICK_US = 100_000  # far above rounding errors, so that brute force needs no tolerance
MAIN = 0


class Span(NamedTuple):
    """A span of a made-up worker; times in ticks."""

    event: str
    task: int
    start: int
    end: int


class Made(NamedTuple):
    """A made-up step of one worker: spans in the order of their ends, and the spawner of each task."""

    spans: list[Span]
    spawned_by: dict[int, int]


@st.composite
def steps_of_a_worker(draw: st.DrawFn) -> Made:
    """Draw a step span of the main task, and any spans, also overlapping ones, in it and its child tasks."""
    length = draw(st.integers(5, 40))
    times = st.tuples(st.integers(0, length), st.integers(0, length)).map(sorted)
    tasks = draw(st.integers(1, 4))
    spawned_by = {task: draw(st.integers(MAIN, task - 1)) for task in range(1, tasks)}
    names = st.sampled_from(["turn_engine_call", "tool_execution", "mine", "[red]"])
    spans = [
        Span(name, task, start, end)
        for name, task, (start, end) in draw(
            st.lists(st.tuples(names, st.integers(MAIN, tasks - 1), times), max_size=12)
        )
        if end > start and (start, end) != (0, length)
    ]
    spans = sorted(spans, key=lambda span: (span.end, -span.start))
    return Made([*spans, Span("total_step_duration", MAIN, 0, length)], spawned_by)


def write_step(folder: Path, made: Made, step: int = 1, worker: int = 0, offset_us: int = 0) -> None:
    announced: set[int] = set()
    path = folder / f"step_{step}" / f"worker_{worker}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for span in made.spans:
            line: dict[str, Any] = {
                "timestamp": "2026-01-05T08:00:00.000000+00:00",
                "event": span.event,
                "duration_sec": (span.end - span.start) * TICK_US / 1e6,
                "workid": worker,
                "step": step,
                "start_us": EPOCH_US + offset_us + span.start * TICK_US,
                "task": span.task,
            }
            if span.task not in announced and span.task in made.spawned_by:
                line["spawned_by"] = made.spawned_by[span.task]
            announced.add(span.task)
            file.write(json.dumps(line) + "\n")


def brute_parents(made: Made) -> list[int | None]:
    """Return the parent of each span: the last one of its task that contains it, else one of the spawner."""
    spans = made.spans
    # Of two spans with the same times, the one written later contains the other: it ended later.
    order = sorted(range(len(spans)), key=lambda number: (spans[number].start, -spans[number].end, -number))
    present = {span.task for span in spans}
    parents: list[int | None] = []
    for number, span in enumerate(spans):
        earlier = order[: order.index(number)]
        inside = [
            other
            for other in earlier
            if spans[other].task == span.task
            and spans[other].end >= span.end
            and spans[other].start <= span.start < spans[other].end
        ]
        task = span.task
        while not inside and task != MAIN:
            # The spawner of a task without records is unknown: the main task is taken instead.
            task = made.spawned_by[task] if made.spawned_by[task] in present else MAIN
            inside = [
                other
                for other in order
                if spans[other].task == task and spans[other].start <= span.start < spans[other].end
            ]
        parents.append(inside[-1] if inside else None)
    return parents
