"""Measure how long one event blocks its caller, and how long a recording event loop delays its coroutines."""

import asyncio
import time
from pathlib import Path

from stand_in import StandIn

from sglang_instrument import bind, span
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.watch.event_loop import LoopHeartbeat

EVENTS = 30_000
GAP_NS = 20_000  # of work between events
LOOP_SEC = 2.0
TASKS = 100


def quantiles(samples_ns):
    """Return the median and the tail in microseconds."""
    ordered = sorted(samples_ns)

    def quantile(share):
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000

    return {
        "p50_us": quantile(0.5),
        "p99_us": quantile(0.99),
        "p99_9_us": quantile(0.999),
        "max_us": quantile(1),
    }


def latencies(act):
    """Time many events one by one, with a little work in between."""
    samples, clock = [], time.perf_counter_ns
    for _ in range(EVENTS):
        start = clock()
        act()
        end = clock()
        samples.append(end - start)
        while clock() - end < GAP_NS:
            pass
    return quantiles(samples)


def one_span():
    with span("turn_engine_call"):
        pass


def spans(folder):
    with bind(step=12, worker=3, request_id="a", turn=2):
        return latencies(one_span)


def reference(folder):
    manager, path = StandIn(), str(Path(folder) / "step_12/worker_3.jsonl")

    def act():
        start = time.time()
        extra = {"request_id": "a", "turn": 2}
        manager.log(path, "turn_engine_call", time.time() - start, extra, 3, 12)

    return latencies(act)


def turns_of_a_loop(work):
    """Return how long a coroutine that is always ready waits to run, beside tasks that do `work`."""

    async def busy(ends):
        while time.perf_counter() < ends:
            work()
            await asyncio.sleep(0.005)

    async def waiting(ends):
        samples = []
        before = time.perf_counter_ns()
        while time.perf_counter() < ends:
            await asyncio.sleep(0)
            now = time.perf_counter_ns()
            samples.append(now - before)
            before = now
        return samples

    async def both():
        ends = time.perf_counter() + LOOP_SEC
        return (await asyncio.gather(waiting(ends), *(busy(ends) for _ in range(TASKS))))[0]

    samples = asyncio.run(both())
    return {**quantiles(samples), "over_5_ms": sum(sample > 5_000_000 for sample in samples)}


def loop_with_spans(folder):
    with bind(step=12, worker=3, request_id="a", turn=2):
        return turns_of_a_loop(one_span)


def stretches(folder):
    """Return the longest CPU times, in milliseconds, of the work for which recording blocks other threads.

    The work: encoding a chunk, which holds the GIL; a span on the loop's thread; a heartbeat. It is the CPU
    time of the thread, which other programs on the machine hardly change.
    """
    longest = dict.fromkeys(("chunk_ms", "span_ms", "beat_ms"), 0.0)

    def timed(what, function):
        def called(*args):
            before = time.thread_time_ns()
            try:
                return function(*args)
            finally:
                longest[what] = max(longest[what], (time.thread_time_ns() - before) / 1e6)

        return called

    patched = (
        (LineEncoder, "encode_chunk", "chunk_ms"),
        (LoopHeartbeat, "_beat", "beat_ms"),
    )
    before = [getattr(owner, name) for owner, name, _ in patched]
    for (owner, name, what), function in zip(patched, before, strict=True):
        setattr(owner, name, timed(what, function))
    try:
        with bind(step=12, worker=3, request_id="a", turn=2):
            turns_of_a_loop(timed("span_ms", one_span))
    finally:
        for (owner, name, _), function in zip(patched, before, strict=True):
            setattr(owner, name, function)
    return longest


VARIANTS = {
    "longest": stretches,
    "reference": reference,
    "span": spans,
    "nothing": lambda folder: turns_of_a_loop(int),
    "loop with spans": loop_with_spans,
}
