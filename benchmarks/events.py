"""Define the variants of one timed event. A round times a loop and returns nanoseconds per event."""

import asyncio
import datetime
import json
import time
from itertools import repeat
from pathlib import Path

import measured
from stand_in import StandIn

import sglang_instrument
from sglang_instrument import bind, span

EVENTS = 20_000
EXTRA = {"request_id": "6b3f6a52-9d9e-4b7e-a8f5-0f3a4f6f2d11", "turn": 2}


def cost(loop, twin):
    """Return CPU times of a loop minus its twin's: of its thread, and of the process until written."""
    twin(EVENTS // 10)
    before = time.thread_time_ns()
    twin(EVENTS)
    twin_ns = time.thread_time_ns() - before
    loop(EVENTS // 10)
    sglang_instrument.flush(30)
    whole, caller = time.process_time_ns(), time.thread_time_ns()
    loop(EVENTS)
    caller_ns = time.thread_time_ns() - caller
    sglang_instrument.flush(30)
    whole_ns = time.process_time_ns() - whole
    return {"caller_ns": (caller_ns - twin_ns) / EVENTS, "whole_ns": (whole_ns - twin_ns) / EVENTS}


def bound(loop, twin):
    """Measure with step, worker, request and turn bound."""

    def run(folder):
        with bind(step=12, worker=3, **EXTRA):
            return cost(loop, twin)

    return run


def nothing(n):
    for _ in repeat(None, n):
        pass


def reference(folder):
    manager, path = StandIn(), str(Path(folder) / "step_12/worker_3.jsonl")

    def loop(n):
        for _ in repeat(None, n):
            start = time.time()
            end = time.time()
            manager.log(path, "turn_engine_call", end - start, EXTRA, 3, 12)

    return cost(loop, nothing)


def dumps(folder):
    """Make a record with its time as a dict and encode it as JSON: the measure of the machine's speed."""

    def loop(n):
        for _ in repeat(None, n):
            json.dumps(
                {
                    "timestamp": datetime.datetime.now().isoformat(),
                    "event": "turn_engine_call",
                    "duration_sec": 0.123456789,
                    "extra": EXTRA,
                    "workid": 3,
                    "step": 12,
                }
            )

    return cost(loop, nothing)


def spans(n):
    for _ in repeat(None, n):
        with span("turn_engine_call"):
            pass


def spans_with_fields(n):
    for _ in repeat(None, n):
        with span("turn_engine_call", tokens=17, length=20, reason="stop"):
            pass


def watched_spans(n):
    for _ in repeat(None, n):
        with span("tool_execution"):
            pass


def calls(function):
    """Return a loop of calls; the function is looked up before the loop, for the function and its twin."""

    def loop(n):
        for _ in repeat(None, n):
            function()

    return loop


def awaits(function):
    event_loop = asyncio.new_event_loop()

    async def many(n):
        for _ in repeat(None, n):
            await function()

    return lambda n: event_loop.run_until_complete(many(n))


def both(function, twin):
    return bound(calls(function), calls(twin))


def both_awaited(function):
    return bound(awaits(function), awaits(measured.coroutine_twin))


VARIANTS = {
    "reference": reference,
    "json.dumps": dumps,
    "span": bound(spans, nothing),
    "span, three fields": bound(spans_with_fields, nothing),
    "span, watched": bound(watched_spans, nothing),
    "decorated function": both(measured.decorated, measured.rewritten_twin),
    "rewritten function": both(measured.rewritten, measured.rewritten_twin),
    "range": both(measured.ranged, measured.ranged_twin),
    "range, three fields": both(measured.ranged_with_fields, measured.ranged_twin),
    "decorated coroutine": both_awaited(measured.decorated_coroutine),
    "rewritten coroutine": both_awaited(measured.rewritten_coroutine),
}
