"""`summary --by` of a run that is read in pieces says what it says of the run as a whole."""

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sglang_instrument.analysis.executors.executor import Executor
from sglang_instrument.analysis.long_runs import pieces, summary
from sglang_instrument.analysis.long_runs.reduced import Reduced
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run import digest_of_run
from sglang_instrument.cli.main import main
from sglang_instrument.testing import Death, SlowEngine, Trainer, synthetic_run

Told = dict[str, Any]


@pytest.fixture
def answer_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """Return what `summary --by day --json` prints of a folder, with pieces of some files each."""

    def ask(folder: Path, files: int, *options: str) -> Told:
        monkeypatch.setattr(pieces, "MOST_FILES", files)
        capsys.readouterr()
        assert main(["summary", str(folder), "--by", "day", "--json", *options]) == 0
        answer: Told = json.loads(capsys.readouterr().out)
        return answer

    return ask


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 40 steps of three workers, with validations."""
    return synthetic_run(
        tmp_path_factory.mktemp("usual") / "exp", steps=40, workers=3, requests=3, seed=1, validate_every=10
    )


def age(folder: Path) -> Path:
    """Let all files of a run seem to be an hour old: `prune` takes them, and the run is over."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 3600, time.time() - 3600))
    return folder


def assert_equal_but_for_the_verdict(whole: Told, cut: Told) -> None:
    assert "judged in" in cut["verdict"]
    assert "judged in" not in whole["verdict"]
    for answer in (whole, cut):
        answer["health"]["ignored"].sort()
    assert cut["health"] == whole["health"]
    assert len(cut["periods"]) == len(whole["periods"])
    for mine, its in zip(cut["periods"], whole["periods"], strict=True):
        parts, its_parts = mine.pop("parts"), its.pop("parts")
        assert parts == pytest.approx(its_parts)
        words = {name: value for name, value in mine.items() if isinstance(value, str)}
        assert words == {name: value for name, value in its.items() if isinstance(value, str)}
        numbers = {name: value for name, value in mine.items() if name not in words}
        assert numbers == pytest.approx({name: its[name] for name in numbers})


@pytest.mark.parametrize("options", [(), ("--validate",), ("--step", "9-30")])
def test_a_usual_run(usual: Path, answer_of: Callable[..., Told], options: tuple[str, ...]) -> None:
    whole = answer_of(usual, 1000, *options)
    assert whole["periods"][0]["steps"] == {(): 40, ("--validate",): 4, ("--step", "9-30"): 22}[options]
    assert_equal_but_for_the_verdict(whole, answer_of(usual, 60, *options))


def test_a_step_that_is_not_there_is_refused(
    usual: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(pieces, "MOST_FILES", 40)
    assert main(["summary", str(usual), "--by", "day", "--step", "77"]) == 2
    assert "no step 77; there are 40, the nearest: 38, 39, 40" in capsys.readouterr().err


@pytest.mark.parametrize("options", [(), ("--validate",), ("--step", "9-12")])
def test_a_row_a_step_is_that_of_the_run_as_a_whole(
    usual: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    folder = shutil.copytree(usual, usual.parent / "-".join(("by_step", *options)))

    def answer() -> Told:
        assert main(["summary", str(folder), "--json", *options]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        rows: Told = json.loads(printed.out)
        return rows

    whole = answer()
    monkeypatch.setattr(pieces, "MOST_FILES", 60)
    for cut in (answer(), answer()):  # the second time from what was kept of the pieces
        assert "judged in 5 parts" in cut["verdict"]
        assert cut.keys() == whole.keys()
        for name in ("steps", "workers"):
            assert_alike(cut[name], whole[name])
        assert cut["ledger"].keys() == whole["ledger"].keys()
        for ledger, rows in whole["ledger"].items():
            assert_alike(cut["ledger"][ledger], rows)


def assert_alike(rows: list[Told], others: list[Told]) -> None:
    """Compare rows; sums of a piece may have other last digits."""
    assert len(rows) == len(others) > 0
    for row, other in zip(rows, others, strict=True):
        phases = row.pop("phases", {}), other.get("phases", {})
        assert phases[0] == pytest.approx(phases[1])
        other = {name: value for name, value in other.items() if name != "phases"}
        words = {name: value for name, value in other.items() if not isinstance(value, float)}
        assert {name: row[name] for name in words} == words
        assert row == {name: pytest.approx(value, nan_ok=True) for name, value in other.items()}


def test_a_row_a_step_is_printed_with_the_verdict(
    usual: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pieces, "MOST_FILES", 60)
    assert main(["summary", str(usual)]) == 0
    printed = capsys.readouterr().out
    assert "40 steps, 3 workers, 360 requests" in printed
    assert "4 validation steps are not shown" in printed
    assert "judged in 5 parts, each by itself" in printed
    assert main(["summary", str(usual), "--step", "7"]) == 0
    assert "until the next step began, were spent on" in capsys.readouterr().out


def test_with_the_engines_own_logs_it_is_read_as_a_whole_which_is_said(
    usual: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(usual, usual.parent / "whole", ignore=shutil.ignore_patterns(".store"))
    (folder / "engine").mkdir()
    shutil.copy(folder / "step_1/worker_0.jsonl", folder / "engine/scheduler_0_tp0.jsonl")
    monkeypatch.setattr(pieces, "MOST_FILES", 40)
    assert main(["summary", str(folder)]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("133 files at once: `--by day` and `--by week` read them in pieces")
    assert "40 steps" in printed.out


def test_a_launch_that_is_chosen_is_read_as_a_whole_without_a_hint(
    usual: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pieces, "MOST_FILES", 40)
    assert main(["summary", f"{usual}@synthetic-1", "--by", "day"]) == 0
    assert capsys.readouterr().err == ""


def test_what_a_run_in_pieces_does_not_tell_is_said(
    usual: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pieces, "MOST_FILES", 40)
    assert main(["summary", str(usual), "--by", "day", "--window", "60", "--step", "3"]) == 0
    printed = capsys.readouterr().out
    assert "no windows: a run that is read in pieces has none" in printed
    assert "verdict of the whole run" in printed


def test_folders_that_are_links_are_read(usual: Path, tmp_path: Path, answer_of: Callable[..., Told]) -> None:
    folder = tmp_path / "exp"
    folder.mkdir()
    for part in usual.iterdir():
        (folder / part.name).symlink_to(part)
    assert_equal_but_for_the_verdict(answer_of(folder, 1000), answer_of(folder, 60))


def test_a_launch_that_replaced_steps_which_it_did_not_reach(
    tmp_path: Path, answer_of: Callable[..., Told]
) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=40, workers=2, requests=3, seed=1)
    day = 86_400.0
    later = synthetic_run(
        tmp_path / "new", steps=6, workers=2, requests=3, seed=2, first_step=15, clock_skew={0: day, 1: day}
    )
    for path in later.glob("step_*/*"):
        target = folder / path.relative_to(later)
        target.write_bytes(target.read_bytes() + path.read_bytes())
    for step in (25, 38):  # in pieces with and without steps that stay
        with (folder / f"step_{step}/worker_0.jsonl").open("a") as file:
            file.write('foreign\n{"event":"torn')
    whole = answer_of(folder, 1000)
    assert sum(row["steps"] for row in whole["periods"]) == 14 + 6  # 21 to 40 were replaced
    assert [whole["health"][name] for name in ("foreign", "torn")] == [2, 2]
    assert [row["restarts"] for row in whole["periods"]] == [0, 1]
    assert sum(whole["health"]["older"].values()) > 1000
    assert_equal_but_for_the_verdict(whole, answer_of(folder, 24))


@pytest.mark.parametrize("first", [17, 19])  # the first of a piece, and one in its middle
def test_a_launch_whose_workers_logged_before_its_trainer(
    tmp_path: Path, answer_of: Callable[..., Told], first: int
) -> None:
    played: dict[str, Any] = {"workers": 2, "requests": 3, "trainer": Trainer(recorded=True)}
    folder = synthetic_run(tmp_path / "exp", steps=40, seed=1, **played)
    day = dict.fromkeys(range(2), 86_400.0)
    later = synthetic_run(tmp_path / "new", steps=6, seed=2, first_step=first, clock_skew=day, **played)
    (later / f"step_{first}/trainer_0.jsonl").unlink()
    for path in later.glob("step_*/*"):
        target = folder / path.relative_to(later)
        lines = path.read_bytes().replace(b"2026-01-05", b"2026-01-06")  # the trainer's clock is not ahead
        target.write_bytes(target.read_bytes() + lines)
    whole = answer_of(folder, 1000)
    assert sum(row["steps"] for row in whole["periods"]) == first + 5
    assert_equal_but_for_the_verdict(whole, answer_of(folder, 20))


def test_what_is_lost_and_missing_is_told(tmp_path: Path, answer_of: Callable[..., Told]) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=36, workers=3, requests=3, seed=1)
    for step in range(1, 37):  # one of them is the first of a piece, one the last
        path = folder / f"step_{step}/worker_1.jsonl"
        if step % 5 == 0:
            path.unlink()
        elif step % 7 == 0:
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(line for line in lines if b'_closed"' not in line) + b'{"event":"torn')
        elif step % 9 == 0:
            path.write_bytes(path.read_bytes().replace(b'"dropped":0', b'"dropped":3'))
    for step in range(12, 26):  # over borders, and in all steps of a piece
        (folder / f"step_{step}/worker_2.jsonl").unlink()
    (folder / "step_11/notes.txt").write_text("mine")
    (folder / "checkpoints").mkdir()
    (folder / "step_12/worker_9.jsonl").touch()
    whole = answer_of(folder, 1000)
    health = whole["health"]
    assert [len(health[name]) for name in ("missing", "unclosed", "empty", "ignored")] == [21, 4, 1, 2]
    assert health["torn"] == 4
    assert whole["periods"][0]["dropped"] == 12
    assert_equal_but_for_the_verdict(whole, answer_of(folder, 40))


def test_a_name_that_is_no_text_is_told(usual: Path, tmp_path: Path, answer_of: Callable[..., Told]) -> None:
    folder = shutil.copytree(usual, tmp_path / "exp", ignore=shutil.ignore_patterns(".store"))
    (folder / os.fsdecode(b"step_13/notes\xff.txt")).touch()
    (folder / os.fsdecode(b"step_14/worker_\xff.jsonl")).touch()
    assert sorted(answer_of(folder, 80)["health"]["ignored"]) == [
        r"step_13/notes\udcff.txt",
        r"step_14/worker_\udcff.jsonl",
    ]


def test_steps_that_prune_deleted(tmp_path: Path, answer_of: Callable[..., Told]) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=40, workers=2, requests=3, seed=1)
    age(folder)
    for keep in (20, 8):
        arguments = ["prune", str(folder), "--keep-steps", str(keep), "--keep-slowest", "1", "--yes"]
        assert main(arguments) == 0
    whole = answer_of(folder, 1000)
    assert whole["periods"][0]["steps"] == 40
    assert sum(whole["health"]["pruned"].values()) > 40
    cut = answer_of(folder, 40)  # the files that are there are fewer
    assert cut["verdict"].endswith("judged in 5 parts, each by itself)")
    assert_equal_but_for_the_verdict(whole, cut)
    broken = min((folder / ".pruned").glob("*/files.json")).parent
    for name in ("steps.parquet", "files.json"):
        (broken / name).write_text("{")
        shutil.rmtree(folder / ".store", ignore_errors=True)  # it still knows the tables
        whole = answer_of(folder, 1000)
        assert list(whole["health"]["unreadable"]) == [f".pruned/{broken.name}"]
        assert (
            answer_of(folder, 16)["health"] == whole["health"]
        )  # a step lasts longer where the next is lost


def test_the_next_call_reads_only_what_changed(
    usual: Path, tmp_path: Path, answer_of: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(usual, tmp_path / "exp", ignore=shutil.ignore_patterns(".store"))
    read: list[range | None] = []
    read_as_lines: list[str] = []
    reduce, digest_files = summary.reduce_piece, digest_of_run.digest_files

    def counted(where: pieces.Where, piece: pieces.Piece, *others: Any) -> bytes:
        read.append(piece.steps)
        return reduce(where, piece, *others)

    def listed(executor: Executor, files: Sequence[File], progress: Any) -> Any:
        read_as_lines.extend(file.path for file in files)
        return digest_files(executor, files, progress)

    monkeypatch.setattr(summary, "reduce_piece", counted)
    monkeypatch.setattr(digest_of_run, "digest_files", listed)
    first = answer_of(folder, 60)
    steps = [piece for piece in read if piece is not None]
    assert len(steps) >= 4
    assert sorted(read_as_lines) == sorted(set(read_as_lines))  # also of a step that is beside two pieces
    read.clear()
    read_as_lines.clear()
    assert answer_of(folder, 60) == first
    assert read == [steps[-1]]  # the last: how the run ended depends on when it is asked
    with (folder / "step_2/worker_0.jsonl").open("a") as file:
        file.write("torn\n")
    (folder / "step_3/notes.txt").touch()
    read.clear()
    again = answer_of(folder, 60)
    assert read == [steps[0], steps[-1]]
    assert read_as_lines == ["step_2/worker_0.jsonl"]
    assert again["health"]["ignored"] == ["step_3/notes.txt"]
    (folder / "step_3/notes.txt").unlink()
    assert answer_of(folder, 60)["health"]["ignored"] == []
    assert again["health"]["foreign"] == 1
    assert again["periods"] == first["periods"]
    stored = list((folder / ".store").glob("reduced-*.parquet"))
    assert len(stored) == len(steps) - 1  # those of before are deleted


def test_what_could_not_be_read_beside_a_piece_is_read_again(
    tmp_path: Path, answer_of: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=24, workers=3, requests=3, seed=1, reference_format=True)
    whole = answer_of(folder, 1000)
    opened = os.open

    def fail(path: Any, *arguments: Any, **more: Any) -> int:
        if "/step_9/" in str(path):  # the first of a piece: the step before lasts until it begins
            raise OSError(errno.EIO, "the disk does not answer", str(path))
        return opened(path, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fail)
        assert len(answer_of(folder, 24)["health"]["unreadable"]) == 3
    assert_equal_but_for_the_verdict(whole, answer_of(folder, 24))


def test_a_fault_is_found_in_its_piece(tmp_path: Path, answer_of: Callable[..., Told]) -> None:
    slow = SlowEngine(step=22, worker=2, factor=3.0)
    clocks = dict.fromkeys(range(4), 0.0)
    folder = synthetic_run(
        tmp_path / "exp", steps=40, workers=4, requests=6, seed=3, causes=[slow], engine_clocks=clocks
    )
    whole, cut = answer_of(folder, 1000), answer_of(folder, 60)
    for answer in (whole, cut):
        first = answer["findings"][0]
        assert (first["cause"], first["step"], first["worker"]) == ("engine", 22, 2)
    assert cut["verdict"].startswith("step 22")
    assert_equal_but_for_the_verdict(whole, cut)


def test_a_worker_that_died_in_the_last_step(tmp_path: Path, answer_of: Callable[..., Told]) -> None:
    folder = synthetic_run(
        tmp_path / "exp", steps=30, workers=3, requests=4, seed=3, causes=[Death(step=30, worker=1)]
    )
    age(folder)
    whole, cut = answer_of(folder, 1000), answer_of(folder, 30)
    assert [finding["cause"] for finding in cut["findings"]].count("death") == 1
    assert cut["findings"][0]["sentence"] == whole["findings"][0]["sentence"]
    assert_equal_but_for_the_verdict(whole, cut)


def test_the_logs_of_engines_alone(tmp_path: Path, answer_of: Callable[..., Told]) -> None:
    clocks = dict.fromkeys(range(3), 0.0)
    folder = synthetic_run(tmp_path / "exp", steps=2, workers=3, requests=3, seed=1, engine_clocks=clocks)
    for path in folder.glob("step_*"):
        shutil.rmtree(path)
    whole = answer_of(folder, 1000)
    assert "only the engine's processes logged" in whole["verdict"]
    cut = answer_of(folder, 2)
    assert cut.pop("health")["records"] == whole.pop("health")["records"] > 0
    assert cut == whole


def test_what_makes_a_run_large(usual: Path, tmp_path: Path, answer_of: Callable[..., Told]) -> None:
    folder = shutil.copytree(usual, tmp_path / "of $HOME", ignore=shutil.ignore_patterns(".store"))
    assert "judged in" in answer_of(folder, 60)["verdict"]  # a folder's name holds no variables here
    for number in range(60):  # only logs are read
        (folder / f"step_2/checkpoint_{number}").touch()
    assert "judged in" not in answer_of(folder, 132)["verdict"]
    shared, separate = {"step_1/": (2, 100, 0)}, {"step_1/": (1, 70, 10), "step_2/": (1, 50, 0)}
    sizes = pieces.joined_sizes([shared, shared, separate])  # of three nodes, two of which share a disk
    assert sizes == {"step_1/": pieces.Size(3, 260), "step_2/": pieces.Size(1, 50)}


def test_this_machine_reduces_one_piece_at_a_time_and_none_when_interrupted(
    usual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "MOST_FILES", 40)
    run = pieces.large_run(usual, None)
    assert run is not None
    reduce, stopped, running, most = summary.reduce_piece, threading.Event(), [], []

    def counted(*arguments: Any) -> bytes:
        running.append(1)
        most.append(len(running))
        packed = reduce(*arguments)
        running.pop()
        return packed

    monkeypatch.setattr(summary, "reduce_piece", counted)

    def reduced(number: int) -> Reduced:
        return summary._kept_of(run, run.pieces[number], None, [], number, stopped)

    with ThreadPoolExecutor(3) as threads:  # as for pieces of a cluster's nodes
        assert [len(piece.headers) > 0 for piece in threads.map(reduced, range(3))] == [True] * 3
    assert most == [1, 1, 1]
    stopped.set()
    with pytest.raises(InterruptedError):
        reduced(0)


def test_a_death_before_steps_that_the_launch_had_replaced(
    tmp_path: Path, answer_of: Callable[..., Told]
) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=32, workers=3, requests=3, seed=1)
    played: dict[str, Any] = {"workers": 3, "requests": 3, "clock_skew": dict.fromkeys(range(3), 86_400.0)}
    death = Death(step=12, worker=1)
    later = synthetic_run(tmp_path / "new", steps=2, seed=2, first_step=11, causes=[death], **played)
    for path in later.glob("step_*/*"):
        target = folder / path.relative_to(later)
        target.write_bytes(target.read_bytes() + path.read_bytes())
    age(folder)
    whole = answer_of(folder, 1000)
    for _ in range(2):
        cut = answer_of(folder, 24)
        assert [finding["cause"] for finding in cut["findings"]].count("death") == 1
        assert cut["findings"][0]["sentence"] == whole["findings"][0]["sentence"]
    assert_equal_but_for_the_verdict(whole, cut)
