"""A person who types what they expect to work gets help, or is told what works."""

import runpy
import sys
from pathlib import Path

import pytest

from sglang_instrument.analysis.foreign.registry import FORMATS
from sglang_instrument.cli.main import COMMANDS, main


def test_help_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    overview = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert overview == capsys.readouterr().out
    assert all(f"    {name}" in overview for name in COMMANDS)


def test_help_of_a_command_is_what_the_command_says_of_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "requests"]) == 0
    explained = capsys.readouterr().out
    assert main(["requests", "--help"]) == 0
    assert explained == capsys.readouterr().out


def test_help_of_an_unknown_command_suggests_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "request"]) == 2
    assert "did you mean 'requests'?" in capsys.readouterr().err


def test_help_logs_names_every_format_that_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "logs"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert {kind.name for kind in FORMATS} <= set(lines)


@pytest.mark.parametrize(
    ("argument", "near"), [("--stepp", "--step"), ("--jsn", "--json"), ("--explian=x", "--explain")]
)
def test_an_unknown_option_suggests_one(argument: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "logs", argument]) == 2
    assert capsys.readouterr().err.endswith(f"{argument}; did you mean {near}?\n")


def test_an_unknown_option_like_no_other_suggests_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "logs", "--qqq"]) == 2
    assert capsys.readouterr().err.endswith("unrecognized arguments: --qqq\n")


def test_a_folder_that_holds_no_log_gets_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("notes\n")
    for path in (tmp_path, tmp_path / "notes.txt"):
        assert main(["summary", str(path)]) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert len(message) - len(str(path)) < 160
        assert "`sglang-instrument help logs`" in message


def test_the_package_runs_as_a_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sglang-instrument", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("sglang_instrument", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("sglang-instrument ")
