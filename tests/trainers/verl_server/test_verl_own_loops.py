"""Agent loops of a team's own, in verl's real worker: turns are calls of the engine; nothing unknown is 0."""

import pytest
from conftest import HERE, LIMIT_SEC, MODEL, interpreter
from logged import read_records
from logged_program import run_logged

REQUEST = "async_rollout_request_complete"
UNKNOWN = {"turns_with_tools", "total_tool_time", "turn_timings"}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own_loops")
    command = [interpreter(), "-W", "ignore", HERE / "own_loop.py", MODEL]
    variables = {"HOME": str(folder), "HANG": str(folder / "hang"), "SGLANG_USE_CPU_ENGINE": "1"}
    run_logged(command, folder, limit_sec=LIMIT_SEC, paths=[HERE], **variables)
    return read_records(folder / "run")


def extras(records, event):
    return [record["extra"] for record in records if record["event"] == event]


def test_a_loop_of_ones_own_has_a_turn_for_each_call_of_the_engine(logs):
    records = logs["step_1/worker_0.jsonl"]
    requests = extras(records, REQUEST)
    assert [request["turns"] for request in requests] == [3, 3, 3, 3]
    assert all(request["actual_response_tokens"] == 24 for request in requests)
    assert all(request["finish_reason"] == "completed" for request in requests)
    for request in requests:
        calls = [
            record["duration_sec"]
            for record in records
            if record["event"] == "engine_async_generate_actual"
            and record["extra"]["request_id"] == request["request_id"]
        ]
        assert request["total_engine_time"] == pytest.approx(sum(calls))
        assert not UNKNOWN & request.keys()


def test_a_subclass_that_calls_super_is_recorded_once_a_call(logs):
    overridden, plain = logs["step_2/worker_0.jsonl"], logs["step_3/worker_0.jsonl"]
    for event in ("turn_end", "turn_engine_call", REQUEST, "main_loop"):
        assert len(extras(overridden, event)) == len(extras(plain, event)) == 4
    assert [request["turns"] for request in extras(overridden, REQUEST)] == [1, 1, 1, 1]
    assert {turn["turn"] for turn in extras(overridden, "turn_end")} == {0}
