"""Calls through a gateway are turns of their request: one after the other, and one of those that overlap."""

import json

import pytest
from hand_written import record, request, step_of, write_file

from sglang_instrument.analysis.answers.requests import request_table
from sglang_instrument.analysis.answers.turns import turn_table
from sglang_instrument.analysis.questions import open_run


def call(rid, start, end, event="engine_request", **fields):
    return record(event, start, end, extra={"rid": rid, "finish_reason": "stop", **fields}, workid=0)


def write_engine(folder, name, records):
    header = record("log_opened", 0, 0, extra={"log_version": 1, "run_id": "now"}, workid=0)
    (folder / "engine").mkdir(exist_ok=True)
    lines = [json.dumps(line) for line in (header, *records)]
    (folder / f"engine/{name}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path):
    """Log a request of three calls, of which two overlap, and one that logs its own call."""
    mine = record("turn_engine_call", 1, 2, extra={"request_id": "b", "turn": 0, "rid": "mine"}, task=1)
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 10), mine, request("b", 0, 10)))
    calls = [
        call("one", 1, 3, request_header="a", completion_tokens=5),
        call("two", 2, 4, request_header="a", completion_tokens=6),
        call("three", 6, 7, request_header="a", completion_tokens=7, spec_verify_ct=3),
        call("mine", 1, 2, request_header="b", completion_tokens=9),
        call("nobody's", 1, 2, completion_tokens=9),
    ]
    write_engine(tmp_path, "server_0", calls)
    return tmp_path


def test_calls_that_overlap_are_one_turn(folder):
    turns = open_run(folder, cached=False).everything.turns.filter(request_id="a").sort("turn")
    assert turns["turn"].to_list() == [0, 1]
    assert turns["engine_sec"].to_list() == pytest.approx([3, 1])
    assert turns["response_tokens"].to_list() == [11, 7]
    assert turns["verifications"].to_list() == [None, 3]


def test_the_request_has_what_its_turns_have(folder):
    table = request_table(open_run(folder, cached=False).everything)
    rows = {row["request_id"]: row for row in table.to_dicts()}
    assert rows["a"]["turns"] == 2
    assert rows["a"]["engine_sec"] == pytest.approx(4)
    assert rows["a"]["other_sec"] == pytest.approx(6)
    assert (rows["a"]["response_tokens"], rows["a"]["finish_reason"]) == (18, "stop")


def test_a_request_that_logs_its_own_turns_keeps_them(folder):
    turns = open_run(folder, cached=False).everything.turns.filter(request_id="b")
    assert turns.select("turn", "event").rows() == [(0, "turn_engine_call")]


def test_a_call_that_gateway_and_server_log_counts_once_and_as_long_as_the_gateway_says(folder):
    gateways = [call("one", 0.5, 3.5, "gateway_call", session="a", generated_tokens=5)]
    write_engine(folder, "gateway_0", gateways)
    digest = open_run(folder, cached=False).everything
    (first,) = digest.turns.filter(request_id="a", turn=0).to_dicts()
    assert (first["engine_sec"], first["response_tokens"]) == (pytest.approx(3.5), 11)
    assert turn_table(digest)["requests"].to_list() == [2, 1]


def test_a_gateway_alone_tells_its_turns(folder):
    (folder / "engine/server_0.jsonl").unlink()
    write_engine(folder, "gateway_0", [call("x", 2, 5, "gateway_call", session="a", generated_tokens=4)])
    (turn,) = open_run(folder, cached=False).everything.turns.filter(request_id="a").to_dicts()
    assert (turn["engine_sec"], turn["response_tokens"]) == (pytest.approx(3), 4)
