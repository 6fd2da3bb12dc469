"""A rollout that only binds ids of requests: its requests and turns are those of its records."""

import json
from pathlib import Path
from typing import Any

import pytest
from hand_written import record, step_of, write_file

from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import main


def call(name: str, begin: float, end: float, task: int = 1, **extra: Any) -> dict[str, Any]:
    return record("engine_generate", begin, end, extra={"request_id": name, **extra}, task=task, spawned_by=0)


def instant(event: str, moment: float, **keys: Any) -> dict[str, Any]:
    line = record(event, moment, moment, **keys)
    del line["duration_sec"], line["start_us"]
    return line


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def requests_of(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    return open_run(folder).digest.requests.sort("worker", "request_id").select(columns).rows()


def test_a_request_lasts_from_its_first_record_to_its_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parsing = record("turn_post_process", 6, 7, extra={"request_id": "a"}, task=1, spawned_by=0)
    begun = instant("request_start", 1, extra={"request_id": "a"}, task=1)
    calls = [call("a", 2, 4, completion_tokens=3), call("a", 4.5, 6, completion_tokens=4)]
    write_file(tmp_path, 1, 0, step_of(begun, *calls, parsing, call("b", 2, 5, task=2)))
    rows = {row["request_id"]: row for row in answer(capsys, "requests", tmp_path)["requests"]}
    assert {name: row["duration_sec"] for name, row in rows.items()} == {"a": 6.0, "b": 3.0}
    names = ("turns", "engine_sec", "other_sec", "response_tokens", "tool_sec", "reward_sec", "reward")
    assert [rows["a"][name] for name in names] == [2, 3.5, 2.5, 7, None, None, None]
    assert [rows["b"][name] for name in names] == [1, 3.0, 0.0, None, None, None, None]
    [first, second] = answer(capsys, "turns", tmp_path)["turns"]
    assert (first["requests"], first["engine_sec"], first["tool_sec"]) == (2, 5.0, None)
    assert (second["requests"], second["engine_sec"], second["response_tokens"]) == (1, 1.5, 4)
    [step] = answer(capsys, "summary", tmp_path)["steps"]
    assert (step["requests"], step["max_sec"]) == (2, 6.0)


def test_samples_side_by_side_are_one_turn_with_the_tokens_of_all(tmp_path: Path) -> None:
    samples = [call("a", 1, 5, completion_tokens=3), call("a", 1.5, 6, task=2, completion_tokens=4)]
    write_file(tmp_path, 1, 0, step_of(*samples, call("a", 7, 8, completion_tokens=9)))
    assert requests_of(tmp_path, "turns", "engine_sec", "response_tokens") == [(2, 6.0, 16)]


def test_samples_of_a_turn_with_a_number_are_not_added_up_either(tmp_path: Path) -> None:
    samples = [
        call("a", 1, 5, turn=0, completion_tokens=3),
        call("a", 1.5, 6, task=2, turn=0, completion_tokens=4),
    ]
    write_file(tmp_path, 1, 0, step_of(*samples, call("a", 7, 8, turn=1, completion_tokens=9)))
    assert requests_of(tmp_path, "turns", "engine_sec", "response_tokens") == [(2, 6.0, 16)]
    turns = open_run(tmp_path).digest.turns.sort("turn").select("engine_sec", "response_tokens").rows()
    assert turns == [(5.0, 7), (1.0, 9)]


def test_a_reply_in_pieces_of_one_numbered_turn_has_the_tokens_of_all_pieces(tmp_path: Path) -> None:
    pieces = [call("a", 1, 2, turn=0, completion_tokens=3), call("a", 3, 5, turn=0, completion_tokens=4)]
    write_file(tmp_path, 1, 0, step_of(*pieces))
    assert requests_of(tmp_path, "turns", "engine_sec", "response_tokens") == [(1, 3.0, 7)]


def test_the_wait_for_a_server_is_a_part_of_the_turn_that_follows(tmp_path: Path) -> None:
    def wait(begin: float, end: float) -> dict[str, Any]:
        return record("server_wait", begin, end, extra={"request_id": "a"}, task=1, spawned_by=0)

    calls = [
        wait(1, 2),
        call("a", 2, 4, completion_tokens=3),
        wait(5, 5.5),
        call("a", 5.5, 7, completion_tokens=4),
    ]
    # verl's own counters stay at 0 while a team's own agent loop calls the engine.
    whole = record(
        "async_rollout_request_complete", 1, 8, extra={"request_id": "a", "turns": 0}, task=1, spawned_by=0
    )
    write_file(tmp_path, 1, 0, step_of(*calls, whole))
    assert requests_of(tmp_path, "turns", "engine_sec", "response_tokens") == [(2, 5.0, 7)]
    turns = (
        open_run(tmp_path).digest.turns.sort("turn").select("turn", "engine_sec", "response_tokens").rows()
    )
    assert turns == [(0, 3.0, 3), (1, 2.0, 4)]


def test_a_request_without_a_call_keeps_the_0_turns_that_it_logged(tmp_path: Path) -> None:
    whole = record("request", 1, 8, extra={"request_id": "a", "turns": 0}, task=1, spawned_by=0)
    write_file(tmp_path, 1, 0, step_of(whole))
    assert requests_of(tmp_path, "turns", "engine_sec", "response_tokens") == [(0, 0.0, None)]


def test_a_request_that_ended_with_an_error_says_so(tmp_path: Path) -> None:
    write_file(tmp_path, 1, 0, step_of(call("a", 1, 2), {**call("a", 3, 4), "error": "TimeoutError"}))
    assert requests_of(tmp_path, "error", "turns") == [("TimeoutError", None)]


def test_other_processes_of_the_step_make_no_rows_of_ids_that_a_request_has(tmp_path: Path) -> None:
    tool = record("tool", 4, 5, extra={"request_id": "a"}, task=0)
    for name, records in (("worker_0", [call("a", 1, 6)]), ("worker_0.host-7", [tool]), ("reward_0", [tool])):
        path = tmp_path / f"step_1/{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in records))
    assert requests_of(tmp_path, "duration_sec", "engine_sec") == [(5.0, 5.0)]


def test_ids_in_a_step_without_whole_requests_are_unended_until_it_is_closed(tmp_path: Path) -> None:
    whole = record("request", 1, 6, extra={"request_id": "a"}, task=1, spawned_by=0)
    write_file(tmp_path, 1, 0, step_of(call("a", 1, 5), whole))
    write_file(tmp_path, 2, 0, [call("b", 1, 5)], closed=False)
    assert requests_of(tmp_path, "request_id", "error") == [("a", None), ("b", "unended")]
    write_file(tmp_path, 2, 0, [call("b", 1, 5)])
    assert requests_of(tmp_path, "request_id", "error") == [("a", None), ("b", None)]


def test_a_run_without_ids_has_no_number_of_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_file(tmp_path, 1, 0, step_of())
    [step] = answer(capsys, "summary", tmp_path)["steps"]
    assert step["requests"] is None
    assert main(["summary", str(tmp_path)]) == 0
    assert "no request logged" in capsys.readouterr().out
