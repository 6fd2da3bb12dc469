"""Measure the time and memory of a summary, relative to one pass over the lines, and how they grow."""

import json
import os
import random
import subprocess
import sys
import time

import pytest
from rounds import HERE, ROUNDS, Spread, save, table

from sglang_instrument.testing import synthetic_run

ROUNDS = min(ROUNDS, 7)  # a round takes tens of seconds
FEWER_ROUNDS = 4  # of three answers, with the cache and without
LARGEST = int(os.environ.get("BENCH_EVENTS", "5000000"))  # 20000000 takes ten minutes and 5 GB of disk
BOUNDS = {"summary": 0.6, "from_cache": 0.15}  # of a plain pass; results.md says which are missed
PEAK_MB = 400
PEAK_LARGEST_MB = 4000
EVENTS_A_STEP = 13_400
ANSWERS = ("staleness", "waste")
START_MS = 150


def read(how, folder):
    command = [sys.executable, str(HERE / "reading.py"), how, str(folder)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = synthetic_run(tmp_path_factory.mktemp("run") / "exp", steps=100, workers=8, requests=64)
    read("from_cache", folder)  # makes the cache
    return folder


def test_a_summary_costs_a_fraction_of_one_plain_pass(run, show):
    rounds = [{how: read(how, run) for how in ("plain", *BOUNDS)} for _ in range(ROUNDS)]
    rows = []
    for how, bound in BOUNDS.items():
        ratio = Spread.of([costs[how]["wall_sec"] / costs["plain"]["wall_sec"] for costs in rounds])
        peak = max(costs[how]["peak_mb"] for costs in rounds)
        rows.append(
            (how, f"{ratio.median:.3f}", f"{ratio.low:.3f} .. {ratio.high:.3f}", bound, f"{peak:.0f}")
        )
    columns = ("", "of a plain pass", "quartiles", "bound", "peak MB of a process")
    lines = rounds[0]["plain"]["lines"]
    show(table(f"all of summary, {lines:,} lines in {os.cpu_count()} cores", columns, rows))
    save("analysis", rows, rounds=rounds)
    assert max(float(row[4]) for row in rows) <= PEAK_MB
    for how, median, _, bound, _ in rows:
        assert float(median) <= bound, how


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory):
    """The same, of a trainer one step behind: requests log versions and groups, the trainer its samples."""
    folder = synthetic_run(tmp_path_factory.mktemp("run") / "async", steps=100, workers=8, requests=64)
    made = []
    for step in range(1, 101):
        if made:
            taken = {"samples": made, "weight_version": step, "max_staleness": 1}
            write_instant(folder / f"step_{step}", step, "samples_consumed", taken)
        made = [
            name for path in folder.glob(f"step_{step}/worker_*.jsonl") for name in with_versions(path, step)
        ]
    read("from_cache", folder)
    return folder


def with_versions(path, step):
    """Add versions and groups to the requests of a file; return their ids."""
    lines, names = path.read_text().splitlines(), []
    for index, line in enumerate(lines):
        if '"event":"async_rollout_request_complete"' in line:
            record = json.loads(line)
            names.append(record["extra"]["request_id"])
            group = f"{step}-{path.stem}-{len(names) // 8}"
            record["extra"] |= {"weight_version": step, "first_weight_version": step, "group": group}
            lines[index] = json.dumps(record, separators=(",", ":"))
    path.write_text("\n".join(lines) + "\n")
    return names


def write_instant(folder, step, event, extra):
    """Write a trainer's file with one instant event, just after the step's first record."""
    with (folder / "worker_0.jsonl").open() as file:
        first = json.loads(file.readline())
    header = {**first, "extra": {**first["extra"], "pid": 1}, "workid": 0}
    body = {"timestamp": first["timestamp"], "event": event, "extra": extra, "workid": 0, "step": step}
    (folder / "trainer_0.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (header, body)))


def test_answers_of_asynchronous_training_take_no_longer_than_a_summary(asynchronous, show):
    pairs = {f"{answer}{cached}": cached for answer in ANSWERS for cached in ("", "_from_cache")}
    beside = {"": "summary", "_from_cache": "from_cache"}
    hows, order = [*pairs, *beside.values()], random.Random(0)
    rounds = [
        {how: read(how, asynchronous) for how in order.sample(hows, len(hows))}
        for _ in range(min(ROUNDS, FEWER_ROUNDS))
    ]

    def ratio(how, what):
        return Spread.of([costs[how][what] / costs[beside[pairs[how]]][what] for costs in rounds])

    rows = []
    for how in pairs:
        cpu, wall = ratio(how, "cpu_sec"), ratio(how, "wall_sec")
        spread = f"{cpu.low:.3f} .. {cpu.high:.3f}"
        rows.append((how, f"{cpu.median:.3f}", spread, 1.0, f"{wall.median:.3f}"))
    lines = rounds[0]["summary"]["lines"]
    columns = ("", "CPU, of the summary's", "quartiles", "bound", "wall time")
    show(
        table(f"answers of asynchronous training, {lines:,} events in {os.cpu_count()} cores", columns, rows)
    )
    save("analysis_asynchronous", rows, rounds=rounds)
    assert all(float(row[1]) <= row[3] for row in rows)


def test_time_grows_with_the_number_of_events(tmp_path, show):
    measured = []
    for events in (LARGEST // 20, LARGEST // 4, LARGEST):
        folder = synthetic_run(
            tmp_path / str(events), steps=max(1, events // EVENTS_A_STEP), workers=8, requests=64
        )
        measured.append(read("summary", folder))
    rows = [
        (
            f"{costs['lines']:,}",
            f"{costs['wall_sec']:.1f}",
            f"{costs['wall_sec'] / costs['lines'] * 1e6:.2f}",
            f"{costs['peak_mb']:.0f}",
        )
        for costs in measured
    ]
    show(table("summary by number of events", ("events", "s", "us an event", "peak MB"), rows))
    save("analysis_growth", rows, measured=measured)
    small, _, large = (costs["wall_sec"] / costs["lines"] for costs in measured)
    assert large <= 1.3 * small
    assert measured[-1]["peak_mb"] <= PEAK_LARGEST_MB


def test_the_help_of_summary_comes_at_once(show):
    command = [sys.executable, "-m", "sglang_instrument.cli.main", "summary", "--help"]
    times = []
    for _ in range(11):
        begun = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - begun)
    spent = Spread.of([seconds * 1000 for seconds in times])
    rows = [("summary --help", f"{spent.median:.0f}", f"{spent.low:.0f} .. {spent.high:.0f}", START_MS)]
    show(table("start, ms", ("", "ms", "quartiles", "bound"), rows))
    save("analysis_start", rows, times=times)
    assert spent.median <= START_MS
