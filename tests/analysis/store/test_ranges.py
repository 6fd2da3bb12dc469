"""A log file outside of steps gets a part for each range of bytes; answers are those of the whole file."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hand_written import EPOCH_US, record
from polars.testing import assert_frame_equal

from sglang_instrument.analysis import Run, open_run
from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests
from sglang_instrument.analysis.executors import logged_records
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.store import homes, ranges
from sglang_instrument.analysis.store.parts import HeldRange, read_index
from sglang_instrument.analysis.tables.registry import all_tables
from sglang_instrument.testing import synthetic_run

SERVER = "engine/server_0.jsonl"


@pytest.fixture(autouse=True)
def _small_ranges_are_worthwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(homes, "_WORTHWHILE_BYTES", 1)
    monkeypatch.setattr(ranges, "_LEAST_BYTES", 400)
    monkeypatch.setattr(ranges, "_MOST_BYTES", 3_000)
    monkeypatch.setattr(ranges, "_SMALL", 8)
    monkeypatch.setattr(ranges, "_MOST_SMALL", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clocks = {0: 0.0, 1: 0.0}
    folder = tmp_path_factory.mktemp("logs") / "exp"
    return synthetic_run(folder, steps=2, workers=2, requests=4, engine_clocks=clocks)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """The log of a run whose engines have not logged yet."""
    target = tmp_path / "exp"
    shutil.copytree(whole, target)
    for path in target.glob("engine/*"):
        path.write_bytes(b"")
    return target


def append(folder: Path, name: str, text: bytes) -> None:
    with (folder / name).open("ab") as file:
        file.write(text)


def held(folder: Path) -> list[HeldRange]:
    [home, *_] = homes.homes(folder)
    return sorted(read_index(home).ranges, key=lambda part: (part.path, part.begin))


def assert_answers_are_those_of_the_whole(folder: Path) -> Run:
    ranged, lines = open_run(folder), open_run(folder, cached=False)
    for name, table in ranged.everything.tables().items():
        assert_frame_equal(table, lines.everything.tables()[name])
    assert [as_whole(file) for file in ranged.files] == [as_whole(file) for file in lines.files]
    assert ranged.health == lines.health
    assert_frame_equal(cached_engine_requests(ranged), cached_engine_requests(lines))
    assert_frame_equal(all_tables()["control"].frame(ranged), all_tables()["control"].frame(lines))
    return ranged


def as_whole(file: File) -> File:
    return msgspec.structs.replace(file, range=None)


def engine_lines(chance: random.Random) -> Iterator[bytes]:
    """Yield lines of a server: spans in each other, reports of what is open, restarts, lines of others."""
    time_sec, pid = 0.0, 0
    for number in range(120):
        time_sec += chance.random()
        kind = chance.choice(["span", "span", "around", "instant", "open_now", "open_now", "other", "block"])
        if number == 0 or chance.random() < 0.05:
            pid += chance.randrange(2)
            yield line("log_opened", time_sec, {"log_version": 1, "run_id": f"r{pid // 3}", "pid": pid})
        if chance.random() < 0.03:
            yield line("log_closed", time_sec, {})
        if kind == "span":
            extra = {"rid": f"q{number}", "request_id": f"q{number % 7}"}
            yield written(record("engine_request", time_sec - 0.3, time_sec, extra=extra, task=number % 3))
        elif kind == "around":  # what was logged before lies inside
            yield written(record("server_generate", max(0.0, time_sec - 4), time_sec, task=number % 3))
        elif kind == "instant":
            yield line("scheduler_gauges", time_sec, {"running": number})
        elif kind == "block":
            yield line("event_loop_block", time_sec, {"stack": ["a", "b"]}, duration_sec=0.2)
        elif kind == "open_now":
            names = [f"q{chance.randrange(7)}" for _ in range(2)]
            oldest = [
                {"request_id": name, "event": "engine_request", "age_sec": 1.5, "in_sec": 1.0}
                for name in names
            ]
            yield line("open_now", time_sec, {"open": {"engine_request": 2}, "oldest": oldest})
        else:
            others = (b'{"event": "torn\n', b"no record: open_now\n", b'{"a": "\\"open_now\\""}\n')
            yield chance.choice(others)


def line(event: str, time_sec: float, extra: dict[str, Any], **keys: Any) -> bytes:
    stamped = {"timestamp": record(event, time_sec, time_sec)["timestamp"], "event": event, "extra": extra}
    return written({**stamped, "start_us": EPOCH_US + int(time_sec * 1e6), **keys})


def written(fields: dict[str, Any]) -> bytes:
    return json.dumps({**fields, "workid": 0}, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize("seed", range(3))
def test_a_file_that_grows_by_any_bytes_answers_as_it_does_as_a_whole(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    text, position = b"".join(engine_lines(chance)), 0
    names: set[str] = set()
    while position < len(text):
        size = chance.randrange(1, 6_000)
        append(folder, SERVER, text[position : position + size])
        position += size
        assert_answers_are_those_of_the_whole(folder)
        names |= {part.name for part in held(folder)}
    every = "from spans order by all"
    assert_frame_equal(open_run(folder).sql(every), open_run(folder, cached=False).sql(every))
    of_server = held(folder)
    assert len(names) >= len(of_server) > 1
    ends = [part.end for part in of_server]
    assert [part.begin for part in of_server] == [0, *ends[:-1]]


def test_what_a_file_grew_by_goes_into_one_more_part(folder: Path, whole: Path) -> None:
    text = (whole / SERVER).read_bytes()
    append(folder, SERVER, text[:900])
    open_run(folder)
    first = held(folder)
    append(folder, SERVER, text[900:1_800])
    assert_answers_are_those_of_the_whole(folder)
    assert held(folder)[: len(first)] == first
    assert held(folder)[-1].end > first[-1].end


def test_only_new_lines_are_read_as_lines(folder: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (whole / SERVER).read_bytes()
    append(folder, SERVER, text[:2_000])
    open_run(folder)
    begins, end = [], held(folder)[-1].end

    def noted(home: Path, files: list[File], *options: bool) -> Any:
        begins.extend(file.range.begin for file in files if file.range)
        return read(home, files, *options)

    read = logged_records.read_files
    monkeypatch.setattr(logged_records, "read_files", noted)
    append(folder, SERVER, text[2_000:2_300])
    open_run(folder)
    assert begins == [end]
    assert end > 1_000


@pytest.mark.parametrize("change", ["shrank", "replaced", "rewritten", "gone"])
def test_ranges_of_another_file_are_made_anew(folder: Path, whole: Path, change: str) -> None:
    path, text = folder / SERVER, (whole / SERVER).read_bytes()
    append(folder, SERVER, text[:2_000])
    open_run(folder)
    before = {part.name for part in held(folder)}
    assert before
    if change == "shrank":
        path.write_bytes(text[:1_000])
    elif change == "replaced":
        path.with_suffix(".new").write_bytes(text[:3_000])
        path.with_suffix(".new").replace(path)
    elif change == "rewritten":
        path.write_bytes(text[:200] + text[300:3_000])
    else:
        path.unlink()
    assert_answers_are_those_of_the_whole(folder)
    assert before.isdisjoint({part.name for part in held(folder)})
    [home, *_] = homes.homes(folder)
    assert before.isdisjoint((home / "parts").names())


def test_a_damaged_range_is_made_anew(folder: Path, whole: Path) -> None:
    text = (whole / SERVER).read_bytes()
    append(folder, SERVER, text[:2_000])
    open_run(folder)
    [home, *_] = homes.homes(folder)
    [first, *_] = held(folder)
    (home.path / "parts" / first.name / "records.parquet").write_bytes(b"PAR1")
    append(folder, SERVER, text[2_000:2_200])
    assert_answers_are_those_of_the_whole(folder)
    assert first.name not in {part.name for part in held(folder)}
    assert held(folder)[0].begin == 0


def test_many_small_ranges_become_one(folder: Path, whole: Path) -> None:
    lines = (whole / SERVER).read_bytes().splitlines(keepends=True)
    for number in range(0, 20, 2):
        append(folder, SERVER, b"".join(lines[number : number + 2]))
        open_run(folder)
    assert_answers_are_those_of_the_whole(folder)
    assert len(held(folder)) <= 4
    assert held(folder)[0].records >= 8


def test_a_call_writes_a_few_ranges_and_the_next_one_goes_on(
    folder: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "_MOST_BYTES", 500)
    monkeypatch.setattr(ranges, "_MOST_SMALL", 100)
    append(folder, SERVER, (whole / SERVER).read_bytes())
    counts = []
    for _ in range(3):
        open_run(folder)
        counts.append(len(held(folder)))
    assert counts[0] == ranges._MOST_NEW < counts[1]
    assert_answers_are_those_of_the_whole(folder)


def test_files_of_steps_have_no_ranges(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "exp"
    shutil.copytree(whole, folder)
    for path in folder.glob("step_*/*"):
        lines = [line for line in path.read_bytes().splitlines(keepends=True) if b"_closed" not in line]
        path.write_bytes(b"".join(lines))
    open_run(folder)
    assert {part.path.partition("/")[0] for part in held(folder)} <= {"engine"}
