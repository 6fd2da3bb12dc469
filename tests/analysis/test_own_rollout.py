"""A rollout of one's own fills every answer: the script of the page, and requests that log only a part."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from documented import blocks

from sglang_instrument.analysis import open_run, turn_table
from sglang_instrument.cli.main import main
from sglang_instrument.schema import EVENTS, PHASES

KINDS = ("request", "turn", "generate", "tool", "reward")
[SCRIPT, *_] = [block.text for block in blocks("python") if block.page == "docs/how-to/own-rollout.md"]
EPOCH_US = 1_767_600_000_000_000


def run_script(folder: Path, script: str = SCRIPT) -> Path:
    folder.mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "logs/my_rollout"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_script(tmp_path_factory.mktemp("own"))


def answer(capsys: pytest.CaptureFixture[str], command: str, logs: Path, *arguments: str) -> dict[str, Any]:
    assert main([command, str(logs), *arguments, "--json"]) == 0
    answered: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answered


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_an_event_of_the_phase_with_its_name(kind: str) -> None:
    assert kind in PHASES
    assert EVENTS[kind].phase == kind


def test_the_summary_of_the_script_has_requests_tokens_and_the_time_of_each_kind(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = answer(capsys, "summary", logs)
    assert [(row["step"], row["requests"]) for row in summary["steps"]] == [(1, 8), (2, 8)]
    assert all(row["response_tokens"] > 0 and row["p99_sec"] > 0 for row in summary["steps"])
    assert {row["part"] for row in summary["ledger"]["steps"]} >= {"engine", "tool", "reward"}


def test_the_requests_of_the_script_have_turns_tokens_an_end_and_a_reward(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = answer(capsys, "requests", logs)["requests"]
    assert len(rows) == 16
    for row in rows:
        number = int(row["request_id"][1:])
        assert row["turns"] == 1 + number % 3
        assert row["reward"] == float(number % 3 > 0)
        assert (row["finish_reason"], row["error"]) == ("stop", None)
        assert row["response_tokens"] > 0
        assert row["engine_sec"] >= 0.019 * row["turns"]
        assert row["tool_sec"] >= 0.019 * (row["turns"] - 1)
        assert row["reward_sec"] >= 0.004


def test_the_turns_and_lengths_of_the_script_are_full(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = answer(capsys, "turns", logs, "--tools")
    in_step = [row for row in turns["turns"] if row["step"] == 1]
    assert [(row["turn"], row["requests"]) for row in in_step] == [(0, 8), (1, 5), (2, 2)]
    assert [row["tool_sec"] > 0 for row in in_step] == [True, True, False]
    assert all(row["engine_sec"] > 0 and row["response_tokens"] > 0 for row in in_step)
    assert [(row["turns"], row["requests"]) for row in turns["counts"]] == [(1, 6), (2, 6), (3, 4)]
    counts = {(row["event"], row["tool"]): row["count"] for row in turns["tools"]}
    assert counts == {("tool", "search"): 14, ("tool", "calculator"): 14, ("reward", None): 16}
    lengths = answer(capsys, "lengths", logs)
    assert [(row["requests"], row["reward"]) for row in lengths["lengths"]] == [(8, 0.625)] * 2
    assert sum(row["requests"] for row in lengths["rewards"]) == 16


def test_turns_without_numbers_are_counted_by_their_engine_calls(logs: Path, tmp_path: Path) -> None:
    script = SCRIPT.replace("with bind(turn=turn):", 'with span("turn"):')
    assert script != SCRIPT
    counted = ["turn", "requests", "response_tokens"]
    mine = turn_table(open_run(run_script(tmp_path, script)).digest)
    assert mine.select(counted).equals(turn_table(open_run(logs).digest).select(counted))
    assert [sec > 0 for sec in mine["tool_sec"]] == [True, True, False]


def record(event: str, start: int, end: int, **extra: Any) -> str:
    times = {"duration_sec": float(end - start), "start_us": EPOCH_US + start * 1_000_000}
    head = {"timestamp": "2026-01-05T08:00:00.000000+00:00", "event": event, **times}
    return json.dumps({**head, "extra": {"request_id": "r", **extra}, "workid": 0, "step": 1, "task": 1})


def digest_of(folder: Path, *records: str) -> Any:
    path = folder / "step_1/worker_0.jsonl"
    path.parent.mkdir()
    path.write_text("".join(f"{line}\n" for line in records))
    return open_run(folder).digest


def turns_of(digest: Any) -> list[tuple[Any, ...]]:
    return digest.turns.select("turn", "engine_sec", "tool_sec", "interaction_sec").rows()


def test_a_tool_logged_under_the_next_reply_belongs_to_the_reply_that_asked_for_it(tmp_path: Path) -> None:
    digest = digest_of(
        tmp_path,
        record("turn_engine_call", 0, 2, turn=0, generated_tokens=3),
        record("tool_execution", 2, 5, turn=1),
        record("turn_engine_call", 5, 6, turn=1, generated_tokens=4),
        record("interaction_response", 6, 8),
        record("turn_engine_call", 8, 9, turn=2, generated_tokens=5),
        record("tool_execution", 9, 10, turn=3),
        record("async_rollout_request_complete", 0, 10, turns=3),
    )
    assert turns_of(digest) == [(0, 2.0, 3.0, 0.0), (1, 1.0, 0.0, 2.0), (2, 1.0, 1.0, 0.0)]
    assert digest.requests["response_tokens"].to_list() == [12]


def test_a_tool_that_is_bound_to_its_turn_stays_there_while_the_next_reply_is_written(tmp_path: Path) -> None:
    digest = digest_of(
        tmp_path,
        record("generate", 0, 2, turn=0),
        record("generate", 2, 9, turn=1),
        json.dumps({**json.loads(record("tool", 3, 5, turn=0)), "task": 2, "spawned_by": 1}),
        record("request", 0, 10),
    )
    assert turns_of(digest) == [(0, 2.0, 2.0, 0.0), (1, 7.0, 0.0, 0.0)]


def test_the_tokens_of_a_reply_are_those_of_the_engine_calls_in_it(tmp_path: Path) -> None:
    digest = digest_of(
        tmp_path,
        record("generate", 0, 4),
        record("engine_generate", 0, 1, completion_tokens=3, finish_reason="abort"),
        record("engine_generate", 2, 4, completion_tokens=5, finish_reason="stop"),
        record("engine_request", 2, 3, completion_tokens=5),
        record("request", 0, 5),
    )
    assert digest.turns["response_tokens"].to_list() == [8]
    assert digest.requests.select("turns", "response_tokens").rows() == [(1, 8)]


def test_a_request_that_failed_says_its_error_and_not_the_end_of_its_last_reply(tmp_path: Path) -> None:
    failed = json.loads(record("request", 0, 5)) | {"error": "TimeoutError"}
    digest = digest_of(tmp_path, record("generate", 0, 4, finish_reason="stop"), json.dumps(failed))
    assert digest.requests.select("turns", "finish_reason", "error").rows() == [(None, None, "TimeoutError")]


def test_a_name_of_its_own_counts_for_the_phase_that_it_names(tmp_path: Path) -> None:
    mine = [("generate", "ask"), ("tool", "search"), ("request", "chat")]
    records = [
        json.dumps({**json.loads(record(event, *times)), "phase": phase})
        for (phase, event), times in zip(mine, [(0, 2), (2, 3), (0, 4)], strict=True)
    ]
    digest = digest_of(tmp_path, *records)
    assert turns_of(digest) == [(0, 2.0, 1.0, 0.0)]
    assert digest.requests.select(pl.col("turns"), pl.col("tool_sec")).rows() == [(1, 1.0)]
