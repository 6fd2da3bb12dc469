"""Critical paths and ledgers equal what plain loops over made-up spans give, tick by tick, and sum up."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made_steps import EPOCH_US, TICK_US, Made, brute_parents, steps_of_a_worker, write_step

from sglang_instrument.analysis import Run, open_run, step_ledger, step_windows, worker_ledger
from sglang_instrument.analysis.ledger.ledger import PARTS, STEP, STEP_OF_WORKER
from sglang_instrument.testing import BlockedLoop
from sglang_instrument.testing.clean_shapes import CLEAN_SHAPES
from sglang_instrument.testing.synthetic import write_run

# ---- the critical path of one worker


def walked(made: Made) -> list[str]:
    """Return for each tick of the step the event of its innermost span on the path, by plain recursion."""
    spans, parents = made.spans, brute_parents(made)
    children: dict[int, list[int]] = defaultdict(list)
    for one, span in enumerate(spans):
        above = parents[one]
        # A span of another task may outlive its parent: the nearest span above that ends later waits.
        while above is not None and spans[above].end < span.end:
            above = parents[above]
        if above is not None:
            children[above].append(one)
    ticks = [""] * spans[-1].end

    def walk(one: int) -> None:
        ticks[spans[one].start : spans[one].end] = [spans[one].event] * (spans[one].end - spans[one].start)
        reached = spans[one].end
        while inside := [child for child in children[one] if spans[child].end <= reached]:
            last = max(inside, key=lambda child: (spans[child].end, -spans[child].start))
            walk(last)
            reached = spans[last].start

    walk(len(spans) - 1)
    return ticks


@settings(max_examples=200, deadline=None)
@given(steps_of_a_worker())
def test_each_tick_belongs_to_the_innermost_span_of_the_recursive_walk(made: Made) -> None:
    times = [(span.start, span.end) for span in made.spans]
    assume(len(set(times)) == len(times))  # of two spans of the same times either may be the one
    with TemporaryDirectory() as folder:
        write_step(Path(folder), made)
        path = open_run(folder).digest.path
    ticks = [""] * made.spans[-1].end
    for row in path.iter_rows(named=True):
        start, end = ((row[name] - EPOCH_US) // TICK_US for name in ("start_us", "end_us"))
        assert ticks[start:end] == [""] * (end - start)
        ticks[start:end] = [row["event"]] * (end - start)
    assert ticks == walked(made)


# ---- the ledgers of a run


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
_TRAINED = "trainer_update_actor"

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
    return steps


def played(step: Step) -> dict[int, tuple[int, list[Tick]]]:
    """Return for each worker when it begins and what it does in each tick; all leave a barrier together."""
    now = {rank: worker.late for rank, worker in step.workers.items()}
    ticks: dict[int, list[Tick]] = {rank: [] for rank in now}
    barriers = max(len(worker.segments) for worker in step.workers.values()) - 1
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
        rank: (step.workers[rank].late, own or [Tick("unaccounted", "total_step_duration")])
        for rank, own in ticks.items()
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
            spans = [*_spans(ticks, start), ("total_step_duration", start, start + len(ticks))]
            _write(folder / f"{kind}_{number}" / f"worker_{rank}.jsonl", spans, skew.get(rank, 0))
        done = max(begin + len(ticks) for begin, ticks in play.values()) - first
        if step.trained:
            spans = [(_TRAINED, now + done, now + done + step.trained)]
            _write(folder / f"{kind}_{number}" / "trainer_0.jsonl", spans, 0)
        now += done + step.gap
    return begun


def _spans(ticks: list[Tick], start: int) -> Iterator[tuple[str, int, int]]:
    at = 0
    while at < len(ticks):
        end = at
        while end < len(ticks) and ticks[end] == ticks[at]:
            end += 1
        if ticks[at].event != "total_step_duration":
            yield ticks[at].event, start + at, start + end
        at = end


def _write(path: Path, spans: list[tuple[str, int, int]], ahead: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for event, start, end in spans:
        times = {
            "duration_sec": (end - start) * TICK_US / 1e6,
            "start_us": EPOCH_US + (start + ahead) * TICK_US,
        }
        lines.append({"timestamp": "2026-01-05T08:00:00+00:00", "event": event, **times, "task": 0})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def decider(step: Step, play: dict[int, tuple[int, list[Tick]]], tick: int) -> int:
    """Return the worker that decides about a tick: the last at the next barrier, or the last to end."""
    exits: dict[int, int] = {}
    waits: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, (begin, ticks) in play.items():
        for at, one in enumerate(ticks):
            if one.barrier is not None:
                exits[one.barrier] = begin + at + 1
                waits[one.barrier][rank] = waits[one.barrier].get(rank, 0) + 1
    for number, leave in sorted(exits.items()):
        if tick < leave:
            return min(waits[number], key=lambda rank: (waits[number][rank], rank))
    return max(play, key=lambda rank: (play[rank][0] + len(play[rank][1]), rank))


Rows = dict[tuple[Any, ...], int]  # ticks by step, validate, worker, part, event


def brute_ledgers(steps: list[Step]) -> tuple[Rows, Rows]:
    """Return the ticks of the steps and of the workers, by looking at each tick."""
    of_steps: Rows = defaultdict(int)
    of_workers: Rows = defaultdict(int)
    for number, step in enumerate(steps):
        play = played(step)
        first = min(begin for begin, _ in play.values())
        done = max(begin + len(ticks) for begin, ticks in play.values())
        place, is_last = (number, step.validate), number == len(steps) - 1
        for tick in range(first, done):
            for rank, (begin, ticks) in play.items():
                of_workers[(*place, rank, *_does(tick, begin, ticks))] += 1
            rank = decider(step, play, tick)
            of_steps[(*place, rank, *_does(tick, *play[rank]))] += 1
        for after in range(0 if is_last else step.gap):
            event = _TRAINED if after < step.trained else "(not recorded)"
            of_steps[(*place, None, "between steps", event)] += 1
            for rank in play:
                of_workers[(*place, rank, "between steps", event)] += 1
    return of_steps, of_workers


def _does(tick: int, begin: int, ticks: list[Tick]) -> tuple[str, str | None]:
    if tick < begin:
        return "late start", None
    if tick >= begin + len(ticks):
        return "barrier", "(end of step)"
    return ticks[tick - begin].part, ticks[tick - begin].event


def rows_of(ledger: pl.DataFrame) -> Rows:
    found: Rows = defaultdict(int)
    for row in ledger.iter_rows(named=True):
        assert row["sec"] > 0
        assert row["part"] in PARTS
        key = (row["step"], row["validate"], row["worker"], row["part"], row["event"])
        found[key] += round(row["sec"] * 1e6)
    return {key: round(us / TICK_US) for key, us in found.items() if us > TICK_US // 2}


@settings(max_examples=150, deadline=None)
@given(made_steps())
def test_the_ledgers_hold_each_tick_of_the_wall_time(steps: list[Step]) -> None:
    # Workers that begin, or come last, at the same time: the smaller rank counts as the one.
    with TemporaryDirectory() as folder:
        written(Path(folder), steps, {})
        digest = open_run(folder).digest
    of_steps, of_workers = brute_ledgers(steps)
    assert rows_of(worker_ledger(digest)) == of_workers
    assert rows_of(step_ledger(digest)) == of_steps


def test_clocks_that_differ_change_no_ledger(tmp_path: Path) -> None:
    worker = Worker(0, [[("engine_generate", 9)], [("padding_duration", 3)]])
    slow = Worker(0, [[("preprocessing_duration", 20), ("engine_generate", 9)], [("padding_duration", 3)]])
    steps = [Step({0: worker, 1: slow, 2: worker, 3: worker}, 5, 0, False)] * 3
    written(tmp_path / "even", steps, {})
    written(tmp_path / "skewed", steps, {1: 70, 2: -4000})
    even, skewed = (open_run(tmp_path / name).digest for name in ("even", "skewed"))
    assert rows_of(step_ledger(even)) == rows_of(step_ledger(skewed))
    assert rows_of(worker_ledger(even)) == rows_of(worker_ledger(skewed))
    waits = worker_ledger(skewed).filter(part="barrier", event=BARRIER)
    assert set(waits.select("worker", "waited_for").iter_rows()) == {(0, 1), (1, None), (2, 1), (3, 1)}


def sums(run: Run) -> Iterator[tuple[float, float]]:
    """Yield what each ledger adds up to, and the wall time of its step."""
    walls = step_windows(run.digest).select(*STEP, "wall_sec")
    for ledger, key in ((step_ledger(run.digest), STEP), (worker_ledger(run.digest), STEP_OF_WORKER)):
        assert (ledger["sec"] > 0).all()
        summed = ledger.group_by(key).agg(pl.col("sec").sum()).join(walls, on=STEP)
        yield from summed.select("sec", "wall_sec").iter_rows()


@pytest.mark.parametrize("name", sorted(set(CLEAN_SHAPES) - {"64 workers", "three steps"}))
def test_the_ledgers_of_every_shape_add_up_to_the_wall_time(name: str, tmp_path: Path) -> None:
    clean = CLEAN_SHAPES[name](3)
    run = open_run(write_run(tmp_path, replace(clean.shape, steps=3, requests=6), clean.causes))
    found = list(sums(run))
    assert len(found) >= 3 * (1 + len(run.workers))
    for spent, wall in found:
        assert spent == pytest.approx(wall, abs=1e-6)
    unknown = step_ledger(run.digest).filter(part="unaccounted")["sec"].sum()
    assert unknown < 0.01 * step_windows(run.digest)["wall_sec"].sum()


def test_a_blocked_loop_is_a_part_of_its_own(tmp_path: Path) -> None:
    shape = replace(CLEAN_SHAPES["usual"](3).shape, steps=3, requests=6)
    run = open_run(write_run(tmp_path, shape, [BlockedLoop(2, 1, seconds=20.0)]))
    for spent, wall in sums(run):
        assert spent == pytest.approx(wall, abs=1e-6)
    held = worker_ledger(run.digest).filter(part="blocked loop")
    assert held.select("step", "worker").unique().rows() == [(2, 1)]
    assert held["sec"].sum() == pytest.approx(20, abs=0.5)


def test_a_worker_without_a_file_has_no_rows_and_changes_no_sum(tmp_path: Path) -> None:
    shape = replace(CLEAN_SHAPES["usual"](3).shape, steps=3, requests=6)
    folder = write_run(tmp_path, shape)
    (folder / "step_2" / "worker_1.jsonl").unlink()
    run = open_run(folder)
    assert worker_ledger(run.digest).filter(step=2, worker=1).is_empty()
    for spent, wall in sums(run):
        assert spent == pytest.approx(wall, abs=1e-6)


def test_without_step_spans_the_outermost_spans_share_the_step(tmp_path: Path) -> None:
    spans = [("engine_generate", 0, 20), ("engine_generate", 25, 30)]
    _write(tmp_path / "step_1" / "worker_0.jsonl", spans, 0)
    ledger = step_ledger(open_run(tmp_path).digest)
    assert rows_of(ledger) == {
        (1, False, 0, "engine", "engine_generate"): 25,
        (1, False, None, "unaccounted", "(not recorded)"): 5,
    }


def test_two_files_of_a_worker_share_each_instant_only_once(tmp_path: Path) -> None:
    spans = [("engine_generate", 0, 20), ("total_step_duration", 0, 20)]
    _write(tmp_path / "step_1" / "worker_0.jsonl", spans, 0)
    _write(tmp_path / "step_1" / "worker_0.host-17.jsonl", spans, 5)
    ledger = worker_ledger(open_run(tmp_path).digest)
    assert rows_of(ledger) == {(1, False, 0, "engine", "engine_generate"): 25}


def test_two_step_spans_of_a_step_leave_a_gap_that_nothing_explains(tmp_path: Path) -> None:
    spans = [
        ("engine_generate", 0, 10),
        ("total_step_duration", 0, 10),
        ("engine_generate", 30, 40),
        ("total_step_duration", 30, 40),
    ]
    _write(tmp_path / "step_1" / "worker_0.jsonl", spans, 0)
    assert rows_of(step_ledger(open_run(tmp_path).digest)) == {
        (1, False, 0, "engine", "engine_generate"): 20,
        (1, False, None, "unaccounted", "(not recorded)"): 20,
    }
