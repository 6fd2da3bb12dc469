"""Self times, wall shares and the step table equal a brute-force computation on small runs."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_steps import EPOCH_US, TICK_US, Made, Span, brute_parents, steps_of_a_worker, write_step
from polars.testing import assert_frame_equal

from sglang_instrument.analysis import Run, event_table, open_run, step_table, worker_table
from sglang_instrument.schema import PHASES
from sglang_instrument.testing import synthetic_run


def read(made: Made) -> Run:
    with TemporaryDirectory() as folder:
        write_step(Path(folder), made)
        run = open_run(folder)
        assert len(run.spans) == len(made.spans)  # read while the folder is there
        return run


def at_work(made: Made) -> Iterator[list[int]]:
    """Return for each tick of the step the open spans without an open child."""
    spans, parents = made.spans, brute_parents(made)
    for tick in range(spans[-1].end):
        is_open = [number for number, span in enumerate(spans) if span.start <= tick < span.end]
        busy = {parents[number] for number in is_open}
        yield [number for number in is_open if number not in busy]


def key_of(row: dict[str, Any]) -> Span:
    start, end = ((row[name] - EPOCH_US) // TICK_US for name in ("start_us", "end_us"))
    return Span(row["event"], row["task"], start, end)


@settings(max_examples=25, deadline=None)
@given(steps_of_a_worker())
def test_self_time_is_the_time_in_which_no_child_is_open(made: Made) -> None:
    expected: dict[Span, int] = defaultdict(int)
    for working in at_work(made):
        for number in working:
            expected[made.spans[number]] += 1
    got: dict[Span, float] = defaultdict(float)
    for row in read(made).spans.iter_rows(named=True):
        got[key_of(row)] += row["without_nested_sec"]
    for span in made.spans:
        assert got[span] == pytest.approx(expected[span] * TICK_US / 1e6, abs=1e-5)


@settings(max_examples=25, deadline=None)
@given(steps_of_a_worker())
def test_each_instant_is_split_equally_over_the_spans_at_work(made: Made) -> None:
    expected: dict[str, float] = defaultdict(float)
    for working in at_work(made):
        for number in working:
            expected[made.spans[number].event] += TICK_US / 1e6 / len(working)
    run = read(made)
    length = made.spans[-1].end * TICK_US / 1e6
    table = {row["event"]: row for row in event_table(run.spans).iter_rows(named=True)}
    for event, row in table.items():
        assert row["steps_share"] * length == pytest.approx(expected[event], abs=1e-5)
    assert sum(row["steps_share"] for row in table.values()) == pytest.approx(1.0)


@settings(max_examples=25, deadline=None)
@given(steps_of_a_worker())
def test_the_event_table_counts_and_sums_every_span(made: Made) -> None:
    for row in event_table(read(made).spans).iter_rows(named=True):
        seconds = sorted((s.end - s.start) * TICK_US / 1e6 for s in made.spans if s.event == row["event"])
        assert row["count"] == len(seconds)
        assert row["total_sec"] == pytest.approx(sum(seconds))
        assert row["max_sec"] == pytest.approx(seconds[-1])
        assert row["p50_sec"] == pytest.approx(quantile(seconds, 0.5))
        assert row["p99_sec"] == pytest.approx(quantile(seconds, 0.99))


def quantile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


class Told(NamedTuple):
    """The numbers of a run's steps by one pass over the lines; all by (step, worker)."""

    steps: dict[tuple[int, int], dict[str, Any]]
    requests: dict[tuple[int, int], list[dict[str, Any]]]
    barriers: dict[tuple[int, int], float]


def tell(folder: Path) -> Told:
    log = Told({}, defaultdict(list), defaultdict(float))
    for path in folder.glob("step_*/worker_*.jsonl"):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            place = (line["step"], line["workid"])
            if line["event"] == "total_step_duration":
                log.steps[place] = line
            elif line["event"] == "async_rollout_request_complete":
                log.requests[place].append(line)
            elif line["event"] == "barrier_wait_duration":
                log.barriers[place] += line["duration_sec"]
    return log


def tail(done: list[float]) -> float:
    ordered = sorted(done)
    return 1 - ordered[math.ceil(len(ordered) * 8 / 10) - 1] / ordered[-1]


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 12), st.integers(0, 999))
def test_the_step_table_equals_a_plain_pass_over_the_lines(
    steps: int, workers: int, requests: int, seed: int
) -> None:
    with TemporaryDirectory() as name:
        folder = synthetic_run(name, steps=steps, workers=workers, requests=requests, seed=seed)
        log, run = tell(folder), open_run(folder)
    table = {row["step"]: row for row in step_table(run.digest).iter_rows(named=True)}
    assert sorted(table) == run.steps == list(range(1, steps + 1))
    begun = {step: min(log.steps[step, worker]["start_us"] for worker in run.worker_ranks) for step in table}
    for step, row in table.items():
        places = [(step, worker) for worker in run.worker_ranks]
        took = {place: log.steps[place]["duration_sec"] for place in places}
        busy = {place: took[place] - log.barriers[place] for place in places}
        everyone = [line for place in places for line in log.requests[place]]
        seconds = sorted(line["duration_sec"] for line in everyone)
        assert row["workers"] == workers
        assert row["duration_sec"] == pytest.approx(max(took.values()))
        assert row["busy_sec"] == pytest.approx(max(busy.values()), abs=1e-4)
        assert busy[step, row["slowest_worker"]] == pytest.approx(max(busy.values()), abs=1e-4)
        assert row["requests"] == len(seconds) == workers * requests
        assert row["response_tokens"] == sum(line["extra"]["actual_response_tokens"] for line in everyone)
        assert row["p50_sec"] == pytest.approx(quantile(seconds, 0.5))
        assert row["p99_sec"] == pytest.approx(quantile(seconds, 0.99))
        assert row["max_sec"] == pytest.approx(seconds[-1])
        done = [
            (line["start_us"] - log.steps[place]["start_us"]) / 1e6 + line["duration_sec"]
            for place in places
            for line in log.requests[place]
        ]
        assert row["straggler_share"] == pytest.approx(tail(done), abs=1e-4)
        interval = (begun[step + 1] - begun[step]) / 1e6 if step < steps else None
        assert row["interval_sec"] == pytest.approx(interval)
        assert sum(row[f"share_{phase}"] for phase in PHASES) == pytest.approx(1.0, abs=1e-3)


def test_the_worker_table_has_a_row_a_step_and_worker(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path, steps=3, workers=2, requests=4))
    table = worker_table(run.digest)
    assert table.select("step", "worker").rows() == [(s, w) for s in (1, 2, 3) for w in (0, 1)]
    assert table["requests"].to_list() == [4] * 6


def test_a_missing_worker_is_missing_and_changes_nothing_else(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path, steps=2, workers=3, requests=4)
    whole = worker_table(open_run(folder).digest)
    (folder / "step_2" / "worker_1.jsonl").unlink()
    part = worker_table(open_run(folder).digest)
    left = whole.filter(~((pl.col("step") == 2) & (pl.col("worker") == 1)))
    assert_frame_equal(part.drop("interval_sec"), left.drop("interval_sec"))


def test_a_step_without_a_step_span_goes_from_its_first_span_to_its_last_end(tmp_path: Path) -> None:
    made = Made([Span("engine_generate", 0, 10, 30), Span("engine_generate", 0, 40, 50)], {})
    write_step(tmp_path, made)
    run = open_run(tmp_path)
    (row,) = step_table(run.digest).iter_rows(named=True)
    assert row["duration_sec"] == pytest.approx(4.0)
    assert row["unaccounted_sec"] == pytest.approx(1.0)
    assert row["requests"] is None  # no record names one
    assert row["share_engine"] == pytest.approx(0.75)


def test_parallel_tools_are_siblings_and_are_not_counted_twice(tmp_path: Path) -> None:
    spans = [
        Span("tool", 2, 10, 30),
        Span("tool", 3, 10, 40),
        Span("tool_execution", 1, 5, 45),
        Span("total_step_duration", 0, 0, 50),
    ]
    write_step(tmp_path, Made(spans, {1: 0, 2: 1, 3: 1}))
    table = {row["event"]: row for row in event_table(open_run(tmp_path).spans).iter_rows(named=True)}
    assert table["tool"]["total_sec"] == pytest.approx(5.0)
    assert table["tool_execution"]["without_nested_sec"] == pytest.approx(1.0)
    assert table["tool"]["steps_share"] == pytest.approx(30 / 50)


def test_requests_of_a_log_without_tasks_nest_by_request(tmp_path: Path) -> None:
    lines = [
        ("turn_engine_call", 5.0, 3.0, "a"),
        ("turn_engine_call", 6.0, 4.5, "b"),
        ("turn_end", 5.0, 3.5, "a"),
        ("async_rollout_request_complete", 6.5, 5.5, "b"),
        ("async_rollout_request_complete", 7.0, 6.0, "a"),
        ("async_generate_duration", 8.0, 7.5, None),
        ("total_step_duration", 9.0, 9.0, None),
    ]
    path = tmp_path / "step_1" / "worker_0.jsonl"
    path.parent.mkdir()
    with path.open("w") as file:
        for event, end, sec, request in lines:
            extra = {"extra": {"request_id": request}} if request else {}
            stamp = f"2026-01-05T08:00:{end:09.6f}"
            file.write(json.dumps({"timestamp": stamp, "event": event, "duration_sec": sec, **extra}) + "\n")
    spans = open_run(tmp_path).spans
    events, ids = spans["event"].to_list(), spans["request_id"].to_list()
    above = {
        (events[number], ids[number]): None if parent is None else (events[parent], ids[parent])
        for number, parent in enumerate(spans["parent"])
    }
    assert above == {
        ("turn_engine_call", "a"): ("turn_end", "a"),
        ("turn_engine_call", "b"): ("async_rollout_request_complete", "b"),
        ("turn_end", "a"): ("async_rollout_request_complete", "a"),
        ("async_rollout_request_complete", "a"): ("async_generate_duration", None),
        ("async_rollout_request_complete", "b"): ("async_generate_duration", None),
        ("async_generate_duration", None): ("total_step_duration", None),
        ("total_step_duration", None): None,
    }


def test_a_task_whose_spawner_is_unknown_lies_below_the_step(tmp_path: Path) -> None:
    spans = [Span("mine", 7, 10, 30), Span("total_step_duration", 0, 0, 50)]
    write_step(tmp_path, Made(spans, {}))
    table = {row["event"]: row for row in event_table(open_run(tmp_path).spans).iter_rows(named=True)}
    assert table["total_step_duration"]["without_nested_sec"] == pytest.approx(3.0)


def test_instant_events_are_counted_and_have_no_times(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path, steps=1, workers=1, requests=3))
    table = {row["event"]: row for row in event_table(run.spans, run.records).iter_rows(named=True)}
    assert table["request_start"]["count"] == 3
    assert table["request_start"]["total_sec"] is None
    assert len(run.records) == sum(row["count"] for row in table.values())


def test_a_users_own_span_counts_for_the_phase_that_it_ran_inside(tmp_path: Path) -> None:
    spans = [
        Span("mine", 0, 0, 10),
        Span("mine", 1, 10, 30),
        Span("tool_execution", 1, 10, 40),
        Span("total_step_duration", 0, 0, 50),
    ]
    write_step(tmp_path, Made(spans, {1: 0}))
    (row,) = step_table(open_run(tmp_path).digest).iter_rows(named=True)
    shares = {phase: row[f"share_{phase}"] for phase in ("tool", "other", "step")}
    assert shares == pytest.approx({"tool": 0.6, "other": 0.2, "step": 0.2})
