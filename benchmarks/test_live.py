"""Measure what following a run costs: processor, memory, how far behind, and how fast the terminal draws."""

import asyncio
import json
import os
import subprocess
import sys
import time

import pytest
from rounds import HERE, save, table

from sglang_instrument.testing import synthetic_run

sys.path.insert(0, str(HERE.parent / "tests/support"))
from live_writer import LiveRun

EVENTS_A_SEC = 50_000
SECONDS = float(os.environ.get("BENCH_LIVE_SECONDS", "30"))  # the whole step takes 18 s
WORKERS, REQUESTS = 64, 512
CORE, PEAK_MB, BEHIND_SEC, DRAW_MS = 0.5, 300, 3.0, 200
WATCHED_SEC, WATCHING_CORE = float(os.environ.get("BENCH_WATCHED_SECONDS", "120")), 0.1
MANY_WORKERS, MANY_REQUESTS = 1000, 1_000_000


def test_it_follows_fifty_thousand_events_a_second(tmp_path, show):
    made = synthetic_run(tmp_path / "made", steps=1, workers=WORKERS, requests=REQUESTS)
    lines = in_order(made)[: round(EVENTS_A_SEC * SECONDS)]
    target = tmp_path / "live" / "exp"
    target.mkdir(parents=True)
    command = [sys.executable, str(HERE / "following.py"), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as follower:
        assert follower.stdout.readline() == "ready\n"
        written = write_at(lines, target, EVENTS_A_SEC)
        out, _ = follower.communicate("end\n")
    seen = [json.loads(line) for line in out.splitlines()]
    assert seen[-1]["records"] > len(lines) * 0.99
    took = written[-1][0] - written[0][0]
    at_end = [snapshot for snapshot in seen if snapshot["at"] <= written[-1][0]][-1]
    core = (at_end["cpu_sec"] - seen[0]["cpu_sec"]) / (at_end["at"] - seen[0]["at"])
    behind = max(behind_sec(written, snapshot) for snapshot in seen)
    rate = len(lines) / took
    row = (
        f"{rate:,.0f}",
        f"{core:.2f}",
        f"{seen[-1]['analyst_sec']:.1f}",
        f"{seen[-1]['analyst_mb']:.0f}",
        f"{seen[-1]['peak_mb']:.0f}",
        f"{behind:.1f}",
    )
    columns = ("events/s", "cores", "analysing the step, s of CPU", "its peak MB", "peak MB", "most s behind")
    show(table(f"following {WORKERS} workers for {took:.0f} s", columns, [row]))
    save("live", [row], seen=seen, written=written)
    assert rate > 0.9 * EVENTS_A_SEC
    assert core <= CORE
    assert seen[-1]["peak_mb"] <= PEAK_MB
    assert behind <= BEHIND_SEC


def test_watching_short_steps_takes_little(tmp_path, show):
    command = [sys.executable, str(HERE / "watched_steps.py"), str(tmp_path), str(WATCHED_SEC)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    core, step_ms = seen["cpu_sec"] / seen["sec"], seen["cpu_sec"] / seen["steps"] * 1e3
    row = (
        seen["steps"],
        f"{seen['sec'] / seen['steps']:.2f}",
        f"{core:.3f}",
        f"{step_ms:.0f}",
        WATCHING_CORE,
    )
    columns = ("steps", "s a step", "cores", "CPU ms a step", "bound, cores")
    show(table("`watch` and the follower of a tracker beside short steps", columns, [row]))
    save("live_watched", [row], seen=seen)
    assert core <= WATCHING_CORE


def in_order(folder):
    """Return (file, line) of a run, by time."""
    lines = []
    for path in folder.rglob("*.jsonl"):
        name = str(path.relative_to(folder))
        lines += [(line[14:40], name, line) for line in path.read_bytes().splitlines(keepends=True)]
    return [(name, line) for _, name, line in sorted(lines)]


def write_at(lines, target, rate):
    """Append the lines at a rate; return when how many records were written, without control records."""
    begun, position, records, written = time.time(), 0, 0, []
    while position < len(lines):
        due = min(len(lines), int((time.time() - begun) * rate) + 1)
        by_file = {}
        for name, line in lines[position:due]:
            by_file.setdefault(name, []).append(line)
        for name, piece in by_file.items():
            path = target / name
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as file:
                file.write(b"".join(piece))
        records += sum(b'"duration_sec"' in line or b'"task"' in line for _, line in lines[position:due])
        position = due
        written.append((time.time(), records))
        time.sleep(0.1)
    return written


def behind_sec(written, seen):
    """Return how long before a snapshot as many lines were written as it has."""
    missing = [time_sec for time_sec, lines in written if lines > seen["records"] and time_sec <= seen["at"]]
    return seen["at"] - min(missing) if missing else 0.0


def with_open_requests(folder, workers, requests):
    """Write a step in which so many requests of each worker are open."""
    run = LiveRun(folder)
    files = [run.open(1, rank) for rank in range(workers)]
    for file in files:
        begun = [
            file.line("turn_start", 1, request_id=f"{file.worker}-{number}", turn=0)
            for number in range(requests)
        ]
        file.raw("".join(begun))
        say_open(file, 2.0, requests)
    return files


def say_open(file, age_sec, requests):
    oldest = [
        {"event": "tool_execution", "request_id": f"{file.worker}-{number}", "turn": 0, "age_sec": age_sec}
        for number in range(5)
    ]
    file.open_now(age_sec, {"turn_end": requests - requests // 4, "tool_execution": requests // 4}, oldest)


def test_it_draws_at_once(tmp_path, show):
    files = with_open_requests(tmp_path / "exp", WORKERS, REQUESTS)
    rounds, drawn = asyncio.run(draw(tmp_path / "exp", files))
    rows = [
        (name, f"{sorted(values)[len(values) // 2]:.0f}", f"{max(values):.0f}", bound)
        for name, values, bound in (("a round of the follower", rounds, ""), ("drawing", drawn, DRAW_MS))
    ]
    show(table(f"{WORKERS} workers x {REQUESTS} requests", ("", "median ms", "longest ms", "bound"), rows))
    save("live_draws", rows)
    assert max(drawn) <= DRAW_MS


async def draw(folder, files):
    """Return the milliseconds of CPU of rounds of the follower, and of drawing what changed."""
    from sglang_instrument.live.follower import Follower
    from sglang_instrument.live.terminal.app import Terminal

    follower = Follower(folder, with_done=False)
    follower.catch_up()
    app = Terminal(follower)
    rounds, drawn = [], []
    async with app.run_test(size=(160, 50)) as pilot:
        for number in range(20):
            for file in files:
                file.request(f"{file.worker}-{5 + number}", 3 + number, 2)
                say_open(file, 3.0 + number, REQUESTS - 6 - number)
            await asyncio.sleep(0.3)
            begun = time.process_time()
            follower.round()
            rounds.append((time.process_time() - begun) * 1e3)
            begun = time.process_time()
            app.draw()
            await pilot.pause()
            drawn.append((time.process_time() - begun) * 1e3)
    return rounds, drawn


@pytest.mark.parametrize(("workers", "requests"), [(1, MANY_REQUESTS), (MANY_WORKERS, 100)])
def test_many_requests_and_many_workers_are_followed(tmp_path, show, workers, requests):
    with_open_requests(tmp_path / "exp", workers, requests)
    command = [sys.executable, str(HERE / "following.py"), str(tmp_path / "exp")]
    done = subprocess.run(command, input="end\n", capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout.splitlines()[-1])
    row = (
        f"{workers:,}",
        f"{requests:,}",
        f"{seen['cpu_sec']:.1f}",
        f"{seen['peak_mb']:.0f}",
        f"{seen['round_ms']:.0f}",
    )
    columns = ("workers", "open requests each", "CPU s to read", "peak MB", "a round ms")
    show(table("a large step", columns, [row]))
    save(f"live_{workers}", [row])
    assert seen["open"] == workers * requests
    assert seen["peak_mb"] <= PEAK_MB
