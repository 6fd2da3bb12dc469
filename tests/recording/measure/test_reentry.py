"""A span object that is entered more than once records each block as a span of its own."""

import asyncio
import copy
import threading
import time

import pytest
from logged import read_records, recorded_events

import sglang_instrument
from sglang_instrument import span, step
from sglang_instrument.recording.measure.reentry import AGAIN
from sglang_instrument.recording.measure.spans import OPEN


@pytest.fixture(params=["parse", "tool_execution", "total_step_duration"])  # of each class of spans
def event(request):
    return request.param


@pytest.fixture
def recorded(install, event):
    """Return a function that ends the run and returns the records of its spans, without a late loop's."""
    folder = install()

    def end():
        assert not AGAIN
        assert not OPEN
        sglang_instrument.uninstall()
        records = [record for file in read_records(folder).values() for record in recorded_events(file)]
        return [record for record in records if record["event"] == event]

    return end


def test_blocks_after_one_another(recorded, event):
    timed = span(event, given=1)
    with timed as first:
        first.add(added=1)
        time.sleep(0.05)
    entered = time.perf_counter()
    with timed as second:
        assert second is not timed
        second.add(more=2)
    around_sec = time.perf_counter() - entered
    assert first is timed
    assert first.duration_sec >= 0.05
    assert second.duration_sec <= around_sec
    records = recorded()
    assert [record["extra"] for record in records] == [{"given": 1, "added": 1}, {"given": 1, "more": 2}]
    assert records[0]["start_us"] < records[1]["start_us"]
    assert records[0]["duration_sec"] >= 0.05
    assert records[1]["duration_sec"] <= around_sec + 1e-6  # logs have whole microseconds


def test_a_block_within_a_block(recorded, event):
    timed = span(event)
    with timed:
        time.sleep(0.05)
        entered = time.perf_counter()
        with timed:
            timed.add(inner=True)
            assert timed.duration_sec <= time.perf_counter() - entered  # of the inner block alone
            time.sleep(0.05)
        timed.add(outer=True)
        time.sleep(0.05)
    inner, outer = recorded()
    assert (inner["extra"], outer["extra"]) == ({"inner": True}, {"outer": True})
    assert outer["duration_sec"] >= inner["duration_sec"] + 0.05
    assert outer["start_us"] <= inner["start_us"]


def test_an_exception_is_that_of_its_block(recorded, event):
    timed = span(event)
    with timed:
        pass
    with pytest.raises(KeyError), timed:
        raise KeyError
    assert [record.get("error") for record in recorded()] == [None, "KeyError"]


def test_threads_that_share_an_object(recorded, event):
    timed, barrier = span(event), threading.Barrier(4)

    def work(number):
        with timed as block:
            barrier.wait()
            timed.add(number=number)
            barrier.wait()
            time.sleep(number / 50)
            assert block.extra == {"number": number}

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = recorded()
    assert sorted(record["extra"]["number"] for record in records) == [0, 1, 2, 3]
    assert len({record["task"] for record in records}) == len(records) == 4


def test_tasks_that_share_an_object(recorded, event):
    timed = span(event)

    async def work(number):
        async with timed as block:
            await asyncio.sleep(0.01)
            block.add(number=number)
            await asyncio.sleep(0.05 - number / 100)

    async def main():
        await asyncio.gather(*(work(number) for number in range(4)))

    asyncio.run(main())
    records = recorded()
    assert sorted(record["extra"]["number"] for record in records) == [0, 1, 2, 3]
    assert len({record["task"] for record in records}) == 4


def test_the_ids_are_those_of_each_block(recorded, event):
    timed = span(event)
    for number in (1, 2):
        with step(number), timed:
            pass
    # The first block has the ids of the moment in which the object was made, as its start.
    assert [record["step"] for record in recorded()] == [0, 2]


def test_while_nothing_is_installed_it_may_be_entered_again_as_well(event):
    timed = span(event)
    for _ in range(3):
        with timed, timed:
            pass
    assert not AGAIN
    with copy.copy(timed) as block:
        assert block.event == event
