"""Retries, two processes of a rank, spawners, validations between steps, clocks set back: true numbers."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hand_written import EPOCH_US, record, write_file

from sglang_instrument.analysis import open_run, step_table
from sglang_instrument.analysis.long_runs import pieces
from sglang_instrument.analysis.long_runs.headers import headers_of
from sglang_instrument.analysis.long_runs.plan import plan_prune
from sglang_instrument.analysis.long_runs.prune import prune
from sglang_instrument.analysis.reading.files import RunFiles, newest_runs
from sglang_instrument.cli.main import main

Rows = list[tuple[Any, ...]]


def call(name: str, begin: float, end: float, task: int, **extra: Any) -> dict[str, Any]:
    return record("turn_engine_call", begin, end, extra={"request_id": name, "turn": 0, **extra}, task=task)


def asked(name: str, begin: float, end: float, task: int, **extra: Any) -> dict[str, Any]:
    fields = {"request_id": name, **extra}
    return record("async_rollout_request_complete", begin, end, extra=fields, task=task, spawned_by=0)


def instant(event: str, moment: float, **keys: Any) -> dict[str, Any]:
    line = record(event, moment, moment, **keys)
    del line["duration_sec"], line["start_us"]
    return line


WHOLE = record("total_step_duration", 0, 20, task=0)
RETRIED = [
    call("r", 1, 5, 1, generated_tokens=3),
    asked("r", 1, 6, 1),
    record("reward", 6.25, 6.5, extra={"request_id": "r", "reward": 0.25}, task=1),
    call("r", 8, 18, 2, generated_tokens=7),
    asked("r", 7, 19, 2),
    record("reward", 19.25, 19.5, extra={"request_id": "r", "reward": 0.75}, task=2),
    WHOLE,
]


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def retried(tmp_path: Path) -> Path:
    write_file(tmp_path, 1, 0, RETRIED)
    return tmp_path


def test_a_retry_is_a_row_of_its_own_with_its_own_calls_tokens_and_reward(
    retried: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("attempt", "duration_sec", "engine_sec", "reward_sec", "turns", "response_tokens", "reward")
    rows = sorted(
        tuple(row[name] for name in names) for row in answer(capsys, "requests", retried)["requests"]
    )
    assert rows == [(0, 5.0, 4.0, 0.25, 1, 3, 0.25), (1, 12.0, 10.0, 0.25, 1, 7, 0.75)]
    turns = answer(capsys, "turns", retried)
    assert [(row["turn"], row["requests"], row["engine_sec"]) for row in turns["turns"]] == [(0, 2, 14.0)]


def test_a_request_shows_all_attempts_and_says_which_is_which(
    retried: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = instant("cache_hit", 9, extra={"request_id": "r", "hits": 4}, task=2)
    rows = [moment, asked("r", 6.75, 6.875, 9)]
    write_file(retried, 2, 0, [asked("r", 30, 31, 1), record("total_step_duration", 29, 40, task=0)])
    write_file(retried, 1, 0, rows)
    shown = answer(capsys, "requests", retried, "--request", "r")
    assert [(row["step"], row["attempt"], row["duration_sec"]) for row in shown["requests"]] == [
        (1, 0, 5.0),
        (1, 1, 0.125),
        (1, 2, 12.0),
    ]
    events = [(event["attempt"], event["event"], event["start_sec"]) for event in shown["events"]]
    assert events == [
        (0, "async_rollout_request_complete", 0.0),
        (0, "turn_engine_call", 0.0),
        (0, "reward", 5.25),
        (1, "async_rollout_request_complete", 0.0),
        (2, "async_rollout_request_complete", 0.0),
        (2, "turn_engine_call", 1.0),
        (2, "cache_hit", 2.0),
        (2, "reward", 12.25),
    ]
    assert main(["requests", str(retried), "--request", "r"]) == 0
    printed = capsys.readouterr().out
    assert [f"attempt {number}: its events" in printed for number in range(1, 5)] == [True, True, True, False]
    assert "the same id is also in step 2 worker 0: --step, --worker show it" in printed
    [other] = answer(capsys, "requests", retried, "--request", "r", "--step", 2)["requests"]
    assert (other["step"], other["attempt"]) == (2, 0)


def test_fields_and_reported_calls_are_of_their_own_attempt(
    retried: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = [
        record("engine_generate", 1, 5, extra={"request_id": "r", "e2e_latency": 3.5}, task=1),
        record("engine_generate", 8, 18, extra={"request_id": "r", "e2e_latency": 9.5}, task=2),
    ]
    write_file(retried, 1, 0, reports)
    rows = answer(capsys, "requests", retried, "--fields", "generated_tokens,reward:max")["requests"]
    assert {row["attempt"]: row["fields"] for row in rows} == {
        0: {"generated_tokens": 3, "reward:max": 0.25},
        1: {"generated_tokens": 7, "reward:max": 0.75},
    }
    calls = answer(capsys, "requests", retried, "--request", "r")["engine_calls"]
    assert [(call["attempt"], call["running_sec"], call["outside_sec"]) for call in calls] == [
        (0, None, 0.5),
        (1, None, 0.5),
    ]


def test_sql_joins_requests_and_turns_of_a_retry_by_its_attempt(
    retried: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = (
        "select r.attempt, r.engine_sec, t.engine_sec from requests r join turns t "
        "using (step, validate, worker, request_id, attempt) order by 1"
    )
    assert [tuple(row.values()) for row in answer(capsys, "sql", retried, query)["rows"]] == [
        (0, 4.0, 4.0),
        (1, 10.0, 10.0),
    ]


def test_requests_of_one_id_that_overlap_have_the_calls_that_ran_inside_them(tmp_path: Path) -> None:
    inner = [{**call("r", 2, 9, 3), "spawned_by": 1}, {**call("r", 4, 7, 4), "spawned_by": 2}]
    write_file(tmp_path, 1, 0, [*inner, asked("r", 1, 10, 1), asked("r", 3, 8, 2), WHOLE])
    rows = open_run(tmp_path).digest.requests.sort("start_us").select("attempt", "duration_sec", "engine_sec")
    assert rows.rows() == [(0, 9.0, 7.0), (1, 5.0, 3.0)]


def write_process(folder: Path, name: str, *records: dict[str, Any]) -> None:
    header = instant("log_opened", 0, extra={"log_version": 1, "run_id": "now"})
    lines = [json.dumps({**line, "workid": 0, "step": 1}) for line in (header, *records)]
    (folder / "step_1").mkdir(exist_ok=True)
    (folder / "step_1" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def test_processes_of_one_rank_that_run_side_by_side_count_like_workers(tmp_path: Path) -> None:
    waits = record("barrier_wait_duration", 10, 22, task=0)
    write_process(tmp_path, "worker_0", call("a", 2, 18, 1), asked("a", 1, 19, 1), WHOLE)
    write_process(tmp_path, "worker_0.other-7", waits, record("total_step_duration", 0, 22, task=0))
    [row] = step_table(open_run(tmp_path).digest).to_dicts()
    assert (row["duration_sec"], row["busy_sec"], row["unaccounted_sec"]) == (20.0, 20.0, 2.0)
    shares = [row[name] for name in row if name.startswith("share_")]
    assert sum(shares) == pytest.approx(1.0)
    assert row["share_barrier"] == pytest.approx(12 / 42)


def test_processes_of_one_rank_that_follow_one_another_add_up(tmp_path: Path) -> None:
    write_process(tmp_path, "worker_0", record("total_step_duration", 0, 8, task=0))
    write_process(tmp_path, "worker_0.other-7", record("total_step_duration", 9, 20, task=0))
    assert step_table(open_run(tmp_path).digest)["duration_sec"].to_list() == [19.0]


def test_an_instant_event_says_what_spawned_its_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = []
    for group in (10, 11):
        for task in (2 * group, 2 * group + 1):
            name = str(task)
            begun = instant("request_start", 1, extra={"request_id": name}, task=task, spawned_by=group)
            whole = {**asked(name, 1, 18.5, task)}
            del whole["spawned_by"]
            records += [begun, call(name, 1, 18, task), whole]
        records.append(record("request_group", 1, 19, task=group, spawned_by=0))
    write_file(tmp_path, 1, 0, [*records, WHOLE])
    events = {row["event"]: row for row in answer(capsys, "events", tmp_path)["events"]}
    assert events["request_group"]["without_nested_sec"] == pytest.approx(1.0)
    groups = open_run(tmp_path).digest.path.filter(event="request_group")
    assert groups.select(((pl.col("end_us") - pl.col("start_us")) / 1e6).sum()).item() == pytest.approx(0.5)


def test_a_task_without_spans_between_two_that_have_some_is_passed_over(tmp_path: Path) -> None:
    between = instant("request_start", 1, extra={"request_id": "r"}, task=5, spawned_by=0)
    inner = record("tool", 2, 6, task=7, spawned_by=5)
    write_file(tmp_path, 1, 0, [between, inner, record("total_step_duration", 0, 10, task=0)])
    assert step_table(open_run(tmp_path).digest)["unaccounted_sec"].to_list() == [6.0]


def test_spans_whose_tasks_spawned_one_another_in_a_circle_have_no_parent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    circle = [record(name, 0, 1, task=task, spawned_by=by) for name, task, by in (("a", 1, 2), ("b", 2, 1))]
    write_file(tmp_path, 1, 0, [*circle, record("c", 0, 3, task=3, spawned_by=2)])
    for command in ("summary", "requests", "events", "turns", "workers"):
        answer(capsys, command, tmp_path)
    spans = open_run(tmp_path).spans.sort("event")
    assert spans["parent"].is_null().to_list() == [True, True, False]
    assert step_table(open_run(tmp_path).digest)["duration_sec"].to_list() == [3.0]


def test_the_interval_of_a_step_ends_where_a_validation_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (folder, begin) in enumerate(
        [("step_1", 0), ("step_2", 30), ("validate_2", 55), ("step_3", 80)]
    ):
        path = tmp_path / folder / "worker_0.jsonl"
        path.parent.mkdir()
        path.write_text(json.dumps(record("total_step_duration", begin, begin + 10 + number, task=0)) + "\n")
    steps = answer(capsys, "summary", tmp_path)["steps"]
    assert [row["interval_sec"] for row in steps] == [30.0, 25.0, None]
    [validation] = answer(capsys, "summary", tmp_path, "--validate")["steps"]
    assert validation["interval_sec"] == 25.0


def launch(folder: Path, run_id: str, steps: range, begin: float) -> None:
    for step in steps:
        header = instant("log_opened", begin + step, extra={"log_version": 1, "run_id": run_id})
        whole = record("total_step_duration", begin + step, begin + step + 1, task=0)
        closed = instant("step_closed", begin + step + 1, extra={"written": 1, "dropped": 0})
        path = folder / f"step_{step}/worker_0.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.writelines(
                json.dumps({**line, "workid": 0, "step": step}) + "\n" for line in (header, whole, closed)
            )
        os.utime(path, (time.time() - 7200,) * 2)


def test_a_launch_that_goes_on_in_files_of_another_is_newer_though_its_clock_was_set_back(
    tmp_path: Path,
) -> None:
    launch(tmp_path, "first", range(1, 9), 1000.0)
    launch(tmp_path, "resumed", range(5, 13), 0.0)
    run = open_run(tmp_path)
    assert list(run.files.begins) == ["first", "resumed"]
    assert run.digest.steps.sort("step")["start_us"].to_list() == [
        EPOCH_US + int(1e6 * (step + (1000 if step < 5 else 0))) for step in range(1, 13)
    ]
    plan = plan_prune(tmp_path, keep_steps=3, keep_slowest=0)
    assert sorted(step for step, _ in plan.keep) == [10, 11, 12]


LAUNCHES = {
    "set back once": [("first", range(1, 9), 1000.0), ("resumed", range(5, 13), 0.0)],
    "set back twice": [("a", range(1, 5), 3000.0), ("b", range(3, 9), 2000.0), ("c", range(6, 13), 0.0)],
    "never": [("first", range(1, 9), 0.0), ("resumed", range(5, 13), 1000.0)],
    "in no file together": [("first", range(1, 5), 1000.0), ("resumed", range(5, 13), 0.0)],
}


@pytest.mark.parametrize("launches", LAUNCHES.values(), ids=LAUNCHES)
def test_pieces_of_a_long_run_choose_launches_as_the_whole_run_does(
    tmp_path: Path, launches: list[tuple[str, range, float]]
) -> None:
    for run_id, steps, begin in launches:
        launch(tmp_path, run_id, steps, begin)
    files = open_run(tmp_path).files
    parts = [[file for file in files if int(file.folder[5:]) % 3 == number] for number in range(3)]
    headers = [header for part in parts for header in headers_of(part)]
    assert newest_runs(headers) == newest_runs(files)
    assert list(RunFiles(headers).begins) == list(RunFiles.of(files).begins)
    assert len(headers) <= len(files) + len(launches) * 2 * len(parts)


def test_a_long_run_whose_clock_was_set_back_is_summed_as_if_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch(tmp_path, "first", range(1, 25), 200_000.0)
    launch(tmp_path, "resumed", range(12, 41), 0.0)
    whole = answer(capsys, "summary", tmp_path, "--by", "day")
    monkeypatch.setattr(pieces, "MOST_FILES", 12)
    cut = answer(capsys, "summary", tmp_path, "--by", "day")
    assert "judged in" in cut["verdict"]
    assert [row["steps"] for row in cut["periods"]] == [row["steps"] for row in whole["periods"]] == [29, 11]
    assert cut["health"]["older"] == whole["health"]["older"] == {"first": 13}


def test_a_run_whose_steps_are_all_pruned_is_still_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "exp"
    launch(folder, "only", range(1, 5), 0.0)
    before = answer(capsys, "summary", folder)["steps"]
    prune(plan_prune(folder, keep_steps=1, keep_slowest=0))
    shutil.rmtree(folder / "step_4")
    assert [child.name for child in folder.iterdir() if child.name != ".store"] == [".pruned"]
    assert [row["step"] for row in answer(capsys, "summary", folder)["steps"]] == [1, 2, 3]
    assert answer(capsys, "summary", folder)["steps"][:2] == before[:2]
    assert [Path(row["logs"]).name for row in answer(capsys, "runs", tmp_path)["runs"]] == ["exp"]
