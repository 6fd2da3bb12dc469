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
    assert rows["s3r2"]["error"] == "unended"
    assert rows["s3r2"]["duration_sec"] == pytest.approx(age_sec, abs=1e-3)
    assert rows["s3r2"]["tool_sec"] > 0.9 * age_sec
    assert all(row["error"] is None for name, row in rows.items() if name != "s3r2")


def test_the_step_lasts_until_the_last_report_and_its_ledger_says_where(killed, answer):
    _, age_sec = killed
    summary = answer("summary")
    step = summary["steps"][-1]
    assert step["duration_sec"] >= age_sec
    assert step["phases"]["tool"] > 0.9
    assert summary["health"]["records"] == 8 * 3 + 1  # those of the ninth request: it ended one span
    assert "tool_call search of request s3r2" in summary["verdict"]
