"""Commands print tables, errors in one line, and with --json the same numbers for programs."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import terminal

from sglang_instrument import __version__
from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import COMMANDS, main
from sglang_instrument.testing import Hang, SlowEngine, TornFile, synthetic_run


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs") / "exp"
    slow = SlowEngine(2, 1, factor=6.0)
    return synthetic_run(folder, steps=3, workers=2, requests=8, validate_every=3, causes=[slow])


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch, stored: None) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert main([str(argument) for argument in arguments]) == code
    return capsys.readouterr().out


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in error
    return error


def rows_of(table: str) -> list[list[str]]:
    return [re.split(r"\s+", line.strip()) for line in table.splitlines() if line.strip()]


def test_help_lists_every_command_and_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        shown = printed(capsys, *arguments)
        assert all(f"    {name}" in shown for name in COMMANDS)
    assert printed(capsys, "--version") == f"sglang-instrument {__version__}\n"


READING = {
    "summary": [],
    "events": [],
    "requests": [],
    "workers": ["--step", 2],
    "turns": ["--tools"],
    "lengths": [],
    "gaps": ["--curve"],
    "staleness": ["--by-worker", "--groups"],
    "waste": [],
    "loop": [],
    "whatif": ["--max-tokens", 100],
    "check": [],
    "advise": [],
}


@pytest.mark.parametrize("command", [*READING, "compare", "export", "sql"])
def test_help_of_a_command_shows_an_example_on_one_screen(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    shown = printed(capsys, command, "--help")
    assert f"sglang-instrument {command} logs/" in shown
    assert len(shown.splitlines()) <= 40


def test_help_imports_nothing_that_takes_long() -> None:
    heavy = ("polars", "rich", "torch", "sglang", "wrapt", "filelock", "numpy")
    program = (
        "import sys; from sglang_instrument.cli.main import main\n"
        f"for name in {sorted(READING)!r}: main([name, '--help'])\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no command 'sumary'; did you mean 'summary'?" in refused(capsys, "sumary")
    assert "the commands are: demo, " in refused(capsys, "xyzzy")


def test_wrong_arguments_end_in_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert "required: LOGS" in refused(capsys, "summary")
    wrong = refused(capsys, "events", "logs", "--step", "x")
    assert "must be a step or a range, such as 12 or 12-20, got 'x'" in wrong
    assert "'9-3' ends before it begins" in refused(capsys, "events", "logs", "--step", "9-3")


def test_an_error_is_one_line_without_a_traceback(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    error = refused(capsys, "summary", tmp_path / "nothing")
    assert error.count("\n") == 1
    assert error.startswith("sglang-instrument: ")


WITHOUT_EXTRAS = """
import sys
for name in ("polars", "rich", "zstandard"):
    sys.modules[name] = None  # as if it were not installed
from sglang_instrument.cli.main import main
for arguments in sys.argv[2:]:
    print(arguments, main([*arguments.split(), sys.argv[1]]))
"""


def test_a_command_without_its_packages_names_the_command_to_install_them(logs: Path, tmp_path: Path) -> None:
    commands = [*READING, "compare x", "plot -o x", "report", "export --parquet x", "status"]
    commands.append("demo --synthetic step-67 --log-dir")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, str(logs), *commands],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == [f"{command} 2" for command in commands]
    for command, said in zip(commands, done.stderr.splitlines(), strict=True):
        name = command.partition(" ")[0]
        complaint, command = said.split(" -m pip install ")
        assert re.fullmatch(rf"sglang-instrument: {name} needs (polars|rich): {sys.executable}", complaint)
        assert any(word.startswith("polars") for word in shlex.split(command))


def test_an_interrupt_ends_in_130(monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sglang_instrument.analysis.run.opening.Run.open", interrupt)
    assert main(["summary", str(logs)]) == 130


def test_a_closed_output_pipe_is_no_error(logs: Path) -> None:
    command = f"{sys.executable} -m sglang_instrument.cli.main events {logs} --json | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{\n", "")


@pytest.mark.parametrize("width", [80, 100])
def test_summary_shows_a_row_a_step_within_the_terminal(logs: Path, width: int) -> None:
    shown = terminal.shown_plain(width, "summary", logs)
    table = [line for line in shown.splitlines() if str(logs) not in line]
    assert max(map(len, table)) <= width
    assert [row[0] for row in rows_of(shown) if row[0].isdigit()][:3] == ["1", "2", "3"]
    assert "…" not in "".join(table)
    assert "slowest: step 2" in shown
    assert "1 validation step is not shown: --validate" in shown.replace("\n", " ")
    assert shown.splitlines()[-1].startswith("log: ")


def test_summary_as_json_has_the_numbers_of_the_table(capsys: pytest.CaptureFixture[str], logs: Path) -> None:
    summary = answer(capsys, "summary", logs)
    keys = {"folder", "verdict", "findings", "steps", "workers", "ledger", "engine", "servers", "windows"}
    assert set(summary) == {*keys, "health"}
    assert summary["windows"] == []
    assert summary["engine"] is None
    assert summary["servers"] == []
    assert [step["step"] for step in summary["steps"]] == [1, 2, 3]
    assert len(summary["workers"]) == 6
    for step in summary["steps"]:
        assert sum(step["phases"].values()) == pytest.approx(1.0, abs=1e-3)
        assert step["requests"] == 16
    assert summary["steps"][1]["slowest_worker"] == 1
    assert summary["health"]["files"] == 8


def keys_in(answer: Any) -> set[str]:
    """Return the keys of an answer, except those that help texts do not list: health, phases, evidence."""
    if isinstance(answer, list):
        return set().union(*map(keys_in, answer))
    if not isinstance(answer, dict):
        return set()
    opaque = ("health", "phases", "evidence")
    inner = [keys_in(value) for key, value in answer.items() if key not in opaque]
    return {key for key in answer if not key.isdigit()}.union(*inner)


@pytest.mark.parametrize("command", READING)
def test_the_help_or_the_schema_of_a_command_names_every_key_of_its_json(
    capsys: pytest.CaptureFixture[str], logs: Path, command: str
) -> None:
    described = printed(capsys, command, "--help")
    if "--json-schema" in described:
        described += printed(capsys, command, "--json-schema")
    named = set(re.findall(r'"(\w+)"', described))
    assert main([command, str(logs), *map(str, READING[command]), "--json"]) == 0
    used = keys_in(json.loads(capsys.readouterr().out))
    assert used
    assert used <= named


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("width", [40, 80, 100])
def test_tables_stay_within_the_terminal(logs: Path, command: str, width: int) -> None:
    shown = terminal.shown_plain(width, command, logs, *READING[command])
    lines = [line for line in shown.splitlines() if str(logs) not in line and not line.startswith("step ")]
    assert lines
    assert max(map(len, lines)) <= width


def test_one_request_is_shown_as_a_waterfall(capsys: pytest.CaptureFixture[str], logs: Path) -> None:
    slowest = answer(capsys, "requests", logs, "--limit", 1)["requests"][0]
    shown = printed(capsys, "requests", logs, "--request", slowest["request_id"])
    assert "  main_loop" in shown
    assert "turn_engine_call" in shown
    shown_request = answer(capsys, "requests", logs, "--request", slowest["request_id"])
    assert shown_request["requests"] == [slowest]
    assert shown_request["events"][0]["event"] == "async_rollout_request_complete"
    near = slowest["request_id"][:-1] + "z"
    assert slowest["request_id"] in refused(capsys, "requests", logs, "--request", near)


def test_requests_are_filtered_as_asked(capsys: pytest.CaptureFixture[str], logs: Path) -> None:
    asked = ("--step", 2, "--worker", 1, "--turns", 2, "--min-tokens", 10, "--finish-reason", "stop")
    for row in answer(capsys, "requests", logs, *asked)["requests"]:
        assert (row["step"], row["worker"], row["turns"], row["finish_reason"]) == (2, 1, 2, "stop")
    by_tool = answer(capsys, "requests", logs, "--event", "tool_execution")["requests"]
    assert by_tool
    assert all(row["tool_sec"] > 0 for row in by_tool)
    error = refused(capsys, "requests", logs, "--event", "tool_exection")
    assert "there are: tool_execution" in error


def test_percentiles_are_by_step_or_by_worker(capsys: pytest.CaptureFixture[str], logs: Path) -> None:
    assert [row["step"] for row in answer(capsys, "requests", logs, "--cdf")["cdf"]] == [1, 2, 3]
    by_worker = answer(capsys, "requests", logs, "--cdf", "--step", 2)["cdf"]
    assert [row["worker"] for row in by_worker] == [0, 1]
    assert re.search("p99.9 m?s", printed(capsys, "requests", logs, "--cdf"))


def test_the_workers_of_a_step_come_with_the_chain(capsys: pytest.CaptureFixture[str], logs: Path) -> None:
    shown = printed(capsys, "workers", logs, "--step", 2).replace("\n", " ")
    assert "worker 1 came last" in shown
    assert ": engine " in shown
    assert shown.rstrip().endswith("-> barrier 1")


def test_whatif_scales_any_event_by_its_name(capsys: pytest.CaptureFixture[str], logs: Path) -> None:
    steps = answer(capsys, "whatif", logs, "--scale", "tool_call=0", "--scale", "padding_duration=0.5")[
        "steps"
    ]
    assert all(row["predicted_sec"] < row["recorded_sec"] for row in steps)
    assert "the events are: tool_call" in refused(capsys, "whatif", logs, "--scale", "tool_cal=0")
    assert "EVENT=F" in refused(capsys, "whatif", logs, "--scale", "tool_call")
    assert "cannot be scaled" in refused(capsys, "whatif", logs, "--scale", "barrier_wait_duration=0")


def test_whatif_is_validated_with_another_run(capsys: pytest.CaptureFixture[str], logs: Path) -> None:
    asked = ("whatif", logs, "--scale", "tool_execution=1", "--validate-with", logs)
    validation = answer(capsys, *asked)["validation"]
    assert validation["ratio"] == pytest.approx(1.0)
    assert "1.00 x" in printed(capsys, *asked).replace("\n", " ")
    assert validation["ratio_at_least"] < 1 < validation["ratio_at_most"]
    assert answer(capsys, "whatif", logs) == answer(capsys, "advise", logs)
    assert "must be above 0" in refused(capsys, "whatif", logs, "--max-turns", 0)
    assert "must be EVENT=F" in refused(capsys, "whatif", logs, "--scale", "engine=fast")


def test_compare_fails_where_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a = synthetic_run(tmp_path / "a", steps=5, workers=1, requests=6)
    b = tmp_path / "b"
    for step in range(1, 6):
        made = synthetic_run(
            tmp_path / f"b{step}", steps=5, workers=1, requests=6, causes=[SlowEngine(step, 0, 9.0)]
        )
        b.mkdir(exist_ok=True)
        (made / f"step_{step}").rename(b / f"step_{step}")
    assert "failed: engine > 1.1x: 9.0" in printed(
        capsys, "compare", a, b, "--fail-if", "engine > 1.1x", code=1
    )
    passed = printed(capsys, "compare", a, a, "--fail-if", "p99 > 1.1x", "--fail-if", "p99 < 0.9x")
    assert "passed: p99 > 1.1x: 1.000 (1.00 .. 1.00)" in passed
    compared = json.loads(printed(capsys, "compare", a, b, "--json"))
    bounds = {"ratio", "ratio_at_least", "ratio_at_most"}
    columns = {"metric", "unit", "steps", "a_mean", "b_mean", *bounds, "verdict", "steps_needed"}
    assert columns == set(compared["metrics"][0])
    assert {row["verdict"] for row in compared["metrics"] if row["metric"] == "engine"} == {"higher"}
    assert "must be like" in refused(capsys, "compare", a, b, "--fail-if", "p98 > 2x")
    assert "must be like" in refused(capsys, "compare", a, b, "--fail-if", "p99 > 0x")


def test_compare_never_passes_with_too_few_steps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs = [
        synthetic_run(tmp_path / str(seed), steps=4, workers=1, requests=6, seed=seed) for seed in range(2)
    ]
    shown = printed(capsys, "compare", *runs, "--fail-if", "p99 > 1.1x", code=3)
    assert re.search(r"too few steps: p99 > 1.1x: [0-9.]+ \(.*\); needed: [0-9,]+ of each run", shown)
    holds = ("--fail-if", "engine > 0.5x", "--fail-if", "p99 > 1.1x")
    assert "failed: engine > 0.5x" in printed(capsys, "compare", *runs, *holds, code=1)
    single = [
        synthetic_run(tmp_path / f"one{seed}", steps=1, workers=1, requests=6, seed=seed) for seed in range(2)
    ]
    printed(capsys, "compare", *single, code=3)
    shown = printed(capsys, "compare", *single, "--fail-if", "duration > 1.1x", code=3)
    assert "needed: 2 or more of each run" in shown


def test_check_says_what_was_running_when_it_hung(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hung = synthetic_run(tmp_path / "hung", steps=2, workers=2, requests=4, causes=[Hang(2, 1)])
    shown = printed(capsys, "check", hung, code=1).replace("\n", " ")
    tool = r"step_2/worker_1.jsonl: tool_execution of request \S+, turn 1 was open for 120 s"
    assert re.search(tool, shown)
    assert "step_2/worker_0.jsonl: barrier_wait_duration was open for 120 s" in shown
    assert "something is wrong" in shown
    assert json.loads(printed(capsys, "check", hung, "--json", code=1))["ok"] is False
    assert "worker 1 never ended; tool_execution" in printed(capsys, "summary", hung).replace("\n", " ")


def test_check_names_a_process_that_never_wrote(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "exp", steps=1, workers=2, requests=4)
    (run / "processes").mkdir()
    for rank in (0, 1, 2):
        (run / "processes" / f"worker_{rank}.json").write_text("{}")
    assert "worker_2 wrote no record" in printed(capsys, "check", run, code=1).replace("\n", " ")


def test_export_writes_every_event(capsys: pytest.CaptureFixture[str], logs: Path, tmp_path: Path) -> None:
    out = tmp_path / "parquet"
    events = len(open_run(logs).records)
    assert f"{events:,} events in" in printed(capsys, "export", logs, "--parquet", out)
    assert len(pl.read_parquet(out / "parts/*/records.parquet")) == events
    assert ": 0 of 1 parts written" in printed(capsys, "export", logs, "--parquet", out)
    assert "nothing is overwritten" in refused(capsys, "export", logs, "--parquet", tmp_path)


def test_summary_of_a_step_shows_parts_that_add_up_to_it(
    capsys: pytest.CaptureFixture[str], logs: Path
) -> None:
    shown = printed(capsys, "summary", logs, "--step", 2)
    assert "s, until the next step began, were spent on" in shown
    wall = answer(capsys, "summary", logs, "--step", 2)
    (step,) = wall["steps"]
    spent = sum(row["sec"] for row in wall["ledger"]["steps"])
    assert spent == pytest.approx(step["interval_sec"], abs=1e-5)
    for worker in (0, 1):
        part_sum = sum(row["sec"] for row in wall["ledger"]["workers"] if row["worker"] == worker)
        assert part_sum == pytest.approx(spent, abs=1e-5)
    assert step["interval_sec"] == answer(capsys, "summary", logs)["steps"][1]["interval_sec"]


def test_summary_says_what_is_wrong_with_the_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    synthetic_run(tmp_path / "exp", steps=2, workers=1, requests=3, causes=[TornFile(2, 0)])
    assert "1 torn line" in printed(capsys, "summary", tmp_path)


def test_summary_of_many_steps_stays_on_one_screen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic_run(tmp_path / "exp", steps=40, workers=1, requests=2, causes=[SlowEngine(17, 0, 20.0)])
    monkeypatch.chdir(tmp_path)  # a long path would be a line more
    shown = printed(capsys, "summary", "exp")
    steps = [int(row[0]) for row in rows_of(shown) if re.fullmatch(r"\d+ [\d.]+", " ".join(row[:2]))]
    assert len(steps) == 12
    assert {17, 37, 38, 39, 40} <= set(steps)
    assert steps == sorted(steps)
    assert len(shown.splitlines()) <= 24
    asked = printed(capsys, "summary", "exp", "--step", "1-14", "--step", 30)
    assert "15 steps, 1 worker, 30 requests" in asked
    assert [int(row[0]) for row in rows_of(asked) if row[0].isdigit()] == [*range(1, 15), 30]


def test_validation_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str], logs: Path) -> None:
    assert "1 validation step, 2 workers" in printed(capsys, "summary", logs, "--validate")
    events = answer(capsys, "events", logs, "--validate")["events"]
    assert {row["event"] for row in events} == {"engine_async_generate", "barrier"}


def test_events_of_a_worker_and_step_are_those_of_its_file(
    capsys: pytest.CaptureFixture[str], logs: Path
) -> None:
    lines = [json.loads(text) for text in (logs / "step_2" / "worker_1.jsonl").read_text().splitlines()]
    events = answer(capsys, "events", logs, "--step", 2, "--worker", 1)["events"]
    for row in events:
        assert row["count"] == sum(line["event"] == row["event"] for line in lines)
    shares = [row["steps_share"] or 0.0 for row in events]
    assert sum(shares) == pytest.approx(1.0)
    assert shares == sorted(shares, reverse=True)


def test_events_shows_the_largest_first_and_says_what_it_leaves_out(
    capsys: pytest.CaptureFixture[str], logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(logs.parent)  # a long path would be a line more
    shown = printed(capsys, "events", logs.name, "--step", 2, "--worker", 1)
    assert rows_of(shown)[3][0] == "engine_async_generate_actual"
    assert "more events with smaller shares: --all" in shown
    everything = printed(capsys, "events", logs, "--step", 2, "--worker", 1, "--all")
    assert len(everything.splitlines()) > len(shown.splitlines())


def test_a_step_or_worker_that_is_not_there_is_refused_with_the_nearest(
    capsys: pytest.CaptureFixture[str], logs: Path
) -> None:
    assert "no step 70; there are 3, the nearest: 1, 2, 3" in refused(capsys, "summary", logs, "--step", 70)
    assert "no worker 5" in refused(capsys, "events", logs, "--worker", 5)


def test_events_named_like_markup_are_shown_as_they_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "exp" / "step_1" / "worker_0.jsonl"
    path.parent.mkdir(parents=True)
    record = {"timestamp": "2026-01-05T08:00:01+00:00", "event": "[red]a</code>[/red]", "duration_sec": 1.0}
    path.write_text(json.dumps(record) + "\n")
    assert "[red]a</code>[/red]" in printed(capsys, "events", tmp_path)
