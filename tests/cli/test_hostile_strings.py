"""No command prints control characters from its input, nor interprets its input as markup."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest
from hostile_run import COMMANDS, IN_NAMES, hostile, hostile_run
from made_traces import engine_trace
from profile_stand_ins import StandIn, served

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.executors import batches
from sglang_instrument.analysis.store import homes
from sglang_instrument.cli import plain
from sglang_instrument.cli.main import main
from sglang_instrument.cli.tables import print_json
from sglang_instrument.testing import synthetic_run

#: C0 without the newline, DEL, C1, marks of writing direction, other line ends, lone surrogates.
CONTROLS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
COLOURS = re.compile(r"\x1b\[(?!5;41)[0-9;]*m")
PRINTABLE = "\x1b[5;41m\r\x9b2J\u202e[bold red]"
STEP = ("--step", 2)
READING = [
    ("summary",), ("summary", *STEP), ("events",), ("events", *STEP), ("requests",), ("requests", "--engine"),
    ("workers",), ("workers", *STEP), ("turns", "--tools"), ("lengths",), ("gaps", "--curve", "--step", 3),
    ("whatif", "--max-tokens", 100), ("check",), ("status",), ("loop",),
    ("staleness", "--groups"), ("waste",),
    ("sql", "from spans limit 9"), ("sql", "from processes"), ("sql", "from engine_requests limit 9"),
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp(f"logs{IN_NAMES[:6]}".replace("\n", "")))


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / f"of{IN_NAMES}"
    folder.mkdir()
    plain = engine_trace().write(folder / "made.gz")
    whole = json.dumps(hostile(json.loads(gzip.decompress(plain.read_bytes()))))
    plain.unlink()
    for name in ("TP-0", f"TP-1{IN_NAMES}"):
        (folder / f"{name}.trace.json.gz").write_bytes(gzip.compress(whole.encode()))
    (folder / f"{IN_NAMES}.trace.json").write_text(COMMANDS)
    return folder


@pytest.fixture(params=["plain", "colour"])
def said(request, capsys, monkeypatch, stored):
    """Run a command; return its output, which must contain no control character."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(*{"plain": ("NO_COLOR", "1"), "colour": ("FORCE_COLOR", "1")}[request.param])

    def call(*arguments: object) -> str:
        code = main([str(argument) for argument in arguments])
        out, error = capsys.readouterr()
        assert code in (0, 1, 2, 3)
        assert "Traceback" not in error
        printed = out + error
        if request.param == "colour":
            printed = COLOURS.sub("", printed)
        assert CONTROLS.findall(printed) == [], printed
        return printed

    return call


@pytest.mark.parametrize("command", READING, ids=lambda command: " ".join(map(str, command)))
def test_no_command_prints_terminal_escape_sequences(command, run, said):
    name, *options = command
    assert "\\x1b" in said(name, run, *options)


@pytest.mark.parametrize("command", READING, ids=lambda command: " ".join(map(str, command)))
def test_json_holds_no_control_characters_and_no_colours(command, run, stored, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    name, *options = map(str, command)
    assert main([name, str(run), *options, "--json"]) in (0, 1)
    out, error = capsys.readouterr()
    assert CONTROLS.findall(out + error) == []
    assert "Traceback" not in error
    assert json.loads(out)


def test_a_request_that_is_looked_up_is_shown_as_text(run, said):
    wanted = json.loads(said("requests", run, "--json"))["requests"][0]["request_id"]
    assert wanted.endswith(COMMANDS)  # JSON escapes the value but does not change it
    assert "\\x1b" in said("requests", run, "--request", wanted)


def test_commands_that_write_files_print_no_escape_sequences(run, traces, said, tmp_path):
    target = tmp_path / IN_NAMES.encode(errors="ignore").decode()  # polars writes only to file names in UTF-8
    target.mkdir()
    assert "\\x1b" in said("report", run, "-o", target / "a.html", "--traces", traces)
    assert "\\x1b" in said("export", run, "--parquet", target / "parquet")
    assert "\\x1b" in said("export", run, "--perfetto", target / "a.pftrace", "--traces", traces)
    assert "\\x1b" in said("plot", "slowest", run, "-o", target / "a.png")
    assert "\\x1b" in said("compare", run, run)


def test_names_in_traces_are_printed_as_text(traces, run, said, tmp_path):
    assert "\\x1b" in said("trace", traces, "--run", run)
    assert json.loads(said("trace", traces, "--json"))
    assert "\\x1b" in said("export", "--perfetto", tmp_path / "all.pftrace", "--traces", traces)


def test_replies_of_servers_are_printed_as_text(run, said, tmp_path):
    folder = tmp_path / f"traces{IN_NAMES}"
    with served(StandIn(version=f"0.5.21{COMMANDS}"), StandIn(fails_on=("/start_profile",))) as servers:
        servers[1].fails_with = COMMANDS
        where = ("--worker-url", *(server.url for server in servers), "--output-dir", folder)
        for action in ("start", "status", "check", "stop", "capture"):
            assert "\\x1b" in said("profile", action, *where, "--requests", 1, "--timeout", 5)
            said("profile", action, *where, "--requests", 1, "--timeout", 5, "--json")
    (tmp_path / "train.log").write_text(f"Router launched at 127.0.0.1:9{COMMANDS}\n")
    said("profile", "status", "--log", tmp_path / "train.log")
    said("profile", "status", "--run", run)


def test_patch_tables_are_printed_as_text(said, tmp_path):
    (tmp_path / f"table{IN_NAMES}.toml").write_text(
        f"""
        trainer = {json.dumps("mine" + PRINTABLE)}
        package = "pytest"
        module = "textwrap"

        [[patch]]
        target = "dedent"
        region = [{{ event = {json.dumps("dedenting" + PRINTABLE)} }}]
        """
    )
    assert "\\x1b" in said("patches", "list", "--patches", tmp_path)
    said("patches", "list", "--patches", tmp_path, "--json")
    (tmp_path / "wrong.toml").write_text(f"trainer = {json.dumps(PRINTABLE)}\n{json.dumps(PRINTABLE)} = 1\n")
    assert "\\x1b" in said("patches", "check", "--patches", tmp_path)
    assert "\\x1b" in said("patches", "check", "--source", tmp_path / f"none{IN_NAMES}.whl")


def test_errors_are_printed_as_text_in_one_line(said, tmp_path, monkeypatch):
    for name in READING:
        printed = said(name[0], tmp_path / f"none{IN_NAMES}", *name[1:])
        assert "\\x1b" in printed
        assert len(printed.splitlines()) == 1
    assert "\\x1b" in said("summary", tmp_path, f"unknown{IN_NAMES}")
    assert "\\x1b" in said(f"command{IN_NAMES}")
    monkeypatch.setenv("SGLANG_INSTRUMENT_DETAIL", IN_NAMES)
    assert "\\x1b" in said("doctor", "--log-dir", tmp_path / IN_NAMES)
    said("doctor", "--log-dir", tmp_path / IN_NAMES, "--json")


def test_names_in_brackets_are_no_markup(tmp_path, said):
    run = synthetic_run(tmp_path / "[bold red]run[/]", steps=1, workers=1, requests=2)
    assert "[bold red]run[/]" in said("summary", run)


def test_commands_print_in_two_places_alone():
    """Other code must not print: its output would not be escaped."""
    printing = re.compile(
        r"^\s*(?:print\(|.*sys\.std(?:out|err)\.write|.*import .*\bText\b|.*markup)", re.MULTILINE
    )
    folder = Path(plain.__file__).parent
    files = [path.name for path in sorted(folder.rglob("*.py")) if printing.search(path.read_text())]
    assert files == ["plain.py", "tables.py"]


def test_a_run_is_kept_beside_it_and_read_by_many_whatever_it_is_called(run, monkeypatch, tmp_path):
    copied = tmp_path / f"[a-z]{IN_NAMES}"
    shutil.copytree(run, copied)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(batches, "_BYTES_PER_PROCESS", 1)
    expected = open_run(copied, cached=False)
    monkeypatch.setattr(homes, "_WORTHWHILE_BYTES", 0)
    first, second = open_run(copied), open_run(copied)
    assert first.digest.requests.equals(expected.digest.requests)
    assert second.digest.requests.equals(expected.digest.requests)
    assert second.health == expected.health


def test_values_that_json_cannot_hold_are_printed_as_json(capsys):
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]
    print_json({"deep": deep, "large": 10**30, "half": "\ud800", "controls": "\x1b\x7f\x9b\u202e"})
    printed = json.loads(capsys.readouterr().out)
    assert printed["large"] == str(10**30)
    assert printed["half"] == "\\ud800"
    assert printed["controls"] == "\x1b\x7f\x9b\u202e"
