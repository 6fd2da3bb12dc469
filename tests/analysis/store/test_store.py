"""With a store, unchanged files are not read again, and all answers stay the same."""

import os
import shutil
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from sglang_instrument.analysis import Digest, Run, open_run
from sglang_instrument.analysis.executors import batches, local, worker_processes
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.store import bounds, homes, store
from sglang_instrument.cli.main import main
from sglang_instrument.testing import TornFile, synthetic_run


@pytest.fixture(autouse=True)
def _small_runs_are_worthwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(homes, "_WORTHWHILE_BYTES", 1)
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


def assert_same(digest: Digest, other: Digest) -> None:
    for name, table in digest.tables().items():
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
    assert changed.worker_ranks == [0, 1, 7]
    assert_same(changed.digest, open_run(folder, cached=False).digest)


def test_added_files_are_read_and_removed_files_are_forgotten(folder: Path) -> None:
    open_run(folder)
    (folder / "step_1" / "worker_1.jsonl").unlink()
    (folder / "step_4").mkdir()
    (folder / "step_3" / "worker_0.jsonl").replace(folder / "step_4" / "worker_0.jsonl")
    changed, read = files_read(folder)
    assert read == 1
    assert_same(changed.digest, open_run(folder, cached=False).digest)


def parts_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / ".store/parts").iterdir())


@pytest.mark.parametrize("damage", [b"", b"no JSON", b'{"version": "0.0.0"}'])
@pytest.mark.parametrize("name", ["index.json", "parts/*/files.json"])
def test_a_damaged_store_is_made_anew(folder: Path, name: str, damage: bytes) -> None:
    whole = open_run(folder)
    for path in (folder / ".store").glob(name):
        path.write_bytes(damage)
    again, read = files_read(folder)
    assert read == 8
    assert_same(whole.digest, again.digest)
    assert files_read(folder)[1] == 0


def test_a_cut_table_is_made_anew(folder: Path) -> None:
    open_run(folder)
    for path in (folder / ".store").glob("parts/*/requests.parquet"):
        path.write_bytes(path.read_bytes()[:100])
    assert files_read(folder)[1] == 8
    assert files_read(folder)[1] == 0


def test_a_store_of_another_layout_is_made_anew(folder: Path) -> None:
    open_run(folder)
    index = folder / ".store/index.json"
    index.write_bytes(index.read_bytes().replace(b", parts ", b", parts 9"))
    assert files_read(folder)[1] == 8
    assert len(parts_of(folder)) == 1


def test_a_part_is_never_changed_and_new_steps_get_a_part_of_their_own(folder: Path, tmp_path: Path) -> None:
    open_run(folder)
    first = parts_of(folder)
    longer = synthetic_run(tmp_path / "longer", steps=5, workers=2, requests=6)
    for step in ("step_4", "step_5"):
        (longer / step).rename(folder / step)
    assert files_read(folder)[1] == 4
    assert len(parts_of(folder)) == 2
    assert set(first) < set(parts_of(folder))
    assert files_read(folder)[1] == 0


def test_a_step_of_which_little_counts_any_more_goes_into_a_new_part(folder: Path) -> None:
    open_run(folder)
    first = parts_of(folder)
    for number in (1, 2, 3):
        os.utime(folder / f"step_{number}" / "worker_0.jsonl")
        os.utime(folder / f"step_{number}" / "worker_1.jsonl")
        whole = open_run(folder)
    assert not set(first) & set(parts_of(folder))
    assert_same(whole.digest, open_run(folder, cached=False).digest)
    assert files_read(folder)[1] == 0


def test_many_small_parts_become_one(folder: Path) -> None:
    for number in range(1, 14):
        made = synthetic_run(folder.parent / f"of_{number}", steps=number, workers=1, requests=2)
        (folder / f"step_{number}").mkdir(exist_ok=True)
        (made / f"step_{number}/worker_0.jsonl").rename(folder / f"step_{number}/worker_9.jsonl")
        open_run(folder)
    assert len(parts_of(folder)) <= 9
    assert_same(open_run(folder).digest, open_run(folder, cached=False).digest)
    assert files_read(folder)[1] == 0


def test_a_step_that_goes_on_is_read_as_lines_each_time(folder: Path) -> None:
    path = folder / "step_3" / "worker_0.jsonl"
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if b"_closed" not in line]
    path.write_bytes(b"".join(lines))
    assert files_read(folder)[1] == 8
    assert files_read(folder)[1] == 2  # the other worker's file of this step, too
    os.utime(path, (1e9, 1e9))  # nobody has written to it for years
    open_run(folder)
    assert files_read(folder)[1] == 0


def test_a_file_in_place_of_another_one_is_read_whatever_its_size_and_time(folder: Path) -> None:
    open_run(folder)
    path = folder / "step_1" / "worker_0.jsonl"
    times = path.stat().st_mtime_ns
    copy = path.with_suffix(".new")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(times, times))
    copy.replace(path)
    assert files_read(folder)[1] == 1


def test_where_the_folder_cannot_be_written_the_users_cache_is_used(folder: Path, tmp_path: Path) -> None:
    (folder / ".store").write_text("a file in the way")
    open_run(folder)
    assert list((tmp_path / "home" / "sglang-instrument").iterdir())
    assert files_read(folder)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("given", ["exp", "exp/.store"])
def test_a_strangers_store_is_not_believed_and_not_written(folder: Path, tmp_path: Path, given: str) -> None:
    open_run(folder)
    os.chown(tmp_path / given, 4711, 4711)
    before = {path: path.stat().st_mtime_ns for path in (folder / ".store").rglob("*")}
    assert files_read(folder)[1] == 8
    assert files_read(folder)[1] == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / ".store").rglob("*")} == before
    assert list((tmp_path / "home/sglang-instrument").glob("*/.store/index.json"))


def test_stores_in_the_users_cache_are_bounded_the_oldest_goes_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = []
    for number in range(3):
        run = shutil.copytree(folder, tmp_path / f"run_{number}")
        (run / ".store").write_text("a file in the way")
        open_run(run)
        new = set((tmp_path / "home/sglang-instrument").glob("*/.store/index.json")) - set(stores)
        stores.append(new.pop())
        for path in stores[-1].parent.rglob("*"):
            os.utime(path, (1e9 + number, 1e9 + number))
    size = sum(path.stat().st_size for path in stores[0].parent.rglob("*") if path.is_file())
    monkeypatch.setattr(bounds, "_MOST_BYTES", int(2.5 * size))
    (folder / ".store").write_text("a file in the way")
    open_run(folder)
    assert [path.exists() for path in stores] == [False, False, True]
    assert files_read(folder)[1] == 0


def test_two_commands_at_once_write_one_store(folder: Path) -> None:
    with homes.locked(homes.homes(folder)[0]):
        assert files_read(folder)[1] == 8
        assert not (folder / ".store/parts").exists()
    open_run(folder)
    assert files_read(folder)[1] == 0


def test_a_command_writes_when_it_has_printed_its_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    monkeypatch.setattr(store, "write_part", lambda *_: printed.append(capsys.readouterr().out) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["summary", str(folder)])
    assert printed[0].startswith(str(folder))


@pytest.mark.parametrize("threads", [1, 2], ids=["this one reads, too", "this one waits"])
def test_several_processes_and_batches_read_the_same_as_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    single = open_run(folder, cached=False)
    monkeypatch.setattr(worker_processes.pl, "thread_pool_size", lambda: threads)
    monkeypatch.setattr(batches, "_BATCH_BYTES", 20_000)
    monkeypatch.setattr(batches, "_BYTES_PER_PROCESS", 20_000)
    monkeypatch.setattr(local, "processors", lambda: 3)
    several = open_run(folder, cached=False)
    assert single.health == several.health
    assert_same(single.digest, several.digest)
    assert several.digest.steps.sort("source")["source"].is_sorted()
    assert single.digest.requests["source"].equals(several.digest.requests["source"])
    assert isinstance(single.digest.steps, pl.DataFrame)


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
    monkeypatch.setattr(local, "processors", lambda: 2)
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


def test_prune_deletes_the_store_alone_and_the_next_command_makes_it_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = {path: path.read_bytes() for path in folder.glob("*/*.jsonl")}
    open_run(folder).sql("select count(*) from spans")
    (folder / ".store/parts/notes.txt").write_text("the user's")
    assert list((folder / ".store/parts").glob("*/records.parquet"))
    assert main(["prune", str(folder), "--store"]) == 0
    assert "deleted" in capsys.readouterr().out
    left = sorted(path.name for path in (folder / ".store").rglob("*") if path.is_file())
    assert left in (["notes.txt"], ["lock", "notes.txt"])
    assert {path: path.read_bytes() for path in folder.glob("*/*.jsonl")} == logs
    assert files_read(folder)[1] == 8
    assert files_read(folder)[1] == 0


def test_a_question_about_spans_has_one_answer_with_a_store_and_without(folder: Path) -> None:
    asked = "select * from spans order by file, start_us, event, span"
    expected = open_run(folder, cached=False).sql(asked)
    assert open_run(folder).sql(asked).equals(expected)
    assert open_run(folder).sql(asked).equals(expected)
    path = folder / "step_2" / "worker_0.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"turn_end"', b'"turn_over"'))
    expected = open_run(folder, cached=False).sql(asked)
    assert "turn_over" in expected["event"].to_list()
    assert open_run(folder).sql(asked).equals(expected)
    assert open_run(folder).sql(asked).equals(expected)
