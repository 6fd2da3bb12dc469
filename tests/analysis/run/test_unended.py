"""What was open when a process was killed is in every answer: until its last `open_now`, and marked."""

import json

import pytest
from awaited import records_of, wait_for

from sglang_instrument.cli.main import main

PROGRAM = """
import time
from sglang_instrument import bind, install, instrument, span, step

install(open_now_sec=0.2)

@instrument("tool_call", phase="tool", fields={"tool": "name"})
def call(name, sec):
    time.sleep(sec)

for number in (1, 2, 3):
    with step(number):
        for request in range(3):
            with bind(request_id=f"s{number}r{request}"), span("request"), bind(turn=0):
                with span("generate"):
                    time.sleep(0.02)
                call("search", 3600 if (number, request) == (3, 2) else 0.02)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return the folder of a run that was killed in a tool, and the newest age of its request there."""
    import os
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("killed")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_INSTRUMENT")}
    place = {"EXPERIMENT_NAME": "run", "SGLANG_INSTRUMENT_LOG_DIR": str(folder)}
    script = folder / "program.py"
    script.write_text(PROGRAM)
    program = subprocess.Popen([sys.executable, str(script)], env=clean | place, stderr=subprocess.DEVNULL)

    def ages():
        oldest = [
            request
            for record in records_of(folder / "run" / "step_3", "worker_0.jsonl", "open_now")
            for request in record["extra"]["oldest"]
        ]
        return [request["age_sec"] for request in oldest if request.get("tool") == "search"]

    wait_for(lambda: ages() and ages()[-1] > 1.5, "the request of the hanging tool is not reported")
    program.kill()
    program.wait()
    return folder / "run", ages()[-1]


@pytest.fixture
def answer(killed, capsys):
    def ask(command, *arguments, code=0):
        assert main([command, str(killed[0]), *arguments, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return ask


def test_check_names_the_tool_the_request_and_the_process(killed, capsys):
    assert main(["check", str(killed[0])]) == 1
    shown = capsys.readouterr().out
    assert "tool_call search of request s3r2, turn 1 was open for" in shown
    assert "worker 0 was the first to stop logging in this step, which never ended; tool_call search" in shown


def test_the_request_is_in_the_table_with_its_time_in_the_tool(killed, answer):
    _, age_sec = killed
    rows = {row["request_id"]: row for row in answer("requests")["requests"]}
    assert rows["s3r2"]["unended"]
    assert rows["s3r2"]["error"] is None
    assert rows["s3r2"]["duration_sec"] == pytest.approx(age_sec, abs=1e-3)
    assert rows["s3r2"]["tool_sec"] > 0.9 * age_sec
    assert [name for name, row in rows.items() if row["unended"]] == ["s3r2"]


def test_the_step_lasts_until_the_last_report_and_its_ledger_says_where(killed, answer):
    _, age_sec = killed
    summary = answer("summary")
    step = summary["steps"][-1]
    assert step["duration_sec"] >= age_sec
    assert step["phases"]["tool"] > 0.9
    assert summary["health"]["records"] == 8 * 3 + 1  # those of the ninth request: it ended one span
    assert "tool_call search of request s3r2" in summary["verdict"]
    assert [(row["step"], row["unended"]) for row in summary["steps"]] == [(1, False), (2, False), (3, True)]
    assert [row["unended"] for row in summary["workers"]] == [False, False, True]
    assert summary["findings"] == [finding for finding in summary["findings"] if finding["cause"] == "death"]


def test_the_terminal_marks_the_step_and_the_request(killed, capsys):
    assert main(["summary", str(killed[0])]) == 0
    shown = capsys.readouterr().out
    (step,) = [line for line in shown.splitlines() if line.startswith("3 ")]
    assert "unended" in step
    assert "s so far (unended)" in shown
    assert main(["requests", str(killed[0])]) == 0
    marked = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "unended" in line.split()]
    assert marked == ["request", "s3r2"]


def test_the_request_shows_the_tool_that_did_not_end(killed, answer):
    _, age_sec = killed
    answered = answer("requests", "--request", "s3r2")
    assert answered["requests"][0]["unended"]
    *ended, tool = answered["events"]
    assert [event["unended"] for event in ended] == [False] * len(ended)
    assert (tool["event"], tool["unended"]) == ("tool_call", True)
    assert tool["duration_sec"] == pytest.approx(age_sec, abs=0.1)


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("select step from steps where unended", [{"step": 3}]),
        ("select step, worker from workers where unended", [{"step": 3, "worker": 0}]),
        ("select request_id from requests where unended", [{"request_id": "s3r2"}]),
        ("select request_id, turn from turns where unended", [{"request_id": "s3r2", "turn": 0}]),
    ],
)
def test_sql_has_the_mark(answer, query, rows):
    assert answer("sql", query)["rows"] == rows


def test_the_notebook_has_the_mark(killed):
    from sglang_instrument.analysis import open_run

    run = open_run(killed[0])
    assert run.summary()["unended"].to_list() == [False, False, True]
    assert run.requests().filter(unended=True)["request_id"].to_list() == ["s3r2"]


def test_turns_and_percentiles_count_what_did_not_end(answer):
    assert sum(row["unended"] for row in answer("turns")["turns"]) == 1
    assert [row["unended"] for row in answer("requests", "--cdf")["cdf"]] == [0, 0, 1]


def test_report_and_trace_have_the_mark(killed, tmp_path, capsys):
    page, trace = tmp_path / "report.html", tmp_path / "trace.pftrace"
    assert main(["report", str(killed[0]), "--output", str(page)]) == 0
    assert "step 3, unended" in page.read_text()  # the slowest step
    assert main(["export", str(killed[0]), "--perfetto", str(trace)]) == 0
    assert b"unended" in trace.read_bytes()
    capsys.readouterr()


MANY = """
import contextvars, threading, time
from sglang_instrument import bind, install, span, step

install(open_now_sec=0.2)

def request(number, place):
    with bind(request_id=f"s{number}r{place}"), span("request"), bind(turn=0):
        with span("generate"):
            time.sleep(0.02)
        with span("tool"):
            time.sleep(3600 if number == 2 and place > 1 else 0.02)

for number in (1, 2):
    with step(number):
        runs = [contextvars.copy_context() for _ in range(9)]
        started = [
            threading.Thread(target=context.run, args=(request, number, place), daemon=True)
            for place, context in enumerate(runs)
        ]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
"""


def test_requests_beyond_those_that_open_now_names_are_there_by_their_turns(start_script, tmp_path, capsys):
    script = start_script(MANY)
    wait_for(
        lambda: len(records_of(script.folder / "step_2", "worker_0.jsonl", "open_now")) > 2,
        "nothing is reported as open",
    )
    script.process.kill()
    script.process.wait()
    assert main(["requests", str(script.folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["requests"]
    unended = sorted(row["request_id"] for row in rows if row["unended"])
    assert unended == [f"s2r{place}" for place in range(2, 9)]
    assert len(rows) == 18
    lasted = [row["duration_sec"] for row in rows if row["unended"]]
    assert max(lasted) - min(lasted) < 1.0


REWARDS = """
import json, multiprocessing, time
from pathlib import Path
import sglang_instrument
from sglang_instrument import bind, install, instrument, span, step

install(open_now_sec=0.2)
folder = Path(sglang_instrument.status()["folder"])
context = multiprocessing.get_context("fork")

@instrument("score", phase="reward", fields={"reward": "result"})
def score(place):
    time.sleep(3600 if place == 2 else 0.2)
    return 1.0

def is_reported(sec):
    lines = [line for path in folder.rglob("*-c*.jsonl") for line in path.read_text().splitlines(True)]
    records = [json.loads(line) for line in lines if line.endswith("\\n")]
    opened = [record["extra"]["oldest"] for record in records if record["event"] == "open_now"]
    return any(span["age_sec"] >= sec for spans in opened for span in spans if span["event"] == "score")

with step(1), span("reward_all"):
    for place in range(4):
        with bind(request_id=f"r{place}"), span("request"):
            process = context.Process(target=score, args=(place,))
            process.start()
            if place == 2:
                while not is_reported(1.0):
                    time.sleep(0.05)
                process.terminate()
            process.join()
"""


def test_the_reward_of_a_child_is_that_of_its_request_also_if_it_was_killed(run_script, capsys):
    folder = run_script(REWARDS).folder
    assert main(["requests", str(folder), "--json"]) == 0
    rows = {row["request_id"]: row for row in json.loads(capsys.readouterr().out)["requests"]}
    assert not any(row["unended"] for row in rows.values())
    assert 0.199 < rows["r0"]["reward_sec"] < rows["r0"]["duration_sec"]
    assert 0.8 < rows["r2"]["reward_sec"] < rows["r2"]["duration_sec"]
    assert main(["requests", str(folder), "--request", "r2", "--json"]) == 0
    events = json.loads(capsys.readouterr().out)["events"]
    assert [(event["event"], event["unended"]) for event in events] == [("request", False), ("score", True)]
    assert main(["summary", str(folder), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    spent = {}
    for row in summary["ledger"]["steps"]:
        spent[row["part"]] = spent.get(row["part"], 0.0) + row["sec"]
    assert spent["reward"] > 1.3
    assert spent.get("unaccounted", 0.0) < 0.5 * sum(spent.values())
    assert not summary["steps"][0]["unended"]
    assert main(["check", str(folder)]) == 1
    assert "score of request r2 was open for" in capsys.readouterr().out


@pytest.mark.parametrize("cause", ["hang", "death", "death-early"])
def test_tables_agree_with_the_verdict_of_made_up_runs(cause, tmp_path, capsys):
    place = ["--experiment", "made", "--log-dir", str(tmp_path)]
    assert main(["demo", "--synthetic", "--cause", cause, *place]) == 0
    capsys.readouterr()
    assert main(["summary", str(tmp_path / "made"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    finding = summary["findings"][0]
    assert finding["cause"] == cause.partition("-")[0]
    assert [row["step"] for row in summary["steps"] if row["unended"]] == [finding["step"]]
    assert main(["requests", str(tmp_path / "made"), "--json", "--limit", "9999"]) == 0
    rows = json.loads(capsys.readouterr().out)["requests"]
    unended = [row for row in rows if row["unended"]]
    assert {row["step"] for row in unended} == {finding["step"]}
    assert finding["worker"] in {row["worker"] for row in unended}
    if cause == "hang":
        (request,) = unended
        assert request["request_id"] in finding["sentence"]
        assert request["tool_sec"] > 100


HANGING = """
import pathlib, threading, time
from sglang_instrument import bind, install, span, step

install(open_now_sec=0.2, hang_after_sec=0.4)

def hang(event):
    with bind(request_id=event), span(event, phase="tool"):
        while event != "ended" or not pathlib.Path("reported").exists():
            time.sleep(0.02)

def start(event):
    threading.Thread(target=hang, args=(event,), daemon=True).start()

with step(1):
    start("first")
    start("ended")
    time.sleep(0.6)
    start("second")
    time.sleep(3600)
"""


def test_spans_that_hang_are_named_with_their_places_though_the_last_report_names_others(
    start_script, log_dir, tmp_path, capsys
):
    program = start_script(HANGING)

    def logged(event):
        return records_of(log_dir / "run" / "step_1", "worker_0.jsonl", event)

    def old(event):
        records = logged("open_spans")
        spans = [span for record in records for span in record["extra"]["spans"]]
        return [span["age_sec"] for span in spans if span["event"] == event]

    wait_for(lambda: old("ended"), "the span that ends later is not reported")
    (tmp_path / "reported").touch()  # the program's working directory
    wait_for(lambda: logged("ended"), "the span does not end")
    wait_for(lambda: any(age > 1.5 for age in old("second")), "the second span is not reported again")
    program.process.kill()
    program.wait(-9)
    assert main(["check", str(log_dir / "run"), "--json"]) == 1
    unended = {span["event"]: span for span in json.loads(capsys.readouterr().out)["open"]}
    assert "ended" not in unended
    assert {"first", "second"} <= unended.keys()
    assert all(any("hang" in frame for frame in unended[name]["stack"]) for name in ("first", "second"))
    assert unended["first"]["age_sec"] > unended["second"]["age_sec"] > 1.5
