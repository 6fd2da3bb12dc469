"""Engines on hosts whose clocks are seconds ahead: every command answers as if all clocks agreed."""

import json
from pathlib import Path
from typing import Any

import pytest
from planted_weights import run_with_updates
from routed_run import RoutedRun
from skewed_hosts import skewed_copy

from sglang_instrument.cli.main import main

SKEW_SEC = 3.0
#: The most by which aligned times are off: half of what a call lasts beyond the engine's work for it.
RESIDUAL_SEC = 5e-3
COMMANDS: dict[str, list[str]] = {
    "summary": [],
    "summary of a step": ["--step", "2"],
    "events": [],
    "requests": [],
    "requests --engine": [],
    "workers": [],
    "turns": [],
    "lengths": [],
    "gaps": [],
    "servers": [],
    "servers of a step": ["--step", "2"],
    "weights": [],
    "staleness": [],
    "waste": [],
    "loop": [],
}
#: What tells of the clocks themselves.
OF_CLOCKS = {"clocks", "round_trips"}


def answers_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what each command prints with `--json`, or on stderr, if it has no answer."""
    answers = {}
    for name, options in COMMANDS.items():
        command, *more = name.partition(" of ")[0].split()
        code = main([command, str(folder), "--json", *more, *options])
        printed = capsys.readouterr()
        answers[name] = json.loads(printed.out) if printed.out else (code, printed.err)
    return answers


def differences(path: str, even: Any, skewed: Any) -> list[str]:
    """Return where two answers differ by more than the clocks' residual."""
    if isinstance(even, dict) and isinstance(skewed, dict) and even.keys() == skewed.keys():
        keys = [key for key in even if key not in OF_CLOCKS]
        return [words for key in keys for words in differences(f"{path}.{key}", even[key], skewed[key])]
    if isinstance(even, list) and isinstance(skewed, list) and len(even) == len(skewed):
        pairs = enumerate(zip(even, skewed, strict=True))
        return [words for number, pair in pairs for words in differences(f"{path}[{number}]", *pair)]
    if isinstance(even, (int, float)) and isinstance(skewed, (int, float)):
        unit = 1e6 if path.endswith("_us") else 1.0
        return [] if abs(even - skewed) <= unit * RESIDUAL_SEC else [f"{path}: {even} is {skewed}"]
    return [] if even == skewed else [f"{path}: {even!r} is {skewed!r}"]


def run_of_two_servers(folder: Path) -> Path:
    """Write workers that share two servers, one of which queues; each file tells its process's clocks."""
    RoutedRun(slots=5, policy="random").write(folder)
    for path in folder.rglob("*.jsonl"):
        lines = path.read_text()
        first = json.loads(lines.partition("\n")[0])
        clocks = {"host": "a", "wall_ns": first["start_us"] * 1000, "perf_ns": first["start_us"] * 1000}
        header = {"timestamp": first["timestamp"], "event": "log_opened", "extra": {"run_id": "r", **clocks}}
        path.write_text(f"{json.dumps(header)}\n{lines}")
    return folder


def run_of_updates(folder: Path) -> Path:
    """Write engines that get new weights before each step, one of them slowly."""
    return run_with_updates(folder, seed=1, slow_sec=1.5)


@pytest.mark.parametrize("write", [run_of_two_servers, run_of_updates])
def test_every_command_answers_as_if_all_clocks_agreed(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    even = write(tmp_path / "even" / "run")
    names = [path.stem for path in (even / "engine").iterdir() if path.stem.split("_")[1] == "1"]
    assert names
    skewed = skewed_copy(even, tmp_path / "skewed" / "run", dict.fromkeys(names, SKEW_SEC))
    answers = [answers_of(folder, capsys) for folder in (even, skewed)]
    differing = differences("", *json.loads(json.dumps(answers).replace("/skewed/run", "/even/run")))
    assert not differing, "\n".join(differing)
