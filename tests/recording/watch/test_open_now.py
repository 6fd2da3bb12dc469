"""While requests are open, each step's file says every two seconds what is open."""

import asyncio
import json
import math
import sys
import threading
import time

import hostile
import pytest
from awaited import wait_for

from sglang_instrument import bind, instrument, span, uninstall
from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.line_types import LONGEST_LINE
from sglang_instrument.recording.measure.spans import OPEN
from sglang_instrument.recording.safety import notices
from sglang_instrument.recording.watch.open_now import OpenNow
from sglang_instrument.testing import records


class Pages:
    """Stands in for the disk: decodes and keeps the lines; while it `hangs`, jobs wait."""

    def __init__(self):
        self.lines, self.jobs, self.hangs = [], [], False

    def write(self, scope, line, count):
        assert count == 0
        assert len(line) <= LONGEST_LINE
        self.lines.append(json.loads(line))

    def do(self, job):
        self.jobs.append(job)
        if not self.hangs:
            self.answer()

    def answer(self):
        self.hangs = False
        while self.jobs:
            self.jobs.pop(0)()


@pytest.fixture
def now():
    """Return the records of what is open now."""

    def look():
        pages = Pages()
        looking = OpenNow(LineEncoder(Clock()), every_sec=1e-9)
        time.sleep(1e-6)
        looking.look(pages)
        return pages.lines

    with records():
        yield look
    OPEN.clear()


def in_requests(*works, look):
    """Run each of `works` in a request of its own, all at once; look 20 ms after all of them wait."""

    async def request(number, work, over):
        with bind(step=4, worker=1, request_id=f"r{number}"), span("request"):
            await work(over.wait())

    async def run():
        over = asyncio.Event()
        tasks = [asyncio.create_task(request(*numbered, over)) for numbered in enumerate(works)]
        for _ in range(5):  # each task may start another
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        lines = await asyncio.to_thread(look)
        over.set()
        await asyncio.gather(*tasks)
        return lines

    return asyncio.run(run())


async def in_engine(waiting):
    with bind(turn=2), span("turn"):
        await waiting


async def in_tools(waiting):
    async def tool():
        with span("tool", name="search"):
            await task

    with bind(turn=1), span("turn"):
        task = asyncio.ensure_future(waiting)
        await asyncio.gather(tool(), tool())


async def in_nothing(waiting):
    await waiting


def test_a_record_counts_open_spans_and_says_where_the_requests_are(now):
    begun = time.monotonic()
    (line,) = in_requests(in_engine, in_tools, in_engine, in_nothing, look=now)
    assert (line["event"], line["step"], line["workid"]) == ("open_now", 4, 1)
    assert line["extra"]["open"] == {"request": 4, "turn": 3, "tool": 2}
    assert line["extra"]["requests"] == {"request": 1, "turn": 2, "tool": 1}
    requests = line["extra"]["oldest"]
    assert [request["event"] for request in requests if "in_sec" not in request] == ["request"]
    assert all(0 <= request["in_sec"] <= request["age_sec"] for request in requests[:-1])
    oldest = [
        {**{key: request[key] for key in request if key != "in_sec"}, "age_sec": None} for request in requests
    ]
    assert oldest == [
        {"event": "turn", "request_id": "r0", "turn": 2, "age_sec": None},
        {"event": "tool", "request_id": "r1", "turn": 1, "age_sec": None},
        {"event": "turn", "request_id": "r2", "turn": 2, "age_sec": None},
        {"event": "request", "request_id": "r3", "age_sec": None},
    ]
    passed = time.monotonic() - begun + 0.001  # ages are rounded
    assert all(0.019 < oldest["age_sec"] <= passed for oldest in line["extra"]["oldest"])


def test_five_requests_are_described_the_oldest_ones(now):
    (line,) = in_requests(*[in_engine] * 20, look=now)
    assert line["extra"]["requests"] == {"turn": 20}
    assert [oldest["request_id"] for oldest in line["extra"]["oldest"]] == ["r0", "r1", "r2", "r3", "r4"]


def test_a_request_without_an_id_is_told_from_others_by_its_task(now):
    async def request(over):
        with span("request"), span("turn"):
            await over.wait()

    async def run():
        over = asyncio.Event()
        tasks = [asyncio.create_task(request(over)) for _ in range(3)]
        await asyncio.sleep(0)
        lines = now()
        over.set()
        await asyncio.gather(*tasks)
        return lines

    with bind(step=1):
        (line,) = asyncio.run(run())
    assert line["extra"]["requests"] == {"turn": 3}
    assert [sorted(request) for request in line["extra"]["oldest"]] == [["age_sec", "event", "in_sec"]] * 3


def test_the_phase_of_a_persons_own_event_is_said_because_no_record_has_said_it_yet(now):
    with bind(step=1, request_id="r"), span("request"), span("sandbox", phase="tool"):
        (line,) = now()
    assert line["extra"]["phases"] == {"sandbox": "tool"}
    assert line["extra"]["oldest"][0]["event"] == "sandbox"


def test_a_span_in_a_function_of_the_program_counts(now):
    @instrument(phase="tool")
    def search():
        return now()

    with bind(step=1, request_id="r", validate=True), span("request"):
        (line,) = search()
    assert line["extra"]["requests"] == {line["extra"]["oldest"][0]["event"]: 1}
    assert line["validate"] is True


def test_a_request_whose_own_span_is_open_in_another_process_is_named_by_its_outermost_span_here(now):
    with bind(step=1, request_id="r7"), span("reward"):
        time.sleep(0.02)
        with span("tool"):
            (line,) = now()
    (named,) = line["extra"]["oldest"]
    assert (named["event"], named["request_id"]) == ("tool", "r7")
    assert named["age_sec"] >= 0.02
    assert line["extra"]["requests"] == {}


@pytest.mark.parametrize("event", ["total_step_duration", "weights_update", "preprocessing_duration"])
def test_a_process_without_open_requests_writes_nothing(now, event):
    with bind(step=1), span(event):
        assert now() == []
    assert now() == []


@pytest.mark.parametrize("event", ["barrier_wait_duration", "async_generate_duration", "reward_calculation"])
def test_a_worker_that_waits_at_a_barrier_or_in_the_engine_says_so(now, event):
    with bind(step=1), span("total_step_duration"), span(event):
        (line,) = now()
    assert line["extra"] == {"open": {"total_step_duration": 1, event: 1}, "requests": {}, "oldest": []}


def test_each_step_has_a_record_of_its_own_where_steps_overlap(now):
    with bind(step=1, request_id=7), span("request"), bind(step=2, request_id=7):
        inner = span("request")
        with inner, span("tool"):
            lines = now()
    assert {line["step"]: line["extra"]["requests"] for line in lines} == {1: {"request": 1}, 2: {"tool": 1}}


def test_many_event_loops_are_counted_together(now):
    over, ready = threading.Event(), threading.Barrier(9)

    def loop(worker):
        async def request(number):
            with bind(step=1, worker=0, request_id=f"{worker}.{number}"), span("request"), span("turn"):
                if number == 9:
                    ready.wait()
                while not over.is_set():
                    await asyncio.sleep(0.01)

        async def run():
            await asyncio.gather(*map(request, range(10)))

        asyncio.run(run())

    threads = [threading.Thread(target=loop, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    ready.wait()
    (line,) = now()
    over.set()
    for thread in threads:
        thread.join()
    assert line["extra"]["requests"] == {"turn": 80}


def test_records_come_at_intervals_and_none_comes_when_the_requests_are_over(now):
    begun = time.monotonic()
    pages, looking = Pages(), OpenNow(LineEncoder(Clock()), every_sec=0.1)

    def has_three():
        looking.look(pages)
        return len(pages.lines) == 3

    with bind(step=1, request_id="r"), span("request"):
        wait_for(has_three, "three records", every_sec=0.005)
    assert time.monotonic() - begun >= 0.3
    time.sleep(0.12)
    looking.look(pages)
    assert len(pages.lines) == 3


def test_an_interval_of_0_writes_none(now):
    pages, looking = Pages(), OpenNow(LineEncoder(Clock()), every_sec=0)
    with bind(step=1), span("request"):
        time.sleep(0.01)
        looking.look(pages)
    assert pages.lines == []


def test_a_disk_that_hangs_is_given_one_record_until_it_answers(now):
    pages, looking = Pages(), OpenNow(LineEncoder(Clock()), every_sec=1e-9)
    pages.hangs = True
    with bind(step=1), span("request"):
        for _ in range(5):
            time.sleep(1e-6)
            looking.look(pages)
        assert len(pages.lines) == 1
        pages.answer()
        looking.look(pages)
        assert len(pages.lines) == 2


def look_in(event, look, **extra):
    with span(event, **extra):
        (line,) = look()
    return line


@pytest.mark.parametrize("base", hostile.BASES)
@pytest.mark.parametrize("error", hostile.ERRORS)
def test_hostile_names_and_fields_neither_raise_nor_break_the_line(now, base, error):
    value = hostile.value(base, error)
    with bind(step=1, request_id=value, turn=value), span("request", x=value), span(value, phase="tool"):
        line = look_in("tool", now, request_id=value, turn=value)
    assert sum(line["extra"]["open"].values()) >= 2


@pytest.mark.parametrize(
    "value", [["a"], {"a": 1}, math.nan, 2**80, "\ud800", "x" * 10_000, "\x00" * 300, True, 1.5, b"", None]
)
def test_any_value_may_be_a_name_or_an_id(now, value):
    with bind(step=1), span("request", request_id=value, turn=value), span(value, phase="tool"):
        line = look_in("turn", now, request_id=value)
    assert line["extra"]["open"]["turn"] == 1
    assert sum(line["extra"]["requests"].values()) == 1
    assert len(json.dumps(line)) < LONGEST_LINE


def test_a_record_stays_short_however_many_names_there_are(now):
    for number in range(1000):
        name = f"{number}" + "\x00" * 300
        span(name, phase="tool", request_id=name).__enter__()
        span("request", request_id=name).__enter__()
    (line,) = now()
    assert sum(line["extra"]["open"].values()) == 2000
    assert "truncated" not in line["extra"]
    assert len(line["extra"]["oldest"]) == 5


def test_what_cannot_be_counted_is_noted_once_and_later_records_come(now):
    OPEN[0] = object()
    with bind(step=1), span("request"):
        assert now() == now() == []
        del OPEN[0]
        assert len(now()) == 1
    assert [text for text in notices.noticed() if "counting the open spans" in str(text)]


def test_of_very_many_spans_the_oldest_and_the_newest_are_counted(now):
    with bind(step=1):
        for number in range(50_000):
            span("request", request_id=number).__enter__()
        (line,) = now()
    assert line["extra"]["open"]["request"] + line["extra"]["uncounted"] == 50_000
    assert line["extra"]["uncounted"] < 40_000
    assert [oldest["request_id"] for oldest in line["extra"]["oldest"]] == [0, 1, 2, 3, 4]


def test_spans_may_open_and_end_while_they_are_counted(now):
    over = threading.Event()

    def work(worker):
        with bind(step=1, worker=0):
            while not over.is_set():
                entered = [span("request", request_id=f"{worker}.{number}") for number in range(100)]
                for opened in entered:
                    opened.__enter__()
                for opened in entered:
                    opened.__exit__(None, None, None)
                time.sleep(0.001)  # else there would be millions of records

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
    try:
        for thread in threads:
            thread.start()
        wait_for(lambda: OPEN, "no span was opened")
        for _ in range(100):
            for line in now():
                assert 0 < line["extra"]["open"]["request"] <= 300
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(switch)
    assert not [text for text in notices.noticed() if "counting" in str(text)]


@pytest.mark.parametrize("durability", ["buffered", "line"])
def test_an_installed_process_writes_it_to_the_steps_file_until_it_is_uninstalled(
    install, records_below, durability
):
    folder = install(open_now_sec=0.02, hang_after_sec=0.1, durability=durability)

    def written():
        return [record["event"] for record in records_below(folder).get("step_3/worker_0.jsonl", [])]

    with bind(step=3, request_id="r"), span("request"):
        wait_for(lambda: written().count("open_now") >= 2, written)
        uninstall()
    assert written()[0] == "log_opened"
    assert written().count("log_opened") == 1
    assert written()[-1] == "log_closed"


def test_with_the_setting_at_0_files_have_none(install, records_below):
    folder = install(open_now_sec=0, hang_after_sec=0.2)
    with bind(step=3, request_id="r"), span("request"):
        wait_for(lambda: "'event': 'open_spans'" in str(records_below(folder)), "no open_spans")
    uninstall()
    assert "'event': 'open_now'" not in str(records_below(folder))


def test_a_forked_child_counts_its_own_requests_and_not_its_parents(run_script):
    script = run_script(
        """
        import os, time
        from pathlib import Path
        import sglang_instrument as si
        from sglang_instrument import bind, span

        def wait_for_open_now(worker):
            path, ends = folder / f"step_1/worker_{worker}.jsonl", time.monotonic() + 600
            while not (path.exists() and '"event":"open_now"' in path.read_text()):
                assert time.monotonic() < ends, "no open_now"
                time.sleep(0.02)

        si.install(open_now_sec=0.02, hang_after_sec=0.1)
        folder = Path(si.status()["folder"])
        with bind(step=1, worker=0, request_id="parent"), span("request"):
            wait_for_open_now(0)
            if not os.fork():
                with bind(step=1, worker=1, request_id="child"), span("request"), span("tool"):
                    wait_for_open_now(1)
                si.uninstall()
                os._exit(0)
            os.wait()
        si.uninstall()
        """,
        PYTHONWARNINGS="ignore::DeprecationWarning",
    )
    for worker, name, inside in ((0, "parent", "request"), (1, "child", "tool")):
        written = script.records[f"step_1/worker_{worker}.jsonl"]
        reports = [record["extra"] for record in written if record["event"] == "open_now"]
        assert reports
        assert all(report["requests"] == {inside: 1} for report in reports)
        assert {oldest["request_id"] for extra in reports for oldest in extra["oldest"]} == {name}


def test_to_count_requests_outside_of_any_step_says_nothing_about_their_step(now):
    with span("request"), span("turn"):
        (line,) = now()
    assert (line["step"], line["extra"]["requests"]) == (0, {"turn": 1})
    assert notices.noticed() == []
