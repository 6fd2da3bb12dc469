"""Measure what `open_now` costs: the CPU of one record, and its longest piece of work with the GIL."""

import time
from contextlib import ExitStack
from pathlib import Path

from sglang_instrument import bind, span
from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.disk import Disk
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.files import Files
from sglang_instrument.recording.measure import open_spans
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
    """Return CPU times in milliseconds: of one record, and of the longest piece of work."""
    clock = Clock()
    disk = Disk(Files(Path(folder) / "open_now", clock, "run", dict), 64 * 2**20)
    disk.start()
    looking = OpenNow(LineEncoder(clock), every_sec=1e-9)
    longest = {"copy_ms": longest_of(open_spans, "_part"), "count_ms": longest_of(open_now, "_count")}
    looking.look(disk)  # the first one opens the file
    settle(looking, disk)
    for times in longest.values():
        times.clear()
    before = time.process_time_ns()
    for _ in range(RECORDS):
        looking.look(disk)
        settle(looking, disk)
    spent_ms = (time.process_time_ns() - before) / 1e6
    disk.do(disk.files.close)
    disk.end()
    disk.join(time.monotonic() + 30)
    return {"record_ms": spent_ms / RECORDS, **{name: max(times) for name, times in longest.items()}}


def settle(looking, disk):
    """Wait until the disk's thread has written the record; a busy wait would count as its cost."""
    while looking._on_its_way:
        time.sleep(0.001)


def longest_of(module, name):
    """Note the CPU time in milliseconds of each call of a function."""
    function, times = getattr(module, name), []

    def timed(*args):
        before = time.thread_time_ns()
        try:
            return function(*args)
        finally:
            times.append((time.thread_time_ns() - before) / 1e6)

    setattr(module, name, timed)
    return times


VARIANTS = {f"{requests} requests": open_requests(requests) for requests in (100, 1_000, 10_000, 40_000)}
