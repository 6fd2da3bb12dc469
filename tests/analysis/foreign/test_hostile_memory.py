"""Small files cannot fill the memory: what a few bytes could stand for is bounded by format."""

import gzip
import json
import os
import pickle
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing

import foreign_runs
import pytest
import zstandard

from sglang_instrument import regular_files
from sglang_instrument.analysis.foreign.stores.pickle_bounds import demand_bounded
from sglang_instrument.analysis.reading.chunks import open_log
from sglang_instrument.errors import LogError
from sglang_instrument.traces.file import Header, read_events

#: Runs `summary` on each file, in 512 MiB more than after the imports; prints exit code and error.
LIMITED = """
import contextlib, io, json, resource, sys
import polars, numpy
from sglang_instrument.analysis.verdict.verdict import judge
from sglang_instrument.analysis.foreign import registry
from sglang_instrument.cli.main import main
from sglang_instrument.cli.commands import summary
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 512 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.argv[1:]:
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        code = main(["summary", path])
    print(json.dumps([code, error.getvalue()]))
"""
SAMPLE = {
    "index": 0,
    "reward": 1.0,
    "response_length": 9,
    "status": "completed",
    "trace": {
        "events": [
            {"type": "span_start", "name": "sglang_generate", "ts": 1767600000.0, "span_id": "a"},
            {"type": "span_end", "name": "sglang_generate", "ts": 1767600001.0, "span_id": "a"},
        ]
    },
}


def stored(path, pickled, compression=zipfile.ZIP_STORED):
    """Write a pickle as `torch.save` does."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("rollout_0/data.pkl", pickled)


def repeated(samples, text="x"):
    """Return a dump whose list holds the same sample so often, and one text in each of its places."""
    sample = {**SAMPLE, "group_index": text}
    return pickle.dumps({"rollout_id": 1, "samples": [sample] * samples}, protocol=2)


PICKLES = {
    "memo": (b"\x80\x02]r\xff\xff\xff\x7f.", "numbers a memo 2147483647"),
    "memo-as-text": (b"\x80\x02]p2000000000\n.", "numbers a memo 2000000000"),
    "text": (b"\x80\x04\x8d" + (2**33).to_bytes(8, "little") + b"x.", "announces 8,589,934,592 bytes"),
    "frame": (b"\x80\x04\x95" + (2**33).to_bytes(8, "little") + b"N.", "announces 8,589,934,592 bytes"),
    "bytes": (b"\x80\x05\x96" + (2**33).to_bytes(8, "little") + b"x.", "opcode 0x96"),
    "sets": (b"\x80\x04" + b"\x8f" * 8_000_000 + b".", "opcode 0x8f"),
    "repeated": (repeated(3_000_000), "repeats its samples or events: 9,000,000"),
}


def bombs(folder):
    """Yield files by name, and a part of what is said of each."""
    for name, (pickled, words) in PICKLES.items():
        path = folder / f"rollout_{name}.pt"
        stored(path, pickled)
        yield path, words
    packed = folder / "rollout_packed.pt"
    stored(packed, repeated(3_000_000), zipfile.ZIP_DEFLATED)
    assert packed.stat().st_size < 20_000
    yield packed, "its pickle is compressed"
    database = folder / "mlruns.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "create table spans (trace_id text, span_id text, parent_span_id text, name text, status text,"
            " start_time_unix_nano integer, end_time_unix_nano integer,"
            " content blob generated always as (zeroblob(900000000)) virtual)"
        )
        connection.execute("create table trace_tags (request_id text, key text, value text)")
        row = ("t", "s", None, "Client.generate", "OK", 1, 2)
        connection.executemany("insert into spans values (?, ?, ?, ?, ?, ?, ?)", [row] * 9)
        connection.commit()
    yield database, "spans.content is computed"
    (folder / "artifacts").mkdir()
    traces = folder / "artifacts/traces.json"
    lists = ",".join(["[]"] * 8_000_000)
    traces.write_text(f'{{"spans": [{{"attributes": {{"mlflow.spanInputs": [{lists}]}}, "span_id": 3}}]}}')
    yield traces, "artifacts"


def test_small_files_that_stand_for_gigabytes_are_refused_in_half_a_gigabyte(tmp_path):
    expected = dict(bombs(tmp_path))
    child = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, expected)],
        env={**os.environ, "POLARS_MAX_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [json.loads(line) for line in child.stdout.splitlines()]
    assert len(answers) == len(expected), child.stderr[-2000:]
    for (path, words), (code, error) in zip(expected.items(), answers, strict=True):
        assert code == 2, path
        assert words in error, error


@pytest.mark.parametrize("protocol", range(6))
def test_what_a_dump_holds_passes_the_walk_in_every_protocol(protocol):
    values = [
        0,
        255,
        70_000,
        -1,
        2**70,
        1.5,
        "",
        "x" * 300,
        "\u20ac\ud800",
        b"b" * 300,
        True,
        None,
        (),
        (1,),
        (1, 2),
    ]
    values += [
        (1, 2, 3, 4),
        [],
        {},
        {"a": [1] * 5000},
        "m" * 70_000,
        [f"text {number}" for number in range(70_000)],
    ]
    values += [LogError("an object"), foreign_runs.EPOCH, bytearray(b"")] if protocol < 5 else []
    pickled = pickle.dumps([values, values], protocol=protocol)
    demand_bounded(pickled)
    with pytest.raises(LogError, match=r"ends early|announces"):
        demand_bounded(pickled[:-1])


def test_one_long_text_in_many_samples_is_cut(tmp_path):
    samples = [{**SAMPLE, "index": number, "group_index": "g" * 100_000} for number in range(1000)]
    long = samples[0]["group_index"]
    samples = [{**sample, "group_index": long, "tokens": list(range(99))} for sample in samples]
    stored(tmp_path / "rollout_0.pt", pickle.dumps({"rollout_id": 1, "samples": samples}, protocol=2))
    from sglang_instrument.analysis import open_run

    groups = open_run(tmp_path).digest.requests["group"]
    assert len(groups) == 1000
    assert groups.str.len_chars().max() == 256


@pytest.mark.parametrize("ending", [".zst", ".gz"])
def test_a_log_that_unpacks_to_hundreds_of_times_its_bytes_is_cut_there(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(regular_files, "_ANY_RATIO_BYTES", 2**20)
    lines = b'{"event": "a"}\n' * 2_000_000
    path = tmp_path / f"worker_0.jsonl{ending}"
    path.write_bytes(zstandard.compress(lines) if ending == ".zst" else gzip.compress(lines, mtime=0))
    with open_log(path) as stream, pytest.raises(OSError, match="unpacks to more than 500 times"):
        list(iter(lambda: stream.read(2**16), b""))
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 30_000_000, mtime=0))
    with pytest.raises((OSError, LogError), match="unpacks to more than 500 times"):
        list(read_events(trace, Header()))
