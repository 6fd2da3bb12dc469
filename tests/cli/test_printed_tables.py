"""Tables show everything where nothing limits them, in one unit a column, and explain their headers."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import terminal

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.cli.columns import write
from sglang_instrument.cli.main import COMMANDS, main, tables_of
from sglang_instrument.cli.numbers import duration, durations
from sglang_instrument.testing import Hang, SlowEngine, synthetic_run

ASKED = {
    "summary": [],
    "events": [],
    "requests": [],
    "workers": [],
    "turns": ["--tools"],
    "lengths": [],
    "gaps": [],
    "loop": [],
    "staleness": [],
    "waste": [],
    "whatif": ["--max-tokens", "100"],
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs") / "exp"
    return synthetic_run(folder, steps=3, workers=2, requests=8, causes=[SlowEngine(2, 1, factor=6.0)])


@pytest.fixture(autouse=True)
def _no_wishes(monkeypatch, stored):
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def printed(capsys):
    def run(*arguments, code=0):
        assert main([str(argument) for argument in arguments]) == code
        return capsys.readouterr().out

    return run


def tables_printed_by(command):
    return tables_of(importlib.import_module(COMMANDS[command]))


def headers_of(text):
    """Return the header of each table, by its rule."""
    lines = text.splitlines()
    return [lines[number - 1] for number, line in enumerate(lines) if line.startswith("──")]


def test_a_waterfall_draws_each_event_where_it_lies(logs, printed):
    slowest = json.loads(printed("requests", logs, "--limit", 1, "--json"))["requests"][0]
    asked = ("requests", logs, "--request", slowest["request_id"])
    events = json.loads(printed(*asked, "--json"))["events"]
    lines = printed(*asked).splitlines()
    header_number = next(number for number, line in enumerate(lines) if line.startswith("event "))
    column = lines[header_number].index("when")
    bars = [line[column:].rstrip() for line in lines[header_number + 2 : header_number + 2 + len(events)]]
    for event, bar in zip(events, bars, strict=True):
        begins = event["start_sec"] / slowest["duration_sec"] * 32
        mark = "|" if event["duration_sec"] is None else "#"  # an instant event has no length
        assert bar.index(mark) == min(int(begins), 31), event["event"]
        assert set(bar.strip()) == {mark}
    early = [bar for event, bar in zip(events, bars, strict=True) if event["start_sec"] == 0]
    assert early
    assert all(bar.startswith(("#", "|")) for bar in early)


@pytest.mark.parametrize("command", ASKED)
def test_output_that_is_no_terminal_has_every_column(logs, printed, monkeypatch, command):
    whole = printed(command, logs, *ASKED[command])
    assert "leave out" not in whole
    assert "…" not in whole
    # Columns of other kinds of runs, and small parts of the ledger, are left out.
    first = [
        column
        for column in tables_printed_by(command)[0].columns
        if column.terminal and not (column.if_any or column.optional)
    ]
    if command == "staleness":  # this run's samples say nothing of weights
        assert "nothing was recorded" in whole
    elif command != "gaps":  # this run has no plateau
        assert [
            column.header for column in first if f"{column.header} " not in headers_of(whole)[0] + " "
        ] == []
    monkeypatch.setenv("COLUMNS", "80")
    assert printed(command, logs, *ASKED[command]) == whole


def test_a_narrow_terminal_names_the_columns_that_it_leaves_out(logs):
    wide = terminal.shown_plain(200, "requests", logs)
    assert "leave out" not in wide
    narrow = " ".join(terminal.shown_plain(60, "requests", logs).split())
    left_out = "step, worker, interaction, reward time, other, turns, reward"
    assert f"60 columns leave out: {left_out}; `| less" in narrow
    # The first to go is the one that --explain names first.
    barely = terminal.shown_plain(70, "requests", logs)
    assert "70 columns leave out:" in barely
    assert "reward" not in headers_of(barely)[0]


def test_a_column_has_one_unit_and_one_precision():
    times = [215.0, 0.0073, 17e-6, 2.03, 0.0, None]
    columns = (
        Column("alike", "", "time"),
        Column("differ", "", "fine time"),
        Column("share", "", "share"),
        Column("reward", "", "number"),
    )
    rows = [(sec, sec, None if sec is None else sec / 215, sec and sec / 10) for sec in times]
    alike, differ, share, reward = write(columns, rows)
    assert alike == ("alike s", ["215.0", "<0.1", "<0.1", "2.0", "0.0", "-"])
    assert differ == ("differ ms", ["215,000.00", "7.30", "0.02", "2,030.00", "0.00", "-"])
    assert share == ("share %", ["100.0", "<0.1", "<0.1", "0.9", "0.0", "-"])
    assert reward == ("reward", ["21.5", "<0.1", "<0.1", "0.2", "0.0", "-"])
    assert write([Column("short", "", "time")], [(0.0213,), (0.00031,)]) == [("short ms", ["21.3", "0.3"])]
    assert write([Column("reward", "", "number")], [(1,), (0.0,)]) == [("reward", ["1", "0"])]


@pytest.mark.parametrize(
    ("sec", "words"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (2e-6, "2.00 us"),
        (0.00042, "0.420 ms"),
        (0.0125, "12.5 ms"),
        (0.5, "0.500 s"),
        (1234.5, "1,234 s"),
    ],
)
def test_a_duration_in_a_sentence_has_one_unit(sec, words):
    assert duration(sec) == words


def test_two_durations_that_are_compared_have_the_same_unit():
    assert durations([0.098, 0.104]) == ["0.0980 s", "0.104 s"]
    assert durations([2e-6, None]) == ["2.00 us", "-"]


def test_no_command_prints_two_units_for_a_number_or_an_exponent(logs, printed):
    output = "".join(printed(command, logs, *ASKED[command]) for command in ASKED)
    output += printed("workers", logs, "--step", 2)
    output += printed(
        "compare",
        logs,
        logs,
    )
    assert re.findall(r"\d (?:us|ms) s\b|\d[eE][-+]?\d+\b", output.replace(str(logs), "")) == []


TABLED = [name for name in COMMANDS if hasattr(importlib.import_module(COMMANDS[name]), "TABLES")]


@pytest.mark.parametrize("command", TABLED)
def test_explain_says_what_each_column_is_and_needs_no_run(printed, command):
    explanation = " ".join(printed(command, "--explain").split())
    for table in tables_printed_by(command):
        assert table.title in explanation
        for column in table.columns:
            assert column.meaning, column.name
            assert f"{column.header if column.terminal else column.name} " in explanation
            assert " ".join(column.meaning.split()) in explanation


def test_every_command_that_prints_a_table_explains_it():
    assert {*ASKED, "compare", "status", "profile", "trace"} <= set(TABLED)


@pytest.mark.parametrize("command", ASKED)
def test_every_header_that_is_printed_is_explained(logs, printed, command):
    columns = [column for table in tables_printed_by(command) for column in table.columns]
    names = {re.sub(r"\d+$", "N", column.header) for column in columns}
    shown = printed(command, logs, *ASKED[command]) + printed(command, logs, *ASKED[command], "--step", 2)
    for header in filter(None, headers_of(shown)):
        for header_cell in re.split(r"\s{2,}", header.strip()):
            name = re.sub(r" (s|ms|us|%)$", "", header_cell)
            assert {header_cell, re.sub(r"\d+$", "N", name)} & names, header


def test_colours_are_for_terminals_and_can_be_wished_for_or_away(logs, printed, monkeypatch):
    assert "\x1b[1;31m" in terminal.shown(100, "summary", logs)  # the verdict accuses a worker
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", terminal.shown(100, "summary", logs))
    monkeypatch.delenv("NO_COLOR")
    asked = [sys.executable, "-m", "sglang_instrument.cli.main", "summary", str(logs)]
    piped = subprocess.run(asked, capture_output=True, text=True, check=True, env={**os.environ})
    assert "\x1b" not in piped.stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    forced = printed("summary", logs)
    assert "\x1b[1;31m" in forced
    assert re.sub(r"\x1b\[[0-9;]*m", "", forced) == piped.stdout


def test_a_request_is_found_by_the_begin_of_its_id(logs, printed, capsys):
    rows = json.loads(printed("requests", logs, "--limit", 1000, "--json"))["requests"]
    ids = sorted(row["request_id"] for row in rows)
    wanted = ids[3]
    begin = next(
        wanted[:size]
        for size in range(1, 99)
        if sum(request_id.startswith(wanted[:size]) for request_id in ids) == 1
    )
    assert f"request {wanted}, step" in printed("requests", logs, "--request", begin)
    shared = ids[0][:1]
    assert main(["requests", str(logs), "--request", shared]) == 2
    several = sum(request_id.startswith(shared) for request_id in ids)
    assert f"{several} requests begin with {shared!r}: {ids[0]}, " in capsys.readouterr().err


@pytest.mark.parametrize("command", ASKED)
def test_steps_are_chosen_one_by_one_or_as_a_range(logs, printed, command):
    asked = (command, logs, *ASKED[command], "--json")
    some = json.loads(printed(*asked, "--step", 1, "--step", "2-9"))
    assert some == json.loads(printed(*asked, "--step", "1-3"))
    two = json.loads(printed(*asked, "--step", "2-3"))
    for name in ("steps", "requests", "turns", "barriers", "lengths", "plateaus"):
        assert {row["step"] for row in two.get(name, ())} <= {2, 3}
    assert main([command, str(logs), *ASKED[command], "--step", "7-9"]) == 2


def test_summary_of_the_validation_of_a_run_without_one_says_so(logs, printed):
    assert "this run has no validation" in printed("summary", logs, "--validate")


def test_a_report_is_overwritten_only_with_force(tmp_path, printed, capsys):
    run = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=2)
    out = tmp_path / "exp.html"
    out.write_text("mine")
    assert main(["report", str(run), "-o", str(out)]) == 2
    assert f"{out} exists; --force overwrites it" in capsys.readouterr().err
    assert out.read_text() == "mine"
    printed("report", run, "-o", out, "--force")
    assert "<html" in out.read_text()[:2000]


def test_one_block_is_not_counted_as_several_times(tmp_path, printed):
    hung = synthetic_run(tmp_path / "exp", steps=1, workers=2, requests=4, causes=[Hang(1, 1)])
    assert not re.search(r"\b1 (times|steps|workers|requests|spans)\b", printed("summary", hung))


def test_figures_and_traces_take_several_steps(tmp_path: Path, logs, printed):
    asked = ("plot", logs, "-o", tmp_path, "--figure", "workers", "--step", 1, "--step", "2-3", "--json")
    drawn = json.loads(printed(*asked))["figures"]
    assert set(drawn) == {"workers", "step_2/workers", "step_3/workers"}
    assert all(Path(path).is_file() for path in drawn.values())
    sizes = {}
    for name, steps in (("two", ["--step", "1-2"]), ("one", ["--step", "1"]), ("all", [])):
        out = tmp_path / f"{name}.pftrace"
        said = printed("export", logs, "--perfetto", out, *steps)
        sizes[name] = int(re.search(r"([\d,]+) spans", said)[1].replace(",", ""))
    assert sizes["one"] < sizes["two"] < sizes["all"]
