"""Ids that a generator binds hold for its consumer, as context variables do, and no longer than its block."""

import asyncio
import contextlib
import gc
import threading

import pytest

from sglang_instrument import bind, event, step
from sglang_instrument.recording.measure.scopes import scopes
from sglang_instrument.testing import records


def items(request="generator", count=3):
    with bind(request_id=request):
        yield from range(count)


async def async_items(request="generator"):
    with bind(request_id=request):
        for number in range(3):
            yield number


def requests_of(recorded):
    return [(record["event"], record.get("extra", {}).get("request_id")) for record in recorded]


def test_the_consumer_of_a_generator_has_its_ids_until_the_block_ends():
    with records() as recorded:
        for _ in items(count=2):
            event("inside")
        event("after")
    assert requests_of(recorded) == [("inside", "generator"), ("inside", "generator"), ("after", None)]


def test_the_body_of_a_context_manager_that_binds_has_its_ids():
    @contextlib.contextmanager
    def ids():
        yield from items("managed", 1)

    @contextlib.asynccontextmanager
    async def async_ids():
        with bind(request_id="managed"):
            yield

    async def body():
        async with async_ids():
            event("inside")
        event("after")

    with records() as recorded:
        with ids():
            event("inside")
        event("after")
        asyncio.run(body())
    assert requests_of(recorded) == [("inside", "managed"), ("after", None)] * 2


def test_a_generator_that_ends_inside_a_block_of_its_consumer_leaves_that_block_bound():
    with records() as recorded:
        generator = items()
        next(generator)
        with bind(request_id="consumer"):
            generator.close()
            event("inside")
        event("after")
    assert requests_of(recorded) == [("inside", "consumer"), ("after", None)]


def test_generators_that_end_in_another_order_unbind_their_own_ids():
    with records() as recorded:
        first, second, third = items("first"), items("second"), items("third")
        for generator in (first, second, third):
            next(generator)
        first.close()
        event("third is open")
        third.close()
        event("second is open")
        second.close()
        event("after")
    assert requests_of(recorded) == [
        ("third is open", "third"),
        ("second is open", "second"),
        ("after", None),
    ]


def test_the_step_of_a_generator_is_open_until_its_own_block_ends():
    def steps(*numbers):
        for number in numbers:
            with step(number):
                yield number

    def open_steps():
        return {scope.step for scope in scopes() if scope.open}

    first, second = steps(1, 3), steps(2)
    next(first)
    next(second)
    next(first)  # ends the block of step 1, begins that of step 3
    assert open_steps() == {2, 3}
    second.close()
    assert open_steps() == {3}
    first.close()
    assert open_steps() == set()


def test_a_block_inside_which_a_generator_was_left_suspended_unbinds_what_that_bound():
    with records() as recorded:
        with bind(request_id="consumer"):
            generator = items()
            next(generator)
        event("after")
        generator.close()
        event("at last")
    assert requests_of(recorded) == [("after", None), ("at last", None)]


def test_a_thread_that_closes_a_generator_unbinds_the_ids_where_they_are_bound():
    with records() as recorded:
        generator = items()
        next(generator)
        closing = threading.Thread(target=generator.close)
        closing.start()
        closing.join(600)
        event("after")
        with bind(turn=1):
            event("turn")
    assert requests_of(recorded) == [("after", None), ("turn", None)]


@pytest.mark.parametrize("close", ["collected", "closed by another task", "closed by the loop"])
def test_the_ids_of_an_async_generator_that_was_not_exhausted_are_unbound_in_its_consumer(close):
    async def consume():
        generator = async_items()
        async for _ in generator:
            break
        event("inside")
        if close == "closed by another task":
            await asyncio.create_task(generator.aclose())
        elif close == "closed by the loop":
            await asyncio.get_running_loop().shutdown_asyncgens()
        del generator
        gc.collect()
        for _ in range(3):  # the loop closes a collected one in a task of its own
            await asyncio.sleep(0)
        event("after")
        with bind(turn=1):
            event("turn")

    with records() as recorded:
        asyncio.run(consume())
    assert requests_of(recorded) == [("inside", "generator"), ("after", None), ("turn", None)]


def test_a_task_that_began_inside_an_async_generator_keeps_the_ids_after_its_end():
    async def work(may_go):
        await may_go.wait()
        event("task")

    async def generator(may_go, tasks):
        with bind(request_id="generator"):
            tasks.append(asyncio.create_task(work(may_go)))
            yield 1

    async def consume():
        may_go, tasks = asyncio.Event(), []
        async for _ in generator(may_go, tasks):
            break
        gc.collect()
        for _ in range(3):
            await asyncio.sleep(0)
        may_go.set()
        await tasks[0]
        event("after")

    with records() as recorded:
        asyncio.run(consume())
    assert requests_of(recorded) == [("task", "generator"), ("after", None)]
