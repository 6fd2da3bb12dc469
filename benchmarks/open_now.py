"""Measure what `open_now` costs: the CPU of one record, and for how long the GIL is held at once."""

import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

from sglang_instrument import bind, span
from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.disk import Disk
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.files import Files
from sglang_instrument.recording.measure.spans import OPEN
from sglang_instrument.recording.watch import open_now
from sglang_instrument.recording.watch.open_now import OpenNow

RECORDS = 20


def open_requests(requests):
    """Return a round with so many open requests, each in a turn, and every second one in a tool."""

    def run(folder):
        with ExitStack() as stack:
            for number in range(requests):
                with bind(step=12, worker=3, request_id=f"6b3f6a52-9d9e-4b7e-a8f5-{number:012}"):
                    stack.enter_context(span("request"))
                    with bind(turn=number % 7):
                        stack.enter_context(span("turn"))
                        if number % 2:
                            stack.enter_context(span("tool"))
            return {"spans": len(OPEN), **cost(folder)}

    return run


def cost(folder):
    """Return CPU times in milliseconds: of one record, and the longest between two releases of the GIL."""
    clock = Clock()
    disk = Disk(Files(Path(folder) / "open_now", clock, "run", dict), 64 * 2**20)
    disk.start()
    looking = OpenNow(LineEncoder(clock), every_sec=1e-9)
    written(looking, disk)  # the first one opens the file
    before = time.process_time_ns()
    for _ in range(RECORDS):
        written(looking, disk)
    spent_ms = (time.process_time_ns() - before) / 1e6
    held_ms = held(looking, disk)
    disk.do(disk.files.close)
    disk.end()
    disk.join(time.monotonic() + 30)
    return {"record_ms": spent_ms / RECORDS, "held_ms": held_ms}


def written(looking, disk):
    """Write a record; wait for the disk's thread without a busy loop, which would count as its cost."""
    looking.look(disk)
    while looking._on_its_way:
        time.sleep(0.001)


def held(looking, disk):
    """Return the longest CPU time in milliseconds from one `time.sleep(0)` to the next, over some records."""
    longest, since = [0.0], [time.thread_time_ns()]

    def sleep(sec):
        longest.append((time.thread_time_ns() - since[0]) / 1e6)
        time.sleep(sec)
        since[0] = time.thread_time_ns()

    open_now.time = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    try:
        for _ in range(RECORDS):
            since[0] = time.thread_time_ns()
            written(looking, disk)
            since[0] = time.thread_time_ns()
    finally:
        open_now.time = time
    return max(longest)


VARIANTS = {f"{requests} requests": open_requests(requests) for requests in (100, 1_000, 10_000, 40_000)}
