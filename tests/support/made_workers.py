"""Make up steps of several workers, tick by tick, and write them as a run."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from hypothesis import strategies as st
from made_steps import EPOCH_US, TICK_US

from sglang_instrument.analysis.ledger.ledger import PARTS

EVENTS = {
    "preprocessing_duration": "preprocess",
    "engine_generate": "engine",
    "tool_call": "tool",
    "reward_calculation": "reward",
    "padding_duration": "postprocess",
    "broadcast_duration": "broadcast",
    "": "unaccounted",  # no span
}
BARRIER = "barrier_wait_duration"
TRAINED = "trainer_update_actor"
TRAINER = -1  # its key in the skew of clocks

stretches = st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(1, 9)), max_size=4)


class Worker(NamedTuple):
    """What a worker does up to each barrier, and after the last: events with their ticks."""

    late: int
    segments: list[list[tuple[str, int]]]


class Step(NamedTuple):
    """A step: its workers by rank; `gap` ticks to the next, `trained` of which a trainer records."""

    workers: dict[int, Worker]
    gap: int
    trained: int
    validate: bool


class Tick(NamedTuple):
    """What a worker did in one tick."""

    part: str
    event: str
    barrier: int | None = None  # the number of the barrier at which it waited


@st.composite
def made_steps(draw: st.DrawFn) -> list[Step]:
    steps = []
    for _ in range(draw(st.integers(1, 3))):
        barriers = draw(st.integers(0, 2))
        ranks = draw(st.sets(st.integers(0, 3), min_size=1, max_size=3))
        segments = st.lists(stretches, min_size=barriers + 1, max_size=barriers + 1)
        workers = {rank: Worker(draw(st.integers(0, 3)), draw(segments)) for rank in sorted(ranks)}
        gap = draw(st.integers(0, 8))
        steps.append(Step(workers, gap, draw(st.integers(0, gap)), draw(st.booleans())))
    # The clock of a worker that never left a barrier with another is known by when it begins its steps.
    everyone = set().union(*(step.workers for step in steps))
    met = set().union(*(step.workers for step in steps if len(step.workers) > 1 and barriers_of(step)))
    return steps if everyone <= met else [in_time(step) for step in steps]


def barriers_of(step: Step) -> int:
    return max(len(worker.segments) for worker in step.workers.values()) - 1


def in_time(step: Step) -> Step:
    """Return a step that all workers begin together."""
    return step._replace(workers={rank: worker._replace(late=0) for rank, worker in step.workers.items()})


def played(step: Step) -> dict[int, tuple[int, list[Tick]]]:
    """Return for each worker when it begins and what it does in each tick; all leave a barrier together."""
    now = {rank: worker.late for rank, worker in step.workers.items()}
    ticks: dict[int, list[Tick]] = {rank: [] for rank in now}
    barriers = barriers_of(step)
    for number in range(barriers + 1):
        for rank, worker in step.workers.items():
            for event, length in worker.segments[number]:
                ticks[rank] += [Tick(EVENTS[event], event or "total_step_duration")] * length
                now[rank] += length
        if number < barriers:
            leave = max(now.values()) + 1  # the last one needs a tick, too
            for rank in now:
                ticks[rank] += [Tick("barrier", BARRIER, number)] * (leave - now[rank])
                now[rank] = leave
    # A step of no length is no span.
    return {
        rank: (step.workers[rank].late, of_worker or [Tick("unaccounted", "total_step_duration")])
        for rank, of_worker in ticks.items()
    }


def written(folder: Path, steps: list[Step], skew: dict[int, int]) -> list[int]:
    """Write the steps one after the other; return when each began, in ticks."""
    now, begun = 0, []
    for number, step in enumerate(steps):
        play = played(step)
        first = min(begin for begin, _ in play.values())
        begun.append(now)
        kind = "validate" if step.validate else "step"
        for rank, (begin, ticks) in play.items():
            start = now + begin - first
            spans = [*_spans_of(ticks, start), ("total_step_duration", start, start + len(ticks))]
            write_worker(folder / f"{kind}_{number}" / f"worker_{rank}.jsonl", spans, skew.get(rank, 0))
        done = max(begin + len(ticks) for begin, ticks in play.values()) - first
        if step.trained:
            spans = [(TRAINED, now + done, now + done + step.trained)]
            write_worker(folder / f"{kind}_{number}" / "trainer_0.jsonl", spans, skew.get(TRAINER, 0))
        now += done + step.gap
    return begun


def _spans_of(ticks: list[Tick], start: int) -> Iterator[tuple[str, int, int]]:
    index = 0
    while index < len(ticks):
        end = index
        while end < len(ticks) and ticks[end] == ticks[index]:
            end += 1
        if ticks[index].event != "total_step_duration":
            yield ticks[index].event, start + index, start + end
        index = end


def write_worker(path: Path, spans: list[tuple[str, int, int]], ahead: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for event, start, end in spans:
        times = {
            "duration_sec": (end - start) * TICK_US / 1e6,
            "start_us": EPOCH_US + (start + ahead) * TICK_US,
        }
        of_request = {"extra": {"request_id": "r"}} if EVENTS.get(event) == "engine" else {}
        line = {"timestamp": "2026-01-05T08:00:00+00:00", "event": event, **times, "task": 0, **of_request}
        lines.append(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


Rows = dict[tuple[Any, ...], int]  # ticks by step, validate, worker, part, event


def rows_of(ledger: pl.DataFrame) -> Rows:
    rows: Rows = defaultdict(int)
    for row in ledger.iter_rows(named=True):
        assert row["sec"] > 0
        assert row["part"] in PARTS
        key = (row["step"], row["validate"], row["worker"], row["part"], row["event"])
        rows[key] += round(row["sec"] * 1e6)
    return {key: round(us / TICK_US) for key, us in rows.items() if us > TICK_US // 2}
