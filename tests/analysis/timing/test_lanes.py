"""Spans nest alike for task numbers and times of any size; the times that the engine reported are shown."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from sglang_instrument.analysis import open_run, request_table
from sglang_instrument.analysis.answers.engine.calls import reported_calls
from sglang_instrument.testing import synthetic_run

START_US = 1_767_600_000_000_000


def renamed(folder: Path, task: Any) -> None:
    """Rename all tasks of a run."""
    for path in folder.rglob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line.update({key: task(line[key]) for key in ("task", "spawned_by") if line.get(key) is not None})
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def nested(folder: Path) -> pl.DataFrame:
    spans = open_run(folder).spans
    positions = spans["position"]
    table = spans.select(
        "position", "without_nested_sec", "steps_sec", "concurrent", parent=positions.gather(spans["parent"])
    )
    return table.sort("position")


@pytest.mark.parametrize(
    "task",
    [
        lambda number: number * 2**45,
        lambda number: -number,
        lambda number: 2**61 - number,
        lambda number: number * 7919 % 10007,
    ],
    ids=["huge", "negative", "backwards", "shuffled"],
)
def test_tasks_nest_alike_whatever_their_numbers(tmp_path: Path, task: Any) -> None:
    plain = nested(synthetic_run(tmp_path / "plain", steps=2, workers=2, requests=6))
    folder = synthetic_run(tmp_path / "renamed", steps=2, workers=2, requests=6)
    renamed(folder, task)
    assert_frame_equal(nested(folder), plain)


def test_a_clock_that_was_never_set_spoils_no_other_record(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path, steps=1, workers=1, requests=4)
    before = nested(folder)
    stray = {"timestamp": "1970-01-01T00:00:01+00:00", "event": "stray", "duration_sec": 0.1, "start_us": 5}
    path = folder / "step_1" / "worker_0.jsonl"
    path.write_text(path.read_text() + json.dumps({**stray, "task": 3}) + "\n")
    after = nested(folder)
    assert len(after) == len(before) + 1
    assert_frame_equal(after.head(len(before)).drop("steps_sec"), before.drop("steps_sec"))


def test_a_task_whose_spawner_is_in_another_file_of_the_same_step_has_no_part_there(tmp_path: Path) -> None:
    for name, event, seconds in (("worker_0", "outer", 2.0), ("worker_1", "inner", 1.0)):
        line = {"timestamp": "2026-01-05T08:00:00+00:00", "event": event, "duration_sec": seconds}
        path = tmp_path / "step_1" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**line, "start_us": START_US, "task": 0}) + "\n")
    assert open_run(tmp_path).spans["parent"].null_count() == 2


def test_a_request_has_the_times_that_the_engine_reported(tmp_path: Path) -> None:
    queued = {"queue_time": 1.0, "first_token_latency": 1.5, "e2e_latency": 4.0, "completion_tokens": 9}
    at_once = {"queue_time": 1.0, "first_token_latency": 4.0, "e2e_latency": 4.0, "retractions": 2}
    lines = []
    for event, start, seconds, extra in (
        ("engine_generate", 0, 4.5, {"turn": 0, **queued}),
        ("engine_generate", 5, 4.0, {"turn": 1, **at_once}),
        ("async_rollout_request_complete", 0, 10.0, {"turns": 2}),
    ):
        times = {"duration_sec": seconds, "start_us": START_US + start * 1_000_000, "task": 1}
        stamp = {"timestamp": "2026-01-05T08:00:00+00:00", "event": event}
        lines.append({**stamp, **times, "extra": {"request_id": "r7", **extra}})
    path = tmp_path / "step_1" / "worker_0.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"e2e_latency": r7, torn')
    run = open_run(tmp_path)
    first, second = reported_calls(run, request_table(run.digest).row(0, named=True)).iter_rows(named=True)
    assert [first[f"{name}_sec"] for name in ("queue", "running", "prefill", "decode", "outside")] == [
        *(1.0, 3.0, 0.5, 2.5, 0.5)
    ]
    assert (second["turn"], second["prefill_sec"], second["decode_sec"]) == (1, None, None)
    assert (second["running_sec"], second["retractions"]) == (3.0, 2)
