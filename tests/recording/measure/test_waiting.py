"""A coroutine's record has its running time on the event loop; in the rest it was suspended."""

import asyncio
import importlib.util
import sys
import time
import traceback

import pytest

from sglang_instrument import bind, instrument, span
from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.patching.tables.reading import parse_table
from sglang_instrument.testing import records

SOURCE = """
import asyncio, time

def hold(seconds):
    time.sleep(seconds)

class Numbers:
    def __init__(self, n): self.n = n
    def __aiter__(self): return self
    async def __anext__(self):
        self.n -= 1
        if self.n < 0: raise StopAsyncIteration
        await asyncio.sleep(0.02)
        return self.n

class Session:
    async def __aenter__(self):
        await asyncio.sleep(0.02)
        return self
    async def __aexit__(self, *exc):
        await asyncio.sleep(0.02)

async def plain(held, waits):
    await asyncio.sleep(waits)
    hold(held)
    return "done"

async def inner(held, waits):
    result = await plain(held, waits)
    return result

async def outer():
    hold(0.03)
    result = await inner(0.02, 0.05)
    await asyncio.gather(inner(0.01, 0.01), plain(0.01, 0.01))
    return result

async def loops():
    seen = [n async for n in Numbers(2)]
    async for n in Numbers(2):
        seen.append(n)
    async with Session() as session, Session():
        hold(0.01)
    return seen, session

async def fails(future):
    try:
        await future
    finally:
        hold(0.01)
"""

TABLE = {
    "trainer": "t",
    "package": "t",
    "module": "waiting_target",
    "patch": [{"target": name, "region": [{"event": name}]} for name in ("inner", "outer", "loops", "fails")],
}


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "waiting_target.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("waiting_target", path)
    module = sys.modules["waiting_target"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["waiting_target"]


@pytest.fixture
def patched(target):
    table = parse_table("t", TABLE)
    patcher = Patcher([table], make_probe=probes_for([r for patch in table.patches for r in patch.regions]))
    patcher.install()
    assert {site.state for site in patcher.results()} == {"found"}
    yield target
    patcher.uninstall()


def active(record):
    """Return the coroutine's running time; every record of a counted coroutine has it."""
    assert 0 <= record["active_sec"] <= record["duration_sec"]
    return record["active_sec"]


def test_running_and_suspended_time_are_told_apart_through_nested_coroutines(patched):
    with records() as seen:
        assert asyncio.run(patched.outer()) == "done"
    (outer,) = seen.of("outer")
    first, second = seen.of("inner")
    assert active(outer) >= 0.05
    assert outer["duration_sec"] - active(outer) >= 0.055
    assert active(first) >= 0.02
    assert first["duration_sec"] - active(first) >= 0.045
    assert second["duration_sec"] - active(second) >= 0.009


def test_async_for_and_async_with_are_counted(patched):
    with records() as seen:
        numbers, session = asyncio.run(patched.loops())
    assert numbers == [1, 0, 1, 0]
    assert type(session).__name__ == "Session"
    (loops,) = seen.of("loops")
    assert loops["duration_sec"] - active(loops) >= 8 * 0.019


def test_a_span_of_ones_own_inside_a_counting_coroutine_is_counted(patched):
    @instrument
    async def request():
        with span("mine"):
            time.sleep(0.02)
            await asyncio.sleep(0.05)

    with records() as seen:
        asyncio.run(request())
    for (record,) in (seen.of("mine"), seen.of("request")):
        assert active(record) >= 0.02
        assert record["duration_sec"] - active(record) >= 0.045


def test_a_coroutine_that_is_not_counted_has_no_active_sec():
    async def request():
        with span("mine"):
            await asyncio.sleep(0.01)
        await counted()
        with span("later"):
            await asyncio.sleep(0.01)

    @instrument
    async def counted():
        await asyncio.sleep(0.01)

    with records() as seen:
        asyncio.run(request())
    assert "active_sec" not in seen.of("mine")[0]
    assert "active_sec" in seen.of("counted")[0]
    assert "active_sec" not in seen.of("later")[0]


def test_concurrent_requests_do_not_count_each_others_time(patched):
    async def run():
        await asyncio.gather(*(request(index) for index in range(5)))

    @instrument
    async def request(index):
        with bind(request_id=index):
            await asyncio.sleep(0.01)
            time.sleep(0.02)
            await asyncio.sleep(0.01)

    with records() as seen:
        asyncio.run(run())
    for record in seen.of("request"):
        assert active(record) >= 0.02
    # Five coroutines run one after another; each waits for the others.
    begun = min(record["start_us"] for record in seen)
    ended = max(record["start_us"] + record["duration_sec"] * 1e6 for record in seen)
    assert sum(map(active, seen)) <= (ended - begun) / 1e6 + 0.001
    assert max(record["duration_sec"] for record in seen) >= 5 * 0.02


def test_a_cancellation_reaches_what_is_awaited(patched):
    reached = []

    async def deep():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reached.append("deep")
            await asyncio.sleep(0)
            raise

    async def run():
        task = asyncio.create_task(patched.fails(deep()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(patched.fails(deep()), 0.01)

    with records() as seen:
        asyncio.run(run())
    assert reached == ["deep", "deep"]
    assert [record["error"] for record in seen.of("fails")] == ["CancelledError"] * 2
    assert all(active(record) >= 0.009 for record in seen.of("fails"))


def test_tracebacks_are_those_of_the_unpatched_coroutines(target):
    async def broken():
        await asyncio.sleep(0)
        raise KeyError("x")

    def frames():
        try:
            asyncio.run(target.fails(broken()))
        except KeyError as error:
            return [
                (frame.filename, frame.lineno, frame.name, getattr(frame, "colno", None))
                for frame in traceback.extract_tb(error.__traceback__)[1:]
            ]

    before = frames()
    table = parse_table("t", TABLE)
    patcher = Patcher([table], make_probe=probes_for([r for patch in table.patches for r in patch.regions]))
    patcher.install()
    try:
        with records():
            assert frames() == before
    finally:
        patcher.uninstall()


def test_errors_of_misuse_are_the_interpreters_own(patched):
    async def run(awaitable):
        await patched.fails(awaitable)

    with records(), pytest.raises(TypeError, match="can't be used in 'await'"):
        asyncio.run(run(3))


def test_a_coroutine_that_nobody_finishes_is_closed_in_order(patched):
    closed = []

    async def deep():
        try:
            await asyncio.sleep(10)
        finally:
            closed.append("deep")

    async def run():
        coroutine = patched.fails(deep())
        task = asyncio.create_task(coroutine)
        await asyncio.sleep(0.01)
        return task

    with records():
        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(run())
        task.get_coro().close()
        loop.close()
        task._log_destroy_pending = False
    assert closed == ["deep"]


SUSPENDED_SEC = 0.2


def test_time_suspended_before_a_timeout_is_not_active_time(patched):
    @instrument
    async def tool():
        try:
            await asyncio.wait_for(asyncio.sleep(60), SUSPENDED_SEC)
        except asyncio.TimeoutError:
            time.sleep(0.02)

    @instrument
    async def cancelled_inside():
        task = asyncio.current_task()
        asyncio.get_running_loop().call_later(SUSPENDED_SEC, task.cancel)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            getattr(task, "uncancel", int)()
        time.sleep(0.05)

    @instrument
    async def request():
        await tool()
        await cancelled_inside()
        with span("held"):
            time.sleep(0.05)

    with records() as seen:
        asyncio.run(request())
    for event, held_sec in (("tool", 0.02), ("cancelled_inside", 0.05)):
        [record] = seen.of(event)
        assert active(record) >= held_sec
        assert record["duration_sec"] - active(record) >= SUSPENDED_SEC - 0.001
    assert active(seen.of("held")[0]) >= 0.05
    whole = seen.of("request")[0]
    assert whole["duration_sec"] - active(whole) >= 2 * SUSPENDED_SEC - 0.001


def test_static_and_class_methods_of_async_protocols_are_called_as_they_are(tmp_path):
    from sglang_instrument.recording.measure import waiting

    class Static:
        @staticmethod
        async def __aenter__():
            return "entered"

        @classmethod
        async def __aexit__(cls, *exception):
            return None

    async def run():
        async with waiting.waited_context(Static()) as entered:
            return entered

    assert asyncio.run(run()) == "entered"


@pytest.mark.parametrize("result", [None, 5, (1, 2), ValueError("as a value")])
def test_a_counted_coroutine_can_be_driven_as_an_iterator(result):
    from sglang_instrument.recording.measure import waiting
    from sglang_instrument.recording.measure.tasks import Task

    async def turn():
        await asyncio.sleep(0)
        return result

    for step in (next, lambda steps: steps.send(None), lambda steps: steps.__next__()):
        steps = waiting.waits(Task(1), turn())
        assert step(steps) is None
        with pytest.raises(StopIteration) as stopped:
            step(steps)
        assert stopped.value.value is result


def test_a_coroutine_that_a_debugger_traces_returns_what_it_returns():
    @instrument
    async def turn():
        await asyncio.sleep(0.001)
        return {"tokens": 7}

    def trace(frame, event, argument):
        return trace

    before = sys.gettrace()
    with records() as seen:
        sys.settrace(trace)
        try:
            assert asyncio.run(turn()) == {"tokens": 7}
        finally:
            sys.settrace(before)
    assert "error" not in seen.of("turn")[0]
    assert seen.of("turn")[0]["active_sec"] < seen.of("turn")[0]["duration_sec"]


class Ticks:
    """A custom awaitable that has neither throw() nor close()."""

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return None


def test_an_awaitable_without_throw_is_cancelled_from_outside(patched):
    async def run():
        task = asyncio.create_task(patched.fails(Ticks()))
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = patched.fails(Ticks())
        left.send(None)
        left.close()

    with records() as seen:
        asyncio.run(run())
    assert [record["error"] for record in seen.of("fails")] == ["CancelledError", "GeneratorExit"]
