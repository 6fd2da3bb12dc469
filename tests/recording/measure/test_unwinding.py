"""Exceptions, cancellations and closes inside a span behave as without the span."""

import asyncio

import pytest
from logged import read_records, recorded_events

import sglang_instrument
from sglang_instrument import bind, event, span, step
from sglang_instrument.recording.measure.spans import OPEN


@pytest.mark.parametrize(
    "kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]
)
@pytest.mark.parametrize("name", ["work", "tool_execution", "barrier_wait_duration"])
def test_an_exception_passes_a_span_unchanged_and_is_named(install, kind, name):
    folder = install()
    raised = kind("the prompt")
    with pytest.raises(kind) as seen, step(1), span(name):
        raise raised
    assert seen.value is raised
    assert seen.value.__context__ is None
    sglang_instrument.uninstall()
    (record,) = recorded_events(read_records(folder)["step_1/worker_0.jsonl"])
    assert record["error"] == kind.__name__
    assert "the prompt" not in str(record)
    assert not OPEN


def test_a_cancelled_request_says_so_and_stays_cancelled(install):
    folder = install()

    async def rollout():
        async def request():
            async with span("async_rollout_request_complete", request_id="r"):
                await asyncio.sleep(60)

        with step(1):
            task = asyncio.create_task(request())
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()

    asyncio.run(rollout())
    sglang_instrument.uninstall()
    records = recorded_events(read_records(folder)["step_1/worker_0.jsonl"])
    assert [record["error"] for record in records if "error" in record] == ["CancelledError"]


def test_a_generator_that_is_closed_or_collected_inside_a_span_ends_it(install):
    folder = install()

    def items():
        with span("items"):
            yield 1
            yield 2

    with step(1):
        closed = items()
        next(closed)
        closed.close()
        collected = items()
        next(collected)
        del collected
        assert list(items()) == [1, 2]
    sglang_instrument.uninstall()
    records = recorded_events(read_records(folder)["step_1/worker_0.jsonl"])
    assert [record.get("error") for record in records] == ["GeneratorExit", "GeneratorExit", None]


def test_an_asynchronous_generator_that_is_closed_inside_a_span_ends_it(install):
    folder = install()

    async def items():
        async with span("tool_execution"):
            yield 1

    async def rollout():
        with step(1):
            stream = items()
            assert await anext(stream) == 1
            await stream.aclose()

    asyncio.run(rollout())
    sglang_instrument.uninstall()
    records = recorded_events(read_records(folder)["step_1/worker_0.jsonl"])
    assert [record["error"] for record in records if record["event"] == "tool_execution"] == ["GeneratorExit"]


def test_a_step_in_which_training_fails_is_closed_all_the_same(install):
    folder = install()
    with pytest.raises(MemoryError), step(1), span("total_step_duration"), bind(request_id="r"):
        raise MemoryError
    sglang_instrument.uninstall()
    records = read_records(folder)["step_1/worker_0.jsonl"]
    assert [record["event"] for record in records][1:3] == ["total_step_duration", "step_closed"]


def test_a_block_that_ends_in_another_task_than_it_began_closes_its_step(install):
    folder = install()

    async def rollout():
        block = step(1)
        await asyncio.create_task(_enter(block))
        event("outside")
        await asyncio.create_task(_leave(block))

    asyncio.run(rollout())
    sglang_instrument.uninstall()
    files = read_records(folder)
    assert "step_closed" in [record["event"] for record in files["step_1/worker_0.jsonl"]]


async def _enter(block):
    block.__enter__()
    event("inside")


async def _leave(block):
    block.__exit__(None, None, None)
