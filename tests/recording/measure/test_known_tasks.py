"""Asyncio tasks of every kind are told apart and stay unchanged."""

import asyncio
import gc
import weakref

import pytest

from sglang_instrument import bind, span
from sglang_instrument.recording.measure import tasks
from sglang_instrument.testing import records


class TaskOfSomebodys(asyncio.Task):
    pass


class TaskWithRoomForNothing(asyncio.Task):
    __slots__ = ()


TASKS = [asyncio.Task, TaskOfSomebodys, TaskWithRoomForNothing, asyncio.tasks._PyTask]


@pytest.fixture
def seen():
    with records() as captured:
        yield captured


def run_as(kind, *coroutines):
    """Run coroutines concurrently, each in a task of the given kind."""

    async def run():
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, coroutine, **more: kind(coroutine, loop=loop, **more))
        await asyncio.gather(*(loop.create_task(coroutine) for coroutine in coroutines))

    asyncio.run(run())


@pytest.mark.parametrize("kind", TASKS)
def test_all_spans_of_an_asyncio_task_have_one_number_of_their_own(seen, kind):
    async def turns(event):
        for _ in range(3):
            with span(event):
                await asyncio.sleep(0)

    run_as(kind, turns("a"), turns("b"))
    of = {event: {record["task"] for record in seen if record["event"] == event} for event in "ab"}
    assert len(of["a"]) == len(of["b"]) == 1
    assert of["a"] != of["b"]


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("before", [True, False])
def test_attributes_of_an_asyncio_task_stay_what_they_are(seen, kind, before):
    async def turn():
        task = asyncio.current_task()
        if before:
            task.mine = 1
        with span("a"):
            await asyncio.sleep(0)
        with span("b"):
            task.mine = getattr(task, "mine", 0) + 1
        with span("c"):
            assert task.mine == 1 + before
            del task.mine
            assert not hasattr(task, "mine")

    run_as(kind, turn())
    assert len({record["task"] for record in seen}) == 1


def test_what_is_set_on_an_asyncio_task_goes_with_it_even_if_it_leads_back(seen):
    gone = []

    async def child():
        with span("child"):
            await asyncio.sleep(0)

    async def parent():
        with bind(request_id="r1"), span("parent"):
            task = asyncio.current_task()
            task.children = [asyncio.create_task(child()) for _ in range(2)]
            task.itself = task
            await asyncio.gather(*task.children)
            gone.extend(weakref.ref(task_of_all) for task_of_all in (task, *task.children))

    asyncio.run(parent())
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
    assert len({record["task"] for record in seen}) == 3


def test_our_tasks_of_asyncio_tasks_are_released_when_no_loop_runs():
    async def turn():
        with span("a"):
            await asyncio.sleep(0)

    async def many():
        for _ in range(1000):
            await asyncio.create_task(turn())

    def objects():
        asyncio.run(many())
        tasks.forget_gone()
        gc.collect()
        return len(gc.get_objects())

    with records():  # it keeps the spans, which the garbage collector does not track
        objects()
        before = objects()
        assert objects() - before < 100  # of a thousand tasks


def test_a_task_at_the_address_of_an_earlier_one_has_a_new_number(seen):
    addresses = []

    async def turn():
        addresses.append(id(asyncio.current_task()))
        with span("a"):
            await asyncio.sleep(0)

    async def one_after_the_other():
        for _ in range(1000):
            await asyncio.create_task(turn())

    asyncio.run(one_after_the_other())
    assert len(set(addresses)) < 1000
    assert len({record["task"] for record in seen}) == 1000


def test_thousands_of_tasks_at_once_stay_what_they_are(seen):
    async def turn(number):
        watched = []
        for _ in range(3):
            with span("a", number=number):
                await asyncio.sleep(0)
            watched.append(weakref.ref(asyncio.current_task(), watched.remove))  # made before asyncio's own

    async def many():
        await asyncio.gather(*(turn(number) for number in range(3000)))

    asyncio.run(many())
    tasks.forget_gone()
    assert len({(record["task"], record["extra"]["number"]) for record in seen}) == 3000
    assert len({record["task"] for record in seen}) == 3000


def test_a_task_that_refuses_attributes_in_its_own_way_is_not_disturbed(seen):
    class Strict(asyncio.Task):
        def __init__(self, *arguments, **more):
            self.mine = 1
            super().__init__(*arguments, **more)

        def __setattr__(self, name, value):
            if "instrument" in name:
                raise ValueError(name)
            super().__setattr__(name, value)

        def __getattr__(self, name):
            raise (ValueError if "instrument" in name else AttributeError)(name)

    async def turn():
        with span("turn"):
            await asyncio.sleep(0)

    run_as(Strict, turn(), turn())
    assert [record["event"] for record in seen] == ["turn", "turn"]
