"""A folder that may not be listed costs what lies in it, not the run: root squash, umask 077."""

import ctypes
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run

_NOBODY = 65534
_OF_FILES = 0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Sets(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


@contextmanager
def denied(folder: Path) -> Iterator[None]:
    """Let nobody but its owner, who is somebody else, list a folder; this thread has no rights of root."""
    libc, header, sets = ctypes.CDLL(None, use_errno=True), _Header(0x20080522, 0), (_Sets * 2)()
    mode = folder.stat().st_mode
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)
        folder.chmod(0o700)
        assert libc.capget(ctypes.byref(header), sets) == 0
        before = sets[0].effective
        sets[0].effective = before & ~_OF_FILES
        assert libc.capset(ctypes.byref(header), sets) == 0
    else:
        folder.chmod(0)
    try:
        yield
    finally:
        if os.geteuid() == 0:
            sets[0].effective = before
            assert libc.capset(ctypes.byref(header), sets) == 0
            os.chown(folder, 0, 0)
        folder.chmod(mode)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two runs beside each other."""
    for name in ("own", "theirs"):
        folder = synthetic_run(tmp_path / "logs" / name, steps=3, workers=1, requests=2)
        (folder / "processes").mkdir(exist_ok=True)
    return tmp_path / "logs"


def answer(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> Any:
    assert main([*map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_other_steps_answer_and_the_folder_is_named(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = logs / "theirs"
    with denied(run / "step_2"):
        assert [row["step"] for row in answer(capsys, 0, "summary", run)["steps"]] == [1, 3]
        for command in ("events", "workers", "requests", "turns"):
            answer(capsys, 0, command, run)
        unreadable = answer(capsys, 1, "check", run)["health"]["unreadable"]
        assert list(unreadable) == ["step_2/"]
        assert "Permission denied" in unreadable["step_2/"]
        assert main(["summary", str(run)]) == 0
        assert "unreadable: step_2/" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["processes", ".pruned"])
def test_a_folder_beside_the_steps_is_named_too(
    logs: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = logs / "theirs"
    (run / name).mkdir(exist_ok=True)
    with denied(run / name):
        assert list(answer(capsys, 1, "check", run)["health"]["unreadable"]) == [f"{name}/"]
        assert main(["status", str(run)]) == 2
        why = "Permission denied" if name == "processes" else "holds no readable file"
        assert why in capsys.readouterr().err


def test_runs_lists_the_others_and_says_why_a_run_is_not_read(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with denied(logs / "theirs"):
        rows = {Path(row["logs"]).name: row for row in answer(capsys, 0, "runs", logs)["runs"]}
        assert (rows["own"]["steps"], rows["own"]["error"]) == (3, None)
        assert "Permission denied" in rows["theirs"]["error"]
        assert len(answer(capsys, 0, "summary", logs)["steps"]) == 3
        assert main(["summary", str(logs / "theirs")]) == 2
        assert "Permission denied" in capsys.readouterr().err
