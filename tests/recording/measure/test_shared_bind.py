"""One `bind` object that several threads or tasks enter at once binds for each of them separately."""

import asyncio
import threading

import pytest

from sglang_instrument import bind, event
from sglang_instrument.recording.measure.context import CURRENT, UNBOUND
from sglang_instrument.recording.measure.scopes import Scope, scopes
from sglang_instrument.testing import records


def open_scopes() -> list[Scope]:
    return [scope for scope in scopes() if scope.open]


@pytest.mark.parametrize("first_out", [0, 1])
def test_two_threads_in_one_bind_leave_it_each_as_they_came(first_out):
    shared = bind(step=7, worker=2)
    both_in, turn = threading.Barrier(2), [threading.Event(), threading.Event()]
    left = {}

    def run(number):
        with shared:
            both_in.wait(600)
            assert turn[number].wait(600)
        left[number] = CURRENT.get()

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for number in (first_out, 1 - first_out):
        turn[number].set()
        threads[number].join(600)
    assert left == {0: UNBOUND, 1: UNBOUND}
    assert open_scopes() == []


def test_many_threads_that_enter_one_bind_at_a_time_lose_no_step():
    shared = bind(step=7)
    ready = threading.Barrier(8)
    wrong = []

    def run():
        ready.wait(600)
        for _ in range(200):
            with shared:
                if CURRENT.get().step != 7:
                    wrong.append("not bound")
            if CURRENT.get() is not UNBOUND:
                wrong.append("bound afterwards")

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert wrong == []
    assert open_scopes() == []


def test_tasks_that_interleave_in_one_bind_are_kept_apart():
    shared = bind(step=7, request_id="r")

    async def run(naps):
        with shared:
            for _ in range(naps):
                await asyncio.sleep(0)
            event("inside")
        event("outside")

    async def main():
        await asyncio.gather(run(3), run(1), run(2))

    with records() as seen:
        asyncio.run(main())
    assert [record["step"] for record in seen.of("inside")] == [7, 7, 7]
    assert [record.get("extra") for record in seen.of("outside")] == [None] * 3
    assert open_scopes() == []


def test_one_bind_entered_again_within_itself_is_left_twice():
    shared = bind(step=7)
    with shared:
        with shared:
            assert CURRENT.get().step == 7
        assert CURRENT.get().step == 7
    assert CURRENT.get() is UNBOUND
    assert open_scopes() == []
