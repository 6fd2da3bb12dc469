"""The records of a request's caller, server and scheduler are joined; the files are written by hand."""

import json
from dataclasses import replace

import pytest

from sglang_instrument.analysis.answers.engine.join import (
    engine_request_table,
    engine_summary,
    explain,
    has_engine_logs,
    joined_calls,
    shares,
    usual_token_sec,
    why,
)
from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests, engine_requests
from sglang_instrument.analysis.answers.routing.server_calls import server_calls
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.store import homes
from sglang_instrument.analysis.verdict.verdict import Finding
from sglang_instrument.cli.main import main

SLOW = Finding("engine", "worker", step=1, validate=False, worker=0, lost_sec=140.0, sentence="")

BEGIN_US = 1_795_000_000_000_000


class Log:
    """Writes a run: times are seconds since it began."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, path, *records):
        """Add records to a file: (event, start, duration, fields)."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        new = not file.exists()
        with file.open("a") as stream:
            if new:
                stream.write(self._line("log_opened", 0, None, {"log_version": 1, "run_id": "now"}))
            for record in records:
                stream.write(self._line(*record))

    def _line(self, event, start, duration, extra):
        record = {"timestamp": "2026-11-20T19:36:11.133688+00:00", "event": event}
        if duration is not None:
            record |= {"duration_sec": duration, "start_us": BEGIN_US + round(start * 1e6)}
        return json.dumps({**record, "extra": extra, "task": 0}) + "\n"

    def call(self, step, rid, request, turn, start, duration):
        """A turn of a request, in a worker's log."""
        self.write(
            f"step_{step}/worker_0.jsonl",
            ("total_step_duration", start - 1, duration + 2, {}),
            ("engine_generate", start, duration, {"request_id": request, "turn": turn, "rid": rid}),
        )

    def life(self, rid, arrived, *moments, end, tokens=11, scheduler="scheduler_0_tp0"):
        """Write the engine's records of the request; moments: ("admit" | "first" | "retract", seconds)."""
        events = {
            "admit": ("scheduler_admit", 0.0),
            "first": ("scheduler_first_tokens", 0.0),
            "retract": ("scheduler_retract", 0.0),
        }
        self.write(
            f"engine/{scheduler}.jsonl",
            ("scheduler_receive", arrived, 0.0001, {"rid": rid, "prompt_tokens": 7}),
            *((events[what][0], second, events[what][1], {"rids": [rid]}) for what, second in moments),
        )
        answer = {"rid": rid, "completion_tokens": tokens}
        self.write("engine/server_0.jsonl", ("engine_request", arrived - 0.5, end - arrived + 1, answer))
        self.write("engine/detokenizer_0.jsonl", ("engine_detokenize", end, 0.0, {"rids": [rid, "other"]}))


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "run")


def opened(log):
    return Run.open(log.folder, cached=False)


def only(table):
    [row] = table.to_dicts()
    return row


def test_a_request_is_shared_out_among_queue_prefill_and_decode(log):
    log.call(1, "a", "r0", 1, 10, 151)
    log.life("a", 10.5, ("admit", 158.5), ("first", 159), end=160)
    row = only(joined_calls(opened(log)))
    assert (row["request_id"], row["turn"], row["rid"]) == ("r0", 1, "a")
    parts = [row[f"{part}_sec"] for part in ("queue", "prefill", "decode", "outside")]
    assert parts == pytest.approx([148, 0.5, 1, 1.5])
    assert why(row) == "148 s of 151 s in the scheduler's queue"


def test_the_prefill_is_the_first_and_what_a_retraction_costs_is_that(log):
    log.call(1, "a", "r0", 0, 0, 21)
    moments = [("admit", 1), ("first", 2), ("retract", 5), ("admit", 15), ("first", 17)]
    log.life("a", 0.5, *moments, end=20)
    row = only(joined_calls(opened(log)))
    parts = [row[f"{part}_sec"] for part in ("queue", "prefill", "decode", "retracted")]
    assert parts == pytest.approx([0.5, 1, 6, 12])
    assert row["retractions"] == 1
    assert why(row) == "12 s of 21 s until a retraction was made good, retracted once"


def test_a_request_that_ends_before_its_retraction_was_made_good_has_no_second_prefill(log):
    log.call(1, "a", "r0", 0, 0, 21)
    log.life("a", 0.5, ("admit", 1), ("first", 2), ("retract", 5), ("admit", 15), end=20)
    row = only(engine_request_table(opened(log)).filter(rid="a"))
    assert (row["prefill_sec"], row["decode_sec"]) == pytest.approx((1, 3))


def sampled(log):
    """Two samples of a prompt, "x1" and "x2", which the engine of a worker renames "y1" and "y2"."""
    request = {"request_id": "r0", "turn": 0}
    log.write(
        "step_1/worker_0.jsonl",
        ("total_step_duration", 0, 9, {}),
        ("engine_tokenize", 1, 0.1, {**request, "rid": "x1", "prompt_tokens": 7}),
        ("engine_wait", 2, 2, {**request, "rid": "y1", "completion_tokens": 4, "finish_reason": "stop"}),
        ("engine_wait", 2, 3, {**request, "rid": "y2", "completion_tokens": 6, "finish_reason": "length"}),
        ("engine_request", 1, 4, {**request, "rid": ["x1", "x2"], "completion_tokens": 10}),
    )
    for rid, scheduler in (("y1", "scheduler_0_tp0"), ("y2", "scheduler_1_tp0")):
        log.write(f"engine/{scheduler}.jsonl", ("scheduler_receive", 2, 0.001, {"rid": rid}))
    log.write("engine/detokenizer_0.jsonl", ("engine_detokenize", 4, 0.0, {"rids": ["y1", "y2"]}))


def test_samples_that_the_engine_renames_are_calls_with_tokens_of_their_own(log):
    sampled(log)
    calls = server_calls(opened(log)).select("rid", "request_id", "server", "completion_tokens")
    assert sorted(calls.rows()) == [
        ("y1", "r0", "scheduler_0_tp0", 4),
        ("y2", "r0", "scheduler_1_tp0", 6),
    ]


def test_samples_of_a_server_s_own_log_have_tokens_and_reasons_of_their_own(log):
    sampled(log)
    (log.folder / "step_1/worker_0.jsonl").rename(log.folder / "engine/server_0.jsonl")
    rows = engine_request_table(opened(log)).select("rid", "completion_tokens", "finish_reason", "server")
    assert sorted(rows.rows()) == [("y1", 4, "stop", "server_0"), ("y2", 6, "length", "server_0")]


def test_the_pieces_of_a_long_prompt_are_its_prefill(log):
    log.life("a", 0, ("admit", 1), ("first", 2), ("admit", 2.5), ("first", 4), end=5)
    row = only(engine_request_table(opened(log)).filter(rid="a"))
    queue, prefill, decode = (row[f"{part}_sec"] for part in ("queue", "prefill", "decode"))
    assert queue == pytest.approx(1)
    assert queue + prefill + decode == pytest.approx(5)
    assert prefill == pytest.approx(3)


def test_slow_decode_is_called_so_beside_the_others(log):
    for number in range(5):
        log.call(1, f"fast-{number}", f"r{number}", 0, 10, 1.2)
        log.life(f"fast-{number}", 10.1, ("admit", 10.1), ("first", 10.2), end=11.2)
    log.call(1, "slow", "r9", 0, 10, 6)
    log.life("slow", 10.1, ("admit", 10.1), ("first", 10.2), end=15.2)
    calls = joined_calls(opened(log))
    slow = only(calls.filter(rid="slow"))
    said = why(slow, usual_token_sec(calls))
    assert said == "5 s of 6 s in decode, a token took 5.0 times as long as usual"


def test_the_outermost_of_nested_spans_is_the_call(log):
    log.call(1, "a", "r0", 0, 10, 3)
    log.write(
        "step_1/worker_0.jsonl",
        ("engine_tokenize", 10, 0.1, {"request_id": "r0", "turn": 0, "rid": "a"}),
    )
    log.life("a", 10.5, ("admit", 10.6), ("first", 11), end=12)
    row = only(joined_calls(opened(log)))
    assert (row["event"], row["call_sec"]) == ("engine_generate", 3)
    assert row["tokenize_sec"] == pytest.approx(0.1)


def test_requests_that_nobody_named_are_placed_by_time(log):
    log.call(1, "a", "r0", 0, 10, 3)
    log.call(2, "b", "r1", 0, 20, 3)
    for rid, arrived in (("early", 2), ("first", 11), ("second", 21)):
        log.life(rid, arrived, ("admit", arrived + 1), end=arrived + 2)
    placed = {row["rid"]: row["step"] for row in engine_request_table(opened(log)).to_dicts()}
    assert placed == {"early": None, "first": 1, "second": 2}


def test_a_request_that_never_left_the_queue_has_no_prefill(log):
    log.write("engine/scheduler_0_tp0.jsonl", ("scheduler_receive", 3, 0.001, {"rid": "a"}))
    row = only(engine_request_table(opened(log)))
    assert [row[f"{part}_sec"] for part in ("queue", "prefill", "decode")] == [None, None, None]


def test_health_checks_of_sglang_are_not_requests(log):
    log.write("engine/scheduler_0_tp0.jsonl", ("scheduler_receive", 3, 0.001, {"rid": "HEALTH_CHECK_7"}))
    assert engine_request_table(opened(log)).is_empty()
    assert shares(engine_request_table(opened(log))) == {}


def test_torn_lines_cost_no_other_line(log):
    log.life("a", 0, ("admit", 1), ("first", 2), end=5)
    with (log.folder / "engine/scheduler_0_tp0.jsonl").open("a") as stream:
        stream.write('{"timestamp":"2026-11-20T19:36')
    row = only(engine_request_table(opened(log)).filter(rid="a"))
    assert row["prefill_sec"] == pytest.approx(1)


def test_records_of_an_earlier_run_are_left_out(log):
    log.life("old", 0, ("admit", 1), ("first", 2), end=3)
    for path in (log.folder / "engine").iterdir():
        path.write_text(path.read_text().replace('"now"', '"before"'))
        with path.open("a") as stream:
            stream.write(
                '{"timestamp":"2026-11-21T19:36:11.133688+00:00","event":"log_opened","extra":'
                '{"log_version":1,"run_id":"now"}}\n'
            )
    log.life("new", 10, ("admit", 11), ("first", 12), end=13)
    assert "old" not in engine_request_table(opened(log))["rid"].to_list()
    assert "new" in engine_request_table(opened(log))["rid"].to_list()


def test_a_steps_worker_is_explained_by_its_slowest_call(log):
    log.call(1, "a", "r0", 1, 10, 151)
    log.life("a", 10.5, ("admit", 158.5), ("first", 159), end=160)
    assert explain(opened(log), SLOW) == (
        "its longest engine call (request r0, turn 2): 148 s of 151 s in the scheduler's queue"
    )


def test_a_slow_call_is_explained_by_itself_and_not_by_a_slower_one_of_its_worker(log):
    log.call(1, "a", "r0", 1, 10, 151)
    log.life("a", 10.5, ("admit", 158.5), ("first", 159), end=160)
    log.call(1, "b", "r1", 0, 200, 60)
    log.life("b", 200.5, ("admit", 201), ("first", 251), end=259)
    finding = replace(SLOW, request_id="r1", evidence={"turn": 0})
    assert explain(opened(log), finding) == (
        "its longest engine call (request r1, turn 1): 50 s of 60 s in prefill"
    )


def of_another_run(log):
    """Let another run have started the servers."""
    for path in (log.folder / "engine").iterdir():
        path.write_text(path.read_text().replace('"now"', '"before"'))


def test_a_server_that_outlives_runs_counts_for_the_requests_of_this_one(log, capsys):
    log.call(1, "a", "r0", 0, 10, 5)
    for rid, arrived in (("earlier", 0.5), ("a", 10.5), ("of-others", 11), ("later", 90)):
        log.life(rid, arrived, ("admit", arrived + 1), ("first", arrived + 2), end=arrived + 4)
    assert engine_summary(opened(log))["requests"] == 4
    of_another_run(log)
    assert (engine_summary(opened(log))["requests"], engine_summary(opened(log))["of_others"]) == (1, 3)
    assert main(["summary", str(log.folder)]) == 0
    assert "3 requests of other clients of these servers are left out" in capsys.readouterr().out


def test_without_ids_the_requests_of_a_run_are_those_of_its_time(log):
    log.write("step_1/worker_0.jsonl", ("total_step_duration", 9, 10, {}))
    for rid, arrived in (("earlier", 0.5), ("a", 10.5), ("b", 11), ("later", 90)):
        log.life(rid, arrived, ("admit", arrived + 1), ("first", arrived + 2), end=arrived + 4)
    of_another_run(log)
    assert (engine_summary(opened(log))["requests"], engine_summary(opened(log))["of_others"]) == (2, 2)


def test_names_that_only_a_callers_list_has_are_no_requests_of_the_engine(log):
    log.life("s1", 0, ("admit", 1), ("first", 2), end=5)
    answer = {"rid": ["parent", "parent-2"], "requests": 2, "completion_tokens": 22}
    log.write("engine/server_0.jsonl", ("engine_request", 0, 5, answer))
    assert set(engine_request_table(opened(log))["rid"]) == {"s1"}


def test_without_engine_logs_there_are_no_engine_times(log):
    log.call(1, "a", "r0", 0, 10, 151)
    assert not has_engine_logs(opened(log))
    assert explain(opened(log), SLOW) == ""


def test_engine_requests_are_cached_until_the_files_of_the_run_change(log, monkeypatch):
    monkeypatch.setattr(homes, "_WORTHWHILE_BYTES", 1)
    log.call(1, "a", "r0", 1, 10, 151)
    log.life("a", 10.5, ("admit", 158.5), ("first", 159), end=160)
    first = cached_engine_requests(Run.open(log.folder))
    assert first.equals(engine_requests(opened(log)))
    with monkeypatch.context() as patch:
        patch.setattr(f"{engine_requests.__module__}.engine_requests", None)  # not needed
        assert cached_engine_requests(Run.open(log.folder)).equals(first)
    log.life("b", 200, ("admit", 201), ("first", 202), end=203)
    assert "b" in cached_engine_requests(Run.open(log.folder))["rid"].to_list()
    assert len(list((log.folder / ".store").glob("engine_requests-*.parquet"))) == 1


def without_detokenizer(log, *ends):
    """Write two requests with `skip_tokenizer_init`; the server's records are in the worker's file."""
    for rid, arrived in (("a", 10.5), ("b", 11)):
        log.call(1, rid, f"r-{rid}", 0, arrived - 0.5, 5)
        records = [("scheduler_receive", arrived, 0.0001, {"rid": rid, "prompt_tokens": 7})]
        records += [("scheduler_admit", arrived + 1, 0, {"rids": [rid]})]
        records += [("scheduler_first_tokens", arrived + 2, 0, {"rids": [rid]})]
        log.write("engine/scheduler_0_tp0.jsonl", *records)
    for rid, end in ends:
        answer = {"rid": rid, "completion_tokens": 11}
        log.write("step_1/worker_0.jsonl", ("engine_request", 10, end - 10, answer))


def test_without_a_detokenizer_the_end_in_the_workers_own_log_counts(log, capsys):
    without_detokenizer(log, ("a", 14.5), ("b", 15))
    parts = [f"{kind}_sec" for kind in ("queue", "prefill", "decode")]
    assert engine_request_table(opened(log)).select(parts).rows() == [pytest.approx((1, 1, 2))] * 2
    assert joined_calls(opened(log)).select(parts).rows() == [pytest.approx((1, 1, 2))] * 2
    assert main(["summary", str(log.folder)]) == 0
    assert (
        "engine: 25 % queue, 25 % prefill, 50 % decode of the time of 2 requests" in capsys.readouterr().out
    )


def test_requests_whose_end_nobody_logged_do_not_count_for_the_shares(log):
    without_detokenizer(log, ("a", 14.5))
    assert shares(engine_request_table(opened(log))) == pytest.approx(
        {"queue": 0.25, "prefill": 0.25, "decode": 0.5}
    )
    rows = {row["rid"]: row for row in joined_calls(opened(log)).to_dicts()}
    assert rows["a"]["outside_sec"] == pytest.approx(1)
    assert (rows["b"]["queue_sec"], rows["b"]["prefill_sec"]) == pytest.approx((1, 1))
    assert (rows["b"]["decode_sec"], rows["b"]["outside_sec"]) == (None, None)


def test_an_unknown_time_is_a_dash_and_never_0(log, capsys):
    without_detokenizer(log)
    assert main(["summary", str(log.folder), "--json"]) == 0
    engine = json.loads(capsys.readouterr().out)["engine"]
    assert engine["shares"] == {"queue": None, "prefill": None, "decode": None}
    assert main(["summary", str(log.folder)]) == 0
    said = "engine: 2 requests, whose ends were not logged: - queue, - prefill, - decode"
    assert said in " ".join(capsys.readouterr().out.split())
    assert main(["requests", str(log.folder), "--engine", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["engine_requests"]
    assert [(row["decode_sec"], row["duration_sec"]) for row in rows] == [(None, None)] * 2


def test_a_request_whose_first_token_a_killed_scheduler_did_not_log_has_no_prefill_either(log):
    without_detokenizer(log, ("a", 14.5), ("b", 15))
    path = log.folder / "engine/scheduler_0_tp0.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert shares(engine_request_table(opened(log))) == pytest.approx(
        {"queue": 0.25, "prefill": 0.25, "decode": 0.5}
    )
    row = only(joined_calls(opened(log)).filter(rid="b"))
    assert [row[f"{part}_sec"] for part in ("queue", "prefill", "decode", "outside")] == [1, None, None, None]


def test_a_request_without_scheduler_records_has_no_queue_or_prefill_time(log):
    log.call(1, "a", "r0", 0, 10, 151)
    log.write("engine/server_0.jsonl", ("engine_request", 10, 150, {"rid": "a"}))
    row = only(joined_calls(opened(log)))
    assert (row["outside_sec"], row["retractions"], why(row)) == (None, None, "")


def test_summary_as_json_has_the_line_about_the_engine(log, capsys):
    log.call(1, "a", "r0", 1, 10, 151)
    log.life("a", 10.5, ("admit", 158.5), ("first", 159), end=160)
    assert main(["summary", str(log.folder), "--json"]) == 0
    engine = json.loads(capsys.readouterr().out)["engine"]
    assert engine["requests"] == 1
    assert engine["shares"]["queue"] == pytest.approx(148 / 149.5)
    assert engine["explains"] is None  # no finding
    assert main(["summary", str(log.folder)]) == 0
    assert "engine: 99 % queue" in capsys.readouterr().out
