"""Commands in advice are whole: they name the program and the folder, and their own parsers take them."""

import json
import re
import shlex
from itertools import chain

import pytest

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.advice import advice_of
from sglang_instrument.analysis.verdict.detectors import CAUSES
from sglang_instrument.analysis.verdict.detectors.calls.slow_work import LOOK_AT_ENGINE
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.cli.main import COMMANDS, main, parser_of
from sglang_instrument.live.terminal.details import verdict_lines
from sglang_instrument.testing import SlowEngine, synthetic_run
from sglang_instrument.whole_commands import whole_commands, words_and_commands, wrapped

IDS = ["r7", "it's 7; LOGS", "$(x)"]


def commands_of(advice):
    return words_and_commands(advice)[1::2]


def findings():
    """Return a finding of each cause, about a worker's request in a step, and about what it can concern."""
    for name, cause in CAUSES.items():
        numbers = {"worst_update": 3}
        for request_id in IDS:
            of_request = {"worker": 2, "request_id": request_id}
            yield Finding(name, "worker", 1.0, "slow", 4, **of_request, evidence=numbers)
        if cause.scopes == "request":
            continue
        validate = "step" in cause.scopes
        yield Finding(name, "step", 1.0, "slow", 4, validate, evidence=numbers)


@pytest.mark.parametrize("logs", ["logs/gsm8k_600", "logs/it's my run; rm -rf $HOME", "logs/a@20261123T0815"])
def test_every_command_in_advice_is_one_that_its_parser_takes_with_the_folder(logs):
    texts = (advice_of(finding) for finding in findings())
    of_engine = (advice_of(next(findings()), "look at that GPU") for _ in range(1))
    commands = 0
    for advice in chain(texts, of_engine):
        assert "LOGS" in advice or "`" not in advice or "--mem-fraction-static" in advice, advice
        for command in commands_of(whole_commands(advice, logs)):
            if " " not in command:  # an option of the engine, or a setting
                assert command not in COMMANDS
                continue
            program, name, *words = shlex.split(command)
            assert program == "sglang-instrument"
            parsed = vars(parser_of(name).parse_args(words))
            assert logs in (str(parsed.get("logs")), str(parsed.get("run"))), command
            if parsed.get("request") is not None and name == "requests":
                assert parsed["request"] in IDS
            commands += 1
    assert commands > 4 * len(CAUSES)


def test_an_engines_own_words_end_with_whole_commands():
    finding = Finding("engine", "worker", 1.0, "slow", 3, worker=2)
    commands = commands_of(whole_commands(advice_of(finding, "queue as usual"), "logs/a"))
    assert commands == [
        "sglang-instrument workers logs/a --step 3 --worker 2",
        "sglang-instrument profile capture --run logs/a --workers 2",
    ]
    assert LOOK_AT_ENGINE.count("`") == 4


def test_a_terminal_breaks_lines_between_words_and_never_inside_a_command():
    text = "look at the engine: retractions, a flush; `sglang-instrument gaps logs/step-67 --step 67`"
    for width in (20, 40, 80, 100):
        lines = wrapped(text, width, first=8)
        assert " ".join(lines) == text
        rooms = [width - 8, *[width] * len(lines)]
        fits = [len(line) <= room for line, room in zip(lines, rooms, strict=False)]
        assert all(fit or re.fullmatch("`.*`", line) for line, fit in zip(lines, fits, strict=True))
    assert wrapped("  two  spaces", 80) == ["  two  spaces"]
    assert wrapped("", 80) == [""]
    assert wrapped("one ` is no command and goes on", 12) == ["one ` is no", "command and", "goes on"]


def test_json_notebooks_watch_and_the_terminal_have_the_same_whole_commands(tmp_path, capsys):
    logs = synthetic_run(
        tmp_path / "my run", steps=4, workers=3, requests=6, causes=[SlowEngine(3, 2, factor=4)]
    )
    assert main(["summary", str(logs)]) == 0
    printed = capsys.readouterr().out
    assert main(["summary", str(logs), "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)["findings"][0]["advice"]
    commands = commands_of(advice)
    assert shlex.split(commands[0])[:3] == ["sglang-instrument", "workers", str(logs)]
    for surface in (printed, str(open_run(logs)), "\n".join(verdict_lines(str(logs)))):
        assert all(command in surface for command in commands)
    assert main(shlex.split(commands[0])[1:]) == 0
