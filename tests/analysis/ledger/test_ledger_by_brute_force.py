"""Critical paths and ledgers equal what plain loops over made-up spans give, tick by tick, and sum up."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from clean_shapes import CLEAN_SHAPES
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made_steps import EPOCH_US, TICK_US, Made, brute_parents, steps_of_a_worker, write_step
from made_workers import (
    TRAINED,
    Rows,
    Step,
    Tick,
    made_steps,
    played,
    rows_of,
    write_worker,
    written,
)

from sglang_instrument.analysis import Run, open_run, step_ledger, step_windows, worker_ledger
from sglang_instrument.analysis.answers.engine.call_times import paths_of
from sglang_instrument.analysis.answers.engine.join import joined_calls
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER, Paths
from sglang_instrument.analysis.ledger.piece_cuts import IN_ENGINE
from sglang_instrument.testing import BlockedLoop, Engine
from sglang_instrument.testing.synthetic import synthetic_run, write_run

# ---- the critical path of one worker


def walked(made: Made) -> list[str]:
    """Return for each tick of the step the event of its innermost span on the path, by plain recursion."""
    spans, parents = made.spans, brute_parents(made)
    children: dict[int, list[int]] = defaultdict(list)
    for number, span in enumerate(spans):
        above = parents[number]
        # A span of another task may outlive its parent: the nearest span above that ends later waits.
        while above is not None and spans[above].end < span.end:
            above = parents[above]
        if above is not None:
            children[above].append(number)
    ticks = [""] * spans[-1].end

    def walk(number: int) -> None:
        ticks[spans[number].start : spans[number].end] = [spans[number].event] * (
            spans[number].end - spans[number].start
        )
        reached = spans[number].end
        while inside := [child for child in children[number] if spans[child].end <= reached]:
            last = max(inside, key=lambda child: (spans[child].end, -spans[child].start))
            walk(last)
            reached = spans[last].start

    walk(len(spans) - 1)
    return ticks


@settings(max_examples=25, deadline=None)
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

Play = dict[int, tuple[int, list[Tick]]]  # when each worker begins, and what it does in each tick


def decider(step: Step, play: Play, tick: int) -> int:
    """Return the worker that decides about a tick: the last at the next barrier, or the last to end."""
    exits: dict[int, int] = {}
    waits: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, (begin, ticks) in play.items():
        for offset, state in enumerate(ticks):
            if state.barrier is not None:
                exits[state.barrier] = begin + offset + 1
                waits[state.barrier][rank] = waits[state.barrier].get(rank, 0) + 1
    for number, leave in sorted(exits.items()):
        if tick < leave:
            return min(waits[number], key=lambda rank: (waits[number][rank], rank))
    return max(play, key=lambda rank: (play[rank][0] + len(play[rank][1]), rank))


def brute_ledgers(steps: list[Step], plays: list[Play] | None = None) -> tuple[Rows, Rows]:
    """Return the ticks of the steps and of the workers, by looking at each tick."""
    of_steps: Rows = defaultdict(int)
    of_workers: Rows = defaultdict(int)
    for number, step in enumerate(steps):
        play = played(step) if plays is None else plays[number]
        first = min(begin for begin, _ in play.values())
        done = max(begin + len(ticks) for begin, ticks in play.values())
        place, is_last = (number, step.validate), number == len(steps) - 1
        for tick in range(first, done):
            for rank, (begin, ticks) in play.items():
                of_workers[(*place, rank, *_does(tick, begin, ticks))] += 1
            rank = decider(step, play, tick)
            of_steps[(*place, rank, *_does(tick, *play[rank]))] += 1
        for after in range(0 if is_last else step.gap):
            event = TRAINED if after < step.trained else "(not recorded)"
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


@settings(max_examples=25, deadline=None)
@given(made_steps())
def test_the_ledgers_hold_each_tick_of_the_wall_time(steps: list[Step]) -> None:
    # Workers that begin, or come last, at the same time: the smaller rank counts as the one.
    with TemporaryDirectory() as folder:
        written(Path(folder), steps, {})
        digest = open_run(folder).digest
    of_steps, of_workers = brute_ledgers(steps)
    assert rows_of(worker_ledger(digest)) == of_workers
    assert rows_of(step_ledger(digest)) == of_steps
    assert busy_ticks(digest) == brute_busy(steps)


IN_ENGINE_SEC = [f"{event}_sec" for event in IN_ENGINE]
#: The ticks that the engine logs of a call, None if not known; they may be more than the call's.
Told = tuple[int | None, ...]
tellings = st.none() | st.tuples(*[st.none() | st.integers(0, 6)] * len(IN_ENGINE))


def told_plays(
    steps: list[Step], begun: list[int], logged_calls: Iterator[Told | None]
) -> tuple[list[Play], pl.DataFrame]:
    """Return what the workers do in each tick, with what the engine logs of some calls; and its table."""
    plays, calls = [], []
    for number, step in enumerate(steps):
        play = played(step)
        first = min(begin for begin, _ in play.values())
        for rank, (begin, ticks) in play.items():
            for start, end in calls_in(ticks):
                if (logged := next(logged_calls)) is None:
                    continue
                place = {"step": number, "validate": step.validate, "worker": rank, "request_id": "r"}
                called = begun[number] + begin - first + start
                times = {"called_us": EPOCH_US + called * TICK_US, "call_sec": (end - start) * TICK_US / 1e6}
                spent = [None if sec is None else sec * TICK_US / 1e6 for sec in logged]
                calls.append({**place, **times, **dict(zip(IN_ENGINE_SEC, spent, strict=True))})
                events = [
                    event for event, sec in zip(IN_ENGINE, logged, strict=True) for _ in range(sec or 0)
                ]
                for tick, event in zip(range(start, end), events, strict=False):
                    ticks[tick] = ticks[tick]._replace(event=event)
        plays.append(play)
    kinds = dict.fromkeys(("step", "worker", "called_us"), pl.Int64) | {"validate": pl.Boolean}
    kinds |= {"request_id": pl.String} | dict.fromkeys(("call_sec", *IN_ENGINE_SEC), pl.Float64)
    return plays, pl.DataFrame(calls, schema=kinds)


def calls_in(ticks: list[Tick]) -> list[tuple[int, int]]:
    """Return from which tick to which each engine call of a worker lasts."""
    calls: list[tuple[int, int]] = []
    for number, tick in enumerate(ticks):
        if tick.part == "engine":
            goes_on = bool(calls) and calls[-1][1] == number
            calls[-1:] = [(calls[-1][0], number + 1)] if goes_on else [*calls[-1:], (number, number + 1)]
    return calls


@settings(max_examples=25, deadline=None)
@given(made_steps(), st.lists(tellings, min_size=1))
def test_what_the_engine_logs_of_a_call_splits_its_ticks(
    steps: list[Step], logged_calls: list[Told | None]
) -> None:
    with TemporaryDirectory() as folder:
        begun = written(Path(folder), steps, {})
        digest = open_run(folder).digest
    plays, calls = told_plays(steps, begun, cycle(logged_calls))
    of_steps, of_workers = brute_ledgers(steps, plays)
    paths = Paths(digest, calls)
    assert rows_of(worker_ledger(paths)) == of_workers
    assert rows_of(step_ledger(paths)) == of_steps


def test_the_engine_s_part_of_the_ledger_is_what_its_processes_logged(tmp_path: Path) -> None:
    engine = Engine(most_running=3, prefill_sec=1e-3)
    clocks = {"clock_skew": {0: 2.0, 1: -7.0}, "engine_clocks": {0: 0.0, 1: 90.0}}
    run = open_run(synthetic_run(tmp_path, steps=3, workers=2, requests=8, engine=engine, **clocks))
    ahead = {row["worker"]: row["ahead_us"] for row in Paths.of(run.digest).aligned.iter_rows(named=True)}
    expected: dict[str, float] = defaultdict(float)
    calls = joined_calls(run).to_dicts()
    for piece in Paths.of(run.digest).deciding_pieces.filter(part="engine").iter_rows(named=True):
        mine = [
            call for call in calls if all(call[key] == piece[key] for key in (*STEP_OF_WORKER, "request_id"))
        ]
        for call in mine:
            begun = call["called_us"] - ahead[call["worker"]]
            for event in ("queue", "prefill", "decode"):
                end = begun + round(call[f"{event}_sec"] * 1e6)
                expected[event] += max(0, min(end, piece["to_us"]) - max(begun, piece["from_us"])) / 1e6
                begun = end
    ledger = step_ledger(paths_of(run))
    spent = dict(ledger.group_by("event").agg(pl.col("sec").sum()).iter_rows())
    assert {event: spent[event] for event in expected} == pytest.approx(dict(expected), abs=1e-4)
    assert min(expected.values()) > 1
    plain = step_ledger(run.digest)
    assert ledger["sec"].sum() == pytest.approx(plain["sec"].sum(), abs=1e-6)
    whole, before = (table.filter(part="engine")["sec"].sum() for table in (ledger, plain))
    assert whole == pytest.approx(before, abs=1e-6)
    assert sum(expected.values()) > 0.9 * whole


def test_a_blocked_loop_takes_no_time_from_the_engine_s(tmp_path: Path) -> None:
    path = tmp_path / "step_1" / "worker_0.jsonl"
    write_worker(path, [("engine_generate", 0, 20), ("total_step_duration", 0, 20)], 0)
    block = {
        "event": "event_loop_block",
        "duration_sec": 5 * TICK_US / 1e6,
        "start_us": EPOCH_US + 15 * TICK_US,
    }
    with path.open("a") as stream:
        stream.write(json.dumps({"timestamp": "2026-01-05T08:00:00+00:00", **block}) + "\n")
    place = {"step": 1, "validate": False, "worker": 0, "request_id": "r", "called_us": EPOCH_US}
    times = {"call_sec": 20, "queue_sec": 2, "prefill_sec": 3, "transfer_sec": 0, "decode_sec": 10}
    spent = {name: ticks * TICK_US / 1e6 for name, ticks in times.items()}
    paths = Paths(open_run(tmp_path).digest, pl.DataFrame([{**place, **spent}]))
    events = {key[3:]: ticks for key, ticks in rows_of(step_ledger(paths)).items()}
    in_engine = {("engine", "queue"): 2, ("engine", "prefill"): 3, ("engine", "decode"): 10}
    assert events == {("blocked loop", "engine_generate"): 5, **in_engine}


def busy_ticks(digest: Digest) -> Rows:
    key = [*STEP_OF_WORKER, "segment"]
    busy = Paths.of(digest).pieces.filter(pl.col("part") != "barrier").group_by(key).agg(pl.col("sec").sum())
    return {tuple(place): round(sec * 1e6 / TICK_US) for *place, sec in busy.iter_rows()}


def brute_busy(steps: list[Step]) -> Rows:
    """Return how many ticks each worker did not wait, up to each barrier and after the last one."""
    busy: Rows = defaultdict(int)
    for number, step in enumerate(steps):
        for rank, (_, ticks) in played(step).items():
            for offset, tick in enumerate(ticks):
                if tick.barrier is None:
                    passed = {earlier.barrier for earlier in ticks[:offset] if earlier.barrier is not None}
                    busy[(number, step.validate, rank, len(passed))] += 1
    return busy


def sums(run: Run) -> Iterator[tuple[float, float]]:
    """Yield what each ledger adds up to, and the wall time of its step."""
    walls = step_windows(run.digest).select(*STEP, "to_next_step_sec")
    for ledger, key in ((step_ledger(run.digest), STEP), (worker_ledger(run.digest), STEP_OF_WORKER)):
        assert (ledger["sec"] > 0).all()
        summed = ledger.group_by(key).agg(pl.col("sec").sum()).join(walls, on=STEP)
        yield from summed.select("sec", "to_next_step_sec").iter_rows()


@pytest.mark.parametrize("name", sorted(set(CLEAN_SHAPES) - {"64 workers", "three steps"}))
def test_the_ledgers_of_every_shape_add_up_to_the_wall_time(name: str, tmp_path: Path) -> None:
    clean = CLEAN_SHAPES[name](3)
    run = open_run(write_run(tmp_path, replace(clean.shape, steps=3, requests=6), clean.causes))
    totals = list(sums(run))
    assert len(totals) >= 3 * (1 + len(run.worker_ranks))
    for spent, wall in totals:
        assert spent == pytest.approx(wall, abs=1e-6)
    unknown = step_ledger(run.digest).filter(part="unaccounted")["sec"].sum()
    assert unknown < 0.01 * step_windows(run.digest)["to_next_step_sec"].sum()


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
    write_worker(tmp_path / "step_1" / "worker_0.jsonl", spans, 0)
    ledger = step_ledger(open_run(tmp_path).digest)
    assert rows_of(ledger) == {
        (1, False, 0, "engine", "engine_generate"): 25,
        (1, False, None, "unaccounted", "(not recorded)"): 5,
    }


def test_two_files_of_a_worker_share_each_instant_only_once(tmp_path: Path) -> None:
    spans = [("engine_generate", 0, 20), ("total_step_duration", 0, 20)]
    write_worker(tmp_path / "step_1" / "worker_0.jsonl", spans, 0)
    write_worker(tmp_path / "step_1" / "worker_0.host-17.jsonl", spans, 5)
    ledger = worker_ledger(open_run(tmp_path).digest)
    assert rows_of(ledger) == {(1, False, 0, "engine", "engine_generate"): 25}


def test_two_step_spans_of_a_step_leave_a_gap_that_nothing_explains(tmp_path: Path) -> None:
    spans = [
        ("engine_generate", 0, 10),
        ("total_step_duration", 0, 10),
        ("engine_generate", 30, 40),
        ("total_step_duration", 30, 40),
    ]
    write_worker(tmp_path / "step_1" / "worker_0.jsonl", spans, 0)
    assert rows_of(step_ledger(open_run(tmp_path).digest)) == {
        (1, False, 0, "engine", "engine_generate"): 20,
        (1, False, None, "unaccounted", "(not recorded)"): 20,
    }
