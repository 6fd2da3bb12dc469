"""Missing files of a run, and files that are not read, are named."""

import json
from pathlib import Path

import pytest

from sglang_instrument.analysis import Run, open_run
from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return synthetic_run(tmp_path / "exp", steps=5, workers=3, requests=2, validate_every=2)


def check(folder: Path, capsys: pytest.CaptureFixture[str], code: int) -> str:
    """Return the output of `check`, and check that --json agrees."""
    assert main(["check", str(folder)]) == code
    shown = " ".join(capsys.readouterr().out.split())
    assert ("something is wrong" in shown) is bool(code)
    assert main(["check", str(folder), "--json"]) == code
    assert json.loads(capsys.readouterr().out)["ok"] is not bool(code)
    return shown


def opened(folder: Path) -> Run:
    return open_run(folder, cached=False)


def test_a_whole_run_lacks_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing dropped, torn or left open nothing is wrong" in check(folder, capsys, 0)


def test_a_workers_file_that_is_missing_between_others_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "step_2/worker_1.jsonl").unlink()
    assert "no file, though earlier and later steps have one: step 2 worker 1" in check(folder, capsys, 1)
    for number in (3, 4):
        (folder / f"step_{number}/worker_1.jsonl").unlink()
    assert opened(folder).health.missing == [(2, 1), (3, 1), (4, 1)]


@pytest.mark.parametrize("gone", [("step_1",), ("step_1", "step_2"), ("step_5",), ("validate_2",)])
def test_a_worker_that_joined_late_or_is_not_there_yet_lacks_no_file(
    folder: Path, gone: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in gone:
        (folder / name / "worker_1.jsonl").unlink()
    check(folder, capsys, 0)


def test_a_launch_with_fewer_workers_lacks_no_file(tmp_path: Path) -> None:
    launches = ((1, 3, 0), (4, 2, 1), (7, 3, 2))  # first step, number of workers, number of the launch
    for first, workers, seed in launches:
        synthetic_run(tmp_path, steps=3, first_step=first, workers=workers, requests=2, seed=seed)
    assert opened(tmp_path).health.missing == []


def test_an_empty_file_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "step_5/worker_1.jsonl").write_bytes(b"")
    assert "empty: step_5/worker_1.jsonl" in check(folder, capsys, 1)


def test_a_log_of_a_newer_version_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "step_2/worker_1.jsonl"
    path.write_text(path.read_text().replace('"log_version":1', '"log_version":99'))
    said = "written by a newer version, fields may be misread: step_2/worker_1.jsonl (log_version 99)"
    assert said in check(folder, capsys, 1)


def test_what_is_no_log_is_named_and_is_no_fault(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (
        "step_x/worker_0.jsonl",
        "step_1/sub/worker_0.jsonl",
        ".cache/digest.json",
        "profiles/p.json",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}\n")
    for name in ("notes.txt", "step_7", "step_2/picture.png", "step_2/notes.jsonl"):
        (folder / name).write_text("x")
    assert sorted(opened(folder).health.ignored) == [
        *("notes.txt", "step_1/sub/", "step_2/notes.jsonl", "step_2/picture.png", "step_7", "step_x/")
    ]
    shown = check(folder, capsys, 0)
    assert (
        "nothing dropped, torn or left open; not read: step_2/notes.jsonl, notes.txt, step_1/sub/ and 3"
        in shown
    )
