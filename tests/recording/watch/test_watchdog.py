"""A span that does not end is reported while it hangs, with its stack."""

import asyncio
import json
import math
import threading
import time

from awaited import wait_for

from sglang_instrument import bind, instrument, span
from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.watch.hangs import Watchdog
from sglang_instrument.testing import records


class Pages:
    """Stands in for the disk: decodes and keeps the watchdog's lines."""

    def __init__(self):
        self.lines = []

    def write(self, scope, line, count):
        self.lines.append(json.loads(line))


def look_for(watchdog, seconds, lines=1):
    """Run the watchdog for at least this long and until there are so many lines."""
    pages, ends = Pages(), time.monotonic() + seconds

    def has_looked_enough():
        watchdog.look(pages)
        return time.monotonic() >= ends and len(pages.lines) >= lines

    wait_for(has_looked_enough, lambda: f"{lines} lines expected: {pages.lines}", every_sec=0.005)
    return pages.lines


def test_an_open_span_is_reported_when_it_is_old_and_at_each_doubling():
    watchdog = Watchdog(LineEncoder(Clock()), first_age_sec=0.05)
    with records(), bind(step=4, worker=1, request_id="r", turn=2), span("tool_execution"):
        reports = look_for(watchdog, 0.25)
    ages = [report["extra"]["spans"][0]["age_sec"] for report in reports]
    assert 1 <= len(ages) <= 1 + math.log2(ages[-1] / 0.05)
    assert all(age >= 0.05 * 2**number for number, age in enumerate(ages))
    (first,) = reports[0]["extra"]["spans"]
    assert (first["event"], first["request_id"], first["turn"]) == ("tool_execution", "r", 2)
    assert (reports[0]["step"], reports[0]["workid"]) == (4, 1)


def test_the_report_says_where_a_waiting_coroutine_stands():
    watchdog = Watchdog(LineEncoder(Clock()), first_age_sec=0.02)
    lines = []

    async def never_ending_tool():
        with span("tool_execution"):
            await asyncio.Event().wait()

    async def run():
        task = asyncio.create_task(never_ending_tool())
        await asyncio.sleep(0)
        looking = threading.Thread(target=lambda: lines.extend(look_for(watchdog, 0.1)))
        looking.start()
        await asyncio.to_thread(looking.join)
        task.cancel()

    with records():
        asyncio.run(run())
    stack = lines[0]["extra"]["spans"][0]["stack"]
    assert any(place.endswith("never_ending_tool") for place in stack)


def test_the_report_follows_a_coroutine_whose_awaits_are_counted():
    watchdog = Watchdog(LineEncoder(Clock()), first_age_sec=0.02)
    lines = []

    @instrument(phase="tool")
    async def counted():
        await inner()

    async def inner():
        await asyncio.Event().wait()

    async def run():
        task = asyncio.create_task(counted())
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: lines.extend(look_for(watchdog, 0.1)))
        task.cancel()

    with records():
        asyncio.run(run())
    assert any(place.endswith(" inner") for place in lines[0]["extra"]["spans"][0]["stack"])


def test_a_span_that_ended_is_not_reported_and_not_remembered():
    watchdog = Watchdog(LineEncoder(Clock()), first_age_sec=0.02)
    with records():
        for _ in range(3):
            with span("tool_execution"):
                look_for(watchdog, 0.05)
        assert not look_for(watchdog, 0.05, lines=0)
    assert not watchdog._reported


def test_a_report_of_many_tasks_goes_through_those_of_a_loop_once(monkeypatch):
    watchdog = Watchdog(LineEncoder(Clock()), first_age_sec=0.02)
    asked, all_tasks = [], asyncio.all_tasks
    monkeypatch.setattr(asyncio, "all_tasks", lambda loop: asked.append(loop) or all_tasks(loop))

    async def hang(number):
        with span("tool_execution", number=number):
            await asyncio.Event().wait()

    async def run():
        tasks = [asyncio.create_task(hang(number)) for number in range(30)]
        await asyncio.sleep(0)  # all of them wait now
        await asyncio.sleep(0.05)  # and are older than the watchdog's first age
        pages = Pages()
        await asyncio.to_thread(watchdog.look, pages)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return pages.lines

    with records():
        (report,) = asyncio.run(run())
    assert report["extra"]["open"] == 30
    assert all(" hang" in "".join(open_span["stack"]) for open_span in report["extra"]["spans"])
    assert len(asked) == 1


def test_the_report_names_the_tool_and_the_innermost_frame_of_the_program():
    watchdog = Watchdog(LineEncoder(Clock()), first_age_sec=0.02)
    lines = []
    answered = threading.Event()

    @instrument("tool_call", phase="tool", fields={"tool": "name", "length": "size(result)"})
    def call_tool(name):
        answered.wait()
        return "reply"

    with records() as recorded:
        calling = threading.Thread(target=call_tool, args=("search",))
        calling.start()
        lines = look_for(watchdog, 0.1)
        answered.set()
        calling.join()
    (reported,) = lines[0]["extra"]["spans"]
    assert reported["tool"] == "search"
    assert reported["place"].startswith(f"{__file__}:")
    assert reported["place"].endswith(" call_tool")
    assert reported["stack"][-1].endswith(" wait")  # of the standard library
    (call,) = [record for record in recorded if record["event"] == "tool_call"]
    assert call["extra"] == {"tool": "search", "length": 5}


def test_a_loop_that_is_blocked_is_reported_while_it_is_and_at_each_doubling():
    watchdog = Watchdog(LineEncoder(Clock()), first_age_sec=30.0)
    pages, unblocked = Pages(), threading.Event()

    def blocks():
        return [line["extra"] for line in pages.lines if line["event"] == "open_block"]

    def has_two():
        watchdog.look(pages)
        return len(blocks()) >= 2

    def look_until_two():
        try:
            wait_for(has_two, blocks, every_sec=0.02)
        finally:
            unblocked.set()

    async def blocked():
        await asyncio.sleep(0.1)  # the heart beats once
        with bind(request_id="r7"), span("reward_calculation"):
            looking = threading.Thread(target=look_until_two)
            looking.start()
            unblocked.wait()
            looking.join()

    async def innocent():
        with bind(request_id="r8"), span("tool_execution"):
            await asyncio.sleep(0.2)

    async def run():
        await asyncio.gather(innocent(), blocked())

    with records(watch_loops=True):
        asyncio.run(run())
    first, second = blocks()[:2]
    assert 1 <= first["age_sec"] < second["age_sec"]
    assert second["age_sec"] >= 2
    assert (first["in_span"], first["request_id"]) == ("reward_calculation", "r7")
    assert first["place"].endswith(" blocked")
    assert "r8" not in json.dumps(blocks())
