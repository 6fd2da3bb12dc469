"""With a cache, unchanged files are not read again, and all answers stay the same."""

import os
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from sglang_instrument.analysis import Digest, Run, open_run
from sglang_instrument.analysis.executors import batches, local, worker_processes
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run import cache
from sglang_instrument.testing import TornFile, synthetic_run


@pytest.fixture(autouse=True)
def _small_runs_are_worthwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache, "_WORTHWHILE_BYTES", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return synthetic_run(
        tmp_path / "exp", steps=3, workers=2, requests=6, validate_every=3, causes=[TornFile(2, 1)]
    )


def files_read(folder: Path) -> tuple[Run, int]:
    """Open a run; return it, and how many files were read for that."""
    read = 0

    def progress(_: int, total: int) -> None:
        nonlocal read
        read = total

    return open_run(folder, progress), read


def assert_same(one: Digest, other: Digest) -> None:
    for name, table in one.tables().items():
        assert_frame_equal(table, other.tables()[name], check_row_order=False)


def test_opening_a_run_again_reads_no_file_and_gives_the_same(folder: Path) -> None:
    first, read = files_read(folder)
    again, read_again = files_read(folder)
    assert (read, read_again) == (8, 0)
    assert_same(first.digest, again.digest)
    assert first.health == again.health
    assert first.health.torn == 1


def test_only_changed_files_are_read_again(folder: Path) -> None:
    open_run(folder)
    path = folder / "step_2" / "worker_0.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"workid":0', b'"workid":7'))
    changed, read = files_read(folder)
    assert read == 1
    assert changed.workers == [0, 1, 7]
    assert_same(changed.digest, open_run(folder, cached=False).digest)


def test_added_files_are_read_and_removed_files_are_forgotten(folder: Path) -> None:
    open_run(folder)
    (folder / "step_1" / "worker_1.jsonl").unlink()
    (folder / "step_4").mkdir()
    (folder / "step_3" / "worker_0.jsonl").replace(folder / "step_4" / "worker_0.jsonl")
    changed, read = files_read(folder)
    assert read == 1
    assert_same(changed.digest, open_run(folder, cached=False).digest)


@pytest.mark.parametrize("damage", [b"", b"no JSON", b'{"version": "0.0.0"}'])
def test_a_damaged_cache_is_made_anew(folder: Path, damage: bytes) -> None:
    whole = open_run(folder)
    (folder / ".cache" / "digest.json").write_bytes(damage)
    again, read = files_read(folder)
    assert read == 8
    assert_same(whole.digest, again.digest)


def test_a_cut_table_is_made_anew(folder: Path) -> None:
    open_run(folder)
    for path in (folder / ".cache").glob("requests-*.parquet"):
        path.write_bytes(path.read_bytes()[:100])
    assert files_read(folder)[1] == 8


def test_a_cache_keeps_one_set_of_tables(folder: Path) -> None:
    for _ in range(3):
        os.utime(folder / "step_1" / "worker_0.jsonl")
        open_run(folder)
    names = sorted(path.name.partition("-")[0] for path in (folder / ".cache").iterdir())
    assert names == ["barriers", "digest.json", "path", "requests", "samples", "steps", "turns"]


def test_where_the_folder_cannot_be_written_the_users_cache_is_used(folder: Path, tmp_path: Path) -> None:
    (folder / ".cache").write_text("a file in the way")
    open_run(folder)
    assert list((tmp_path / "home" / "sglang-instrument").iterdir())
    assert files_read(folder)[1] == 0


def test_several_processes_and_batches_read_the_same_as_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_run(folder, cached=False)
    monkeypatch.setattr(batches, "_BATCH_BYTES", 20_000)
    monkeypatch.setattr(batches, "_BYTES_PER_PROCESS", 20_000)
    monkeypatch.setattr(local, "_cores", lambda: 3)
    several = open_run(folder, cached=False)
    assert one.health == several.health
    assert_same(one.digest, several.digest)
    assert several.digest.steps.sort("source")["source"].is_sorted()
    assert one.digest.requests["source"].equals(several.digest.requests["source"])
    assert isinstance(one.digest.steps, pl.DataFrame)


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(1)",
        "print('of somebody else'); print(0)",
        "import os, pathlib, sys; pathlib.Path(sys.argv[2], '1').mkdir(); os._exit(9)",
    ],
    ids=["none starts", "others print", "one dies at work"],
)
def test_batches_that_child_processes_cannot_read_are_read_by_the_parent(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    whole = open_run(folder, cached=False)
    monkeypatch.setattr(batches, "_BATCH_BYTES", 20_000)
    monkeypatch.setattr(batches, "_BYTES_PER_PROCESS", 20_000)
    monkeypatch.setattr(local, "_cores", lambda: 2)
    monkeypatch.setattr(worker_processes, "_PROGRAM", program)
    alone = open_run(folder, cached=False)
    assert whole.health == alone.health
    assert_same(whole.digest, alone.digest)


def test_batches_weigh_about_the_same_and_every_process_gets_as_many() -> None:
    files = [File(f"step_{number}/worker_0.jsonl", 1_000_000, 0) for number in range(300)]
    for processes in (1, 2, 3, 16):
        made = batches.split_files(files, processes)
        assert [file for batch in made for file in batch] == files
        assert len(made) % processes == 0
        assert max(map(len, made)) - min(map(len, made)) <= 1
