"""Regions can be expressions: calls of objects that no table can name, and the entering of `with` blocks."""

import asyncio
import contextlib
import gc
import pickle
import threading
import warnings

import pytest
from test_probe import program, records  # noqa: F401 - fixtures

from sglang_instrument.errors import TableError
from sglang_instrument.patching.probes.expression_probes import CallProbe
from sglang_instrument.patching.tables.reading import parse_table

EPISODES = """
    import asyncio
    class Group:
        def __init__(self, workflow, size):
            self.workflow, self.size = workflow, size
        async def run(self, data):
            return await asyncio.gather(*[self.workflow(data) for _ in range(self.size)])
    class Task:
        def make(self, task):
            async def execute():
                try:
                    return await task.workflow(task.data)
                except ValueError:
                    return None
            return execute
    def plain(f):
        return f(3) + f(4)
"""


async def double(number):
    """Stand in for the function that a user's setting names."""
    await asyncio.sleep(0)
    if number < 0:
        raise ValueError(number)
    return number * 2


class Job:
    def __init__(self, data, workflow=double):
        self.data, self.workflow = data, workflow


def test_each_call_is_measured_in_comprehensions_and_keeps_its_own_fields(records, program):  # noqa: F811
    region = {"event": "member", "call": "workflow", "bind": {"request_id": "self.size"}}
    region |= {"enter": {"data": "data"}, "exit": {"reply": "result"}}
    module = program(EPISODES, **{"Group.run": [region]})
    assert asyncio.run(module.Group(double, 3).run(21)) == [42, 42, 42]
    assert [record.extra for record in records] == [{"data": 21, "reply": 42}] * 3
    assert {record.context.request_id for record in records} == {3}


def test_a_call_in_a_nested_function_reads_the_arguments_around_it(records, program):  # noqa: F811
    region = {"event": "episode", "call": "workflow", "bind": {"request_id": "task.data"}}
    module = program(EPISODES, **{"Task.make": [region]})
    assert asyncio.run(module.Task().make(Job(5))()) == 10
    assert asyncio.run(module.Task().make(Job(-5))()) is None
    assert [(record.context.request_id, record.error) for record in records] == [
        (5, None),
        (-5, "ValueError"),
    ]


def test_an_argument_that_a_nested_function_binds_anew_is_not_read_there(records, program):  # noqa: F811
    source = """
    def outer(x, held):
        def inner():
            with held:
                x = 3
                return x
        return inner() + x
    """
    module = program(
        source, outer=[{"event": "entered", "entering": "held", "enter": {"x": "x", "held": "held"}}]
    )
    assert module.outer(2, contextlib.nullcontext()) == 5
    [span] = records
    assert sorted(span.extra) == ["held"]


def test_of_two_regions_on_one_call_the_first_is_the_outer(records, program):  # noqa: F811
    regions = [{"event": name, "call": "workflow"} for name in ("outer", "inner")]
    module = program(EPISODES, **{"Task.make": regions})
    asyncio.run(module.Task().make(Job(5))())
    assert [record.event for record in records] == ["inner", "outer"]


def test_what_is_not_awaited_is_left_alone(records, program):  # noqa: F811
    module = program(EPISODES, plain=[{"event": "call", "call": "f"}])
    assert module.plain(lambda number: number + 1) == 9
    assert records == []


def test_a_future_that_a_call_gives_stays_what_it_is(records, program):  # noqa: F811
    module = program(EPISODES, **{"Task.make": [{"event": "call", "call": "workflow"}]})
    given = object()

    async def run():
        future = asyncio.get_running_loop().create_future()
        future.set_result(7)
        return await module.Task().make(Job(5, lambda number: future))()

    assert asyncio.run(run()) == 7
    plain = program(EPISODES, plain=[{"event": "call", "call": "f"}]).plain
    assert plain(lambda number: Added(given)) == [given, given]
    assert records == []


class Added:
    """Stands in for an ObjectRef of Ray: it can be awaited, and used otherwise."""

    def __init__(self, *parts):
        self.parts = parts

    def __await__(self):
        raise AssertionError("nobody awaits it")

    def __add__(self, other):
        return [*self.parts, *other.parts]


def test_a_call_that_never_starts_leaves_nothing_behind(records, program):  # noqa: F811
    region = [{"event": "outer", "call": "workflow"}, {"event": "inner", "call": "workflow"}]
    module = program(EPISODES, **{"Group.run": region})

    async def cancel_at_once():
        running = asyncio.ensure_future(module.Group(double, 2).run(1))
        await asyncio.sleep(0)  # the coroutines are tasks now; none has started
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(cancel_at_once())
        gc.collect()


def test_a_call_with_wrong_arguments_fails_where_it_is_called(records, program):  # noqa: F811
    source = "def make(f, *args):\n        made = f(*args)\n        return made"
    regions = [{"event": "outer", "call": "f"}, {"event": "inner", "call": "f"}]
    make = program(source, make=regions).make
    with pytest.raises(TypeError, match=r"double\(\) takes 1 positional argument but 2 were given"):
        make(double, 1, 2)
    assert records == []


def test_a_call_that_is_never_awaited_warns_as_before(records, program):  # noqa: F811
    regions = [{"event": "outer", "call": "f"}, {"event": "inner", "call": "f"}]
    make = program("def make(f, x):\n        return f(x)", make=regions).make
    with pytest.warns(RuntimeWarning, match="coroutine 'double' was never awaited") as warned:
        make(double, 1)
    assert len(warned) == 1
    assert records == []


def test_a_task_made_of_a_measured_call_is_called_as_it_was(records, program):  # noqa: F811
    module = program(
        "def make(f, x):\n    return f(x)\n".replace("\n", "\n    ").strip(" "),
        make=[{"event": "call", "call": "f"}],
    )
    coroutine = module.make(double, 1)
    assert (coroutine.__name__, coroutine.__qualname__) == ("double", "double")
    assert asyncio.run(coroutine) == 2


LOCKS = """
    async def work(gate, log):
        async with gate:
            log.append("in")
            return len(log)
    def hold(lock):
        with lock as got:
            return got
"""


def test_how_long_a_block_takes_to_be_entered_is_measured_and_not_its_body(records, program):  # noqa: F811
    module = program(LOCKS, work=[{"event": "wait", "entering": "gate", "enter": {"n": "size(log)"}}])

    async def two():
        gate, log = asyncio.Semaphore(1), []
        await gate.acquire()
        waiting = asyncio.ensure_future(module.work(gate, log))
        await asyncio.sleep(0)
        assert records == []
        log.append("held")
        gate.release()
        return await waiting, gate.locked()

    assert asyncio.run(two()) == (2, False)
    [wait] = records
    assert (wait.event, wait.extra) == ("wait", {"n": 0})


def test_entering_gives_what_the_context_gives_and_leaves_it_again(records, program):  # noqa: F811
    module = program(LOCKS, hold=[{"event": "wait", "entering": "lock", "exit": {"got": "result"}}])
    lock = threading.Lock()
    assert module.hold(lock) is True
    assert not lock.locked()
    assert [(record.event, record.extra) for record in records] == [("wait", {"got": True})]


class EitherLock:
    """Stands in for a lock or client that supports `with` and `async with`."""

    def __enter__(self):
        return "entered"

    def __exit__(self, *exception):
        return None

    async def __aenter__(self):
        return "entered"

    async def __aexit__(self, *exception):
        return None


def test_what_can_be_entered_both_ways_still_can(records, program):  # noqa: F811
    entering = [{"event": "wait", "entering": "lock | gate"}]
    module = program(LOCKS, hold=entering, work=entering)
    assert module.hold(EitherLock()) == "entered"
    assert asyncio.run(module.work(EitherLock(), [])) == 1
    assert [record.event for record in records] == ["wait", "wait"]


def test_what_is_no_context_manager_fails_as_before(records, program):  # noqa: F811
    module = program(LOCKS, hold=[{"event": "wait", "entering": "lock"}])
    with pytest.raises((TypeError, AttributeError), match=r"context manager|__enter__"):
        module.hold(3)


def test_probes_of_expressions_are_pickled_by_their_region(records, program):  # noqa: F811
    module = program(EPISODES, **{"Group.run": [{"event": "member", "call": "workflow"}]})
    held = [constant for code in nested(module.Group.run.__code__) for constant in code.co_consts]
    [probe] = [constant for constant in held if isinstance(constant, CallProbe)]
    assert type(pickle.dumps(probe)) is bytes


def nested(code):
    yield code
    for constant in code.co_consts:
        if hasattr(constant, "co_consts"):
            yield from nested(constant)


@pytest.mark.parametrize("more", [{"emit": "enter"}, {"generator": True}, {"capture": {"x": "f(y)"}}])
def test_an_expression_can_be_no_instant_and_no_generator(more):
    patch = {"target": "m:f", "region": [{"event": "a", "call": "g", **more}]}
    with pytest.raises(TableError, match="call and entering make spans"):
        parse_table("t", {"trainer": "x", "patch": [patch]})


def test_before_counts_what_finished_in_the_region_around(records, program):  # noqa: F811
    module = program(
        """
        async def request(turns):
            for _ in range(turns):
                await turn()
        async def turn():
            pass
        """,
        request=[{"event": "request", "exit": {"turns": "size(inside.turn)"}}],
        turn=[{"event": "turn", "bind": {"turn": "size(before.turn)"}}],
    )

    async def two():
        await asyncio.gather(module.request(3), module.request(2))

    asyncio.run(two())
    turns = [record.context.turn for record in records if record.event == "turn"]
    assert sorted(turns) == [0, 0, 1, 1, 2]
