"""The demo's command, its problems and its faults, without an engine."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sglang_instrument.cli.commands import demo
from sglang_instrument.cli.commands.demo import _this_command
from sglang_instrument.cli.main import main
from sglang_instrument.demo.faults import FAULTS, pause
from sglang_instrument.demo.launch import DemoError, DemoWorker, check_workers
from sglang_instrument.demo.options import DemoOptions
from sglang_instrument.demo.problems import PROBLEMS, draw, transcript
from sglang_instrument.testing import synthetic_run

WORKERS = (0, 1)


@pytest.mark.parametrize("killed", WORKERS)
def test_the_killed_worker_is_named_and_not_those_that_failed_after(tmp_path: Path, killed: int) -> None:
    ends = ["kill -9 $$" if rank == killed else "exit 1" for rank in WORKERS]
    workers = [
        DemoWorker(rank, subprocess.Popen(["sh", "-c", end]), -1, tmp_path / f"worker_{rank}.txt")
        for rank, end in enumerate(ends)
    ]
    for worker in workers:
        worker.process.wait()
    with pytest.raises(DemoError) as raised:
        check_workers(workers, DemoOptions(), silent_sec=0.0)
    assert f"worker {killed} was killed by SIGKILL" in str(raised.value)


def test_a_planted_pause_is_never_too_short() -> None:
    uvloop = pytest.importorskip("uvloop")  # a clock so coarse that most sleeps end too early

    async def pauses() -> list[float]:
        others = asyncio.ensure_future(forever())
        taken = []
        for _ in range(50):
            begin = time.perf_counter()
            await pause(0.005)
            taken.append(time.perf_counter() - begin)
        others.cancel()
        return taken

    async def forever() -> None:
        while True:
            await asyncio.sleep(0)

    loop = uvloop.new_event_loop()
    try:
        assert min(loop.run_until_complete(pauses())) >= 0.005
    finally:
        loop.close()


def test_the_demo_without_its_packages_prints_a_command_for_this_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_NEEDED", ("no_such_package",))
    monkeypatch.setattr(sys, "executable", "/a venv/bin/python")
    assert main(["demo"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sglang-instrument: the demo needs no_such_package: use `make demo`")
    commands = [shlex.split(command) for command in said.partition("or run ")[2].split(" && ")]
    assert [words[:3] for words in commands[1:]] == [["/a venv/bin/python", "-m", "uv"]] * 2
    assert all(Path(words[-1]).is_file() for words in commands[1:])


@pytest.mark.parametrize("is_writable", [True, False])
def test_the_report_is_offered_only_where_it_can_be_written(
    is_writable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic_run(tmp_path / "logs", steps=1, workers=1, requests=1)
    monkeypatch.setattr(demo, "_OF_REPORT", ("json" if is_writable else "no_such_package",))
    demo._show_next(tmp_path / "logs")
    assert (" report " in capsys.readouterr().out) == is_writable


@pytest.mark.parametrize("where", ["on PATH", "below this folder", "elsewhere"])
def test_the_demo_names_its_program_as_a_shell_finds_it(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "a venv/bin/sglang-instrument"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path if where == "below this folder" else tmp_path / "other")
    monkeypatch.setenv("PATH", str(program.parent) if where == "on PATH" else os.defpath)
    assert (
        _this_command()
        == {
            "on PATH": "sglang-instrument",
            "below this folder": "'a venv/bin/sglang-instrument'",
            "elsewhere": f"'{program}'",
        }[where]
    )


def test_a_batch_is_the_same_for_the_same_seed_and_begins_with_a_tool_call() -> None:
    batch = draw(16, seed=7, step=2, worker=1)
    assert batch == draw(16, seed=7, step=2, worker=1)
    assert batch != draw(16, seed=8, step=2, worker=1)
    assert "<tool_call>" in draw(1, seed=3, step=1, worker=0)[0].replies[0]


def test_a_transcript_answers_each_call_and_each_wrong_answer() -> None:
    taught = {problem.question: transcript(problem) for problem in PROBLEMS}
    roles = [role for role, _ in taught["Ann had 20 coins and lost 6. How many are left?"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant"]
    assert [text for role, text in taught["Add 2 and 3, and add 4 and 5."] if role == "tool"] == [
        "5",
        "9",
        "14",
    ]


def test_the_help_says_where_each_fault_is_planted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    shown = capsys.readouterr().out
    assert [place for place in FAULTS.values() if place not in shown] == []


def test_a_straggler_needs_a_second_worker(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_NEEDED", ())
    assert main(["demo", "--inject", "straggler", "--workers", "1"]) == 2
    assert "--workers 2" in capsys.readouterr().err
