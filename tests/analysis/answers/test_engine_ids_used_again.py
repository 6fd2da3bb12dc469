"""A client that starts anew may number its requests as before: an id used again is another request."""

import pytest
from test_join import Log, only, opened

from sglang_instrument.analysis.answers.engine.call_times import call_times
from sglang_instrument.analysis.answers.engine.join import engine_request_table, engine_summary, joined_calls
from sglang_instrument.analysis.answers.routing.server_calls import server_calls


@pytest.fixture
def log(tmp_path):
    """Log the id "a" in two steps; its queue, prefill and decode take 1, 1 and 3 s, then 2, 2 and 6 s."""
    log = Log(tmp_path / "run")
    log.call(1, "a", "r0", 0, 10, 6)
    log.life("a", 10.5, ("admit", 11.5), ("first", 12.5), end=15.5)
    log.call(2, "a", "r0", 0, 100, 11)
    log.life("a", 100.5, ("admit", 102.5), ("first", 104.5), end=110.5, tokens=21)
    return log


def parts(row):
    return [row[f"{part}_sec"] for part in ("queue", "prefill", "decode")]


def test_each_use_of_an_id_is_a_request(log):
    first, second = engine_request_table(opened(log)).to_dicts()
    assert (first["rid"], first["step"], first["completion_tokens"]) == ("a", 1, 11)
    assert (second["rid"], second["step"], second["completion_tokens"]) == ("a (2)", 2, 21)
    assert parts(first) == pytest.approx([1, 1, 3])
    assert parts(second) == pytest.approx([2, 2, 6])


def test_each_call_has_the_request_of_its_time(log):
    for step, expected in ((1, [1, 1, 3]), (2, [2, 2, 6])):
        assert parts(only(joined_calls(opened(log), step=step))) == pytest.approx(expected)
    by_step = {row["step"]: row for row in call_times(opened(log)).to_dicts()}
    assert {step: parts(row) for step, row in by_step.items()} == {1: [1, 1, 3], 2: [2, 2, 6]}
    calls = server_calls(opened(log)).sort("step").to_dicts()
    assert [(call["step"], call["server"], *parts(call)) for call in calls] == [
        (1, "server_0", 1, 1, 3),
        (2, "server_0", 2, 2, 6),
    ]


def test_shares_of_the_run_are_those_of_both(log):
    summary = engine_summary(opened(log))
    assert summary["requests"] == 2
    assert summary["shares"] == pytest.approx({"queue": 3 / 15, "prefill": 3 / 15, "decode": 9 / 15})


def test_a_third_use_is_told_apart_too(log):
    log.call(3, "a", "r0", 0, 200, 4)
    log.life("a", 200.5, ("admit", 201), ("first", 201.5), end=203.5)
    third = engine_request_table(opened(log)).to_dicts()[2]
    assert (third["rid"], third["step"]) == ("a (3)", 3)
    assert parts(third) == pytest.approx([0.5, 0.5, 2])


def test_what_goes_on_after_an_abort_is_the_same_request(tmp_path):
    log = Log(tmp_path / "run")
    log.call(1, "a", "r0", 0, 10, 12)
    scheduler = "engine/scheduler_0_tp0.jsonl"
    log.write(
        scheduler,
        ("scheduler_receive", 10.5, 0.0001, {"rid": "a", "prompt_tokens": 7}),
        ("scheduler_admit", 11, 0.0, {"rids": ["a"]}),
        ("scheduler_first_tokens", 12, 0.0, {"rids": ["a"]}),
        ("scheduler_finish", 14, 0.0, {"rids": ["a"], "finish_reasons": ["abort"], "reply_tokens": [5]}),
        ("scheduler_receive", 16, 0.0001, {"rid": "a", "prompt_tokens": 12}),
        ("scheduler_admit", 17, 0.0, {"rids": ["a"]}),
        ("scheduler_first_tokens", 18, 0.0, {"rids": ["a"]}),
        ("scheduler_finish", 20, 0.0, {"rids": ["a"], "finish_reasons": ["stop"], "reply_tokens": [9]}),
    )
    row = only(joined_calls(opened(log)))
    assert (row["rid"], row["finish_reason"]) == ("a", "stop")


def test_an_id_that_looks_like_a_second_use_is_left_alone(tmp_path):
    log = Log(tmp_path / "run")
    log.call(1, "b (2)", "r0", 0, 10, 6)
    log.life("b (2)", 10.5, ("admit", 11.5), ("first", 12.5), end=15.5)
    row = only(joined_calls(opened(log)))
    assert row["rid"] == "b (2)"
    assert parts(row) == pytest.approx([1, 1, 3])


def test_an_id_that_looks_like_a_second_use_of_another_is_a_request_of_its_own(tmp_path):
    log = Log(tmp_path / "run")
    for rid, request, start in (("b", "r0", 10), ("b (2)", "r1", 30)):
        log.call(1, rid, request, 0, start, 6)
        log.life(rid, start + 0.5, ("admit", start + 1.5), ("first", start + 2.5), end=start + 5.5)
    rows = joined_calls(opened(log)).to_dicts()
    assert [(row["rid"], row["request_id"], *parts(row)) for row in rows] == [
        ("b", "r0", 1, 1, 3),
        ("b (2)", "r1", 1, 1, 3),
    ]
