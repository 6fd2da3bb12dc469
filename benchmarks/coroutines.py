"""Measure the event loop's CPU time for 10,000 coroutines with five spans each around a sleep of 5 ms."""

import asyncio
import gc
import time
from pathlib import Path

from stand_in import StandIn

from sglang_instrument import bind, span

COROUTINES, SPANS, SLEEP_SEC = 10_000, 5, 0.005


async def without(request_id):
    for _ in range(SPANS):
        await asyncio.sleep(SLEEP_SEC)


async def with_spans(request_id):
    for _ in range(SPANS):
        with span("turn_engine_call"):
            await asyncio.sleep(SLEEP_SEC)


async def with_spans_of_a_request(request_id):
    with bind(request_id=request_id):
        await with_spans(request_id)


def with_reference(manager, path):
    async def coroutine(request_id):
        for turn in range(SPANS):
            start = time.time()
            await asyncio.sleep(SLEEP_SEC)
            extra = {"request_id": request_id, "turn": turn}
            manager.log(path, "turn_engine_call", time.time() - start, extra, 3, 12)

    return coroutine


def run(coroutine):
    """Return the CPU seconds of the loop's thread."""

    async def rollout():
        await asyncio.gather(*(coroutine(f"request {number}") for number in range(COROUTINES)))

    gc.collect()
    with bind(step=12, worker=3):
        before = time.thread_time()
        asyncio.run(rollout())
        return {"loop_sec": time.thread_time() - before}


def reference(folder):
    return run(with_reference(StandIn(), str(Path(folder) / "step_12/worker_3.jsonl")))


VARIANTS = {
    "nothing": lambda folder: run(without),
    "reference": reference,
    "span": lambda folder: run(with_spans),
    "span, request bound": lambda folder: run(with_spans_of_a_request),
}
