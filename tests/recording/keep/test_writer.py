"""The writer writes records at once if asked, and keeps memory bounded if the disk is too slow."""

import asyncio
import logging
import threading
import time
from pathlib import Path

import pytest
from awaited import wait_for

from sglang_instrument import bind, flush, span, status, step, uninstall
from sglang_instrument.recording.keep import writer
from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.disk import Disk
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.files import Files
from sglang_instrument.recording.keep.wakeup import Wakeup, WakingBuffer
from sglang_instrument.recording.keep.writer import Writer
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.safety import notices
from sglang_instrument.recording.watch import event_loop, hangs
from sglang_instrument.schema import CONTROL_EVENTS


def events(records):
    return [record["event"] for record in records if record["event"] not in CONTROL_EVENTS]


def test_with_durability_line_a_record_is_in_its_file_before_the_block_is_left(install, records_below):
    folder = install(durability="line")
    with step(3):
        for number in range(50):
            with span(f"event {number}"):
                pass
            assert events(records_below(folder)["step_3/worker_0.jsonl"])[-1] == f"event {number}"


def test_with_durability_line_a_step_is_closed_in_its_file_before_its_block_is_left(install, records_below):
    folder = install(durability="line")
    with step(3), span("parse"):
        pass
    last = records_below(folder)["step_3/worker_0.jsonl"][-1]
    assert last["event"] == "step_closed"
    assert last["extra"] == {"written": 1, "dropped": 0, "sampled_out": 0}


def test_with_durability_line_a_kill_loses_no_record_of_a_block_that_was_left(run_script):
    killed = run_script(
        """
        import os, signal
        import sglang_instrument

        sglang_instrument.install(durability="line")
        with sglang_instrument.step(1):
            for number in range(777):
                with sglang_instrument.span("parse", number=number):
                    pass
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        code=-9,
    )
    written = [record["extra"]["number"] for record in killed.records["step_1/worker_0.jsonl"][1:]]
    assert written == list(range(777))


def test_with_durability_line_threads_neither_lose_nor_double_nor_mix_lines(install, records_below):
    folder = install(durability="line")

    def work(thread):
        with bind(step=1, request_id=thread):
            for number in range(500):
                with span("parse", number=number):
                    pass

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    parsed = [
        record for record in records_below(folder)["step_1/worker_0.jsonl"] if record["event"] == "parse"
    ]
    seen = [(record["extra"]["request_id"], record["extra"]["number"]) for record in parsed]
    assert sorted(seen) == [(thread, number) for thread in range(4) for number in range(500)]


def test_with_durability_line_a_span_in_the_middle_of_a_write_waits_for_nobody(
    install, log_dir, records_below
):
    class Recording(logging.Handler):
        def emit(self, record):
            with span("said"):
                pass

    handler = Recording()
    logging.getLogger("sglang_instrument").addHandler(handler)
    try:
        folder = install(durability="line")
        with step(1):
            with span("first"):
                pass
            (folder / "step_1/worker_0.jsonl").unlink()
            with span("second"):  # the notice about the deleted file is logged while this record is written
                pass
            with span("third"):
                pass
    finally:
        logging.getLogger("sglang_instrument").removeHandler(handler)
    assert events(records_below(folder)["step_1/worker_0.jsonl"]) == ["second", "said", "third"]


def test_with_durability_line_a_span_that_does_not_end_is_still_reported(install, records_below):
    folder = install(durability="line", hang_after_sec=0.1)

    def is_reported():
        written = records_below(folder).get("step_1/worker_0.jsonl", [])
        return any(record["event"] == "open_spans" for record in written)

    with step(1), span("tool_execution"):
        wait_for(is_reported, "no open_spans")


def test_with_durability_line_a_forked_child_writes_a_file_of_its_own(run_script):
    forked = run_script(
        """
        import os
        import sglang_instrument

        sglang_instrument.install(durability="line")
        with sglang_instrument.step(1):
            with sglang_instrument.span("parse", process="parent"):
                pass
            child = os.fork()
            if child == 0:
                with sglang_instrument.step(1), sglang_instrument.span("parse", process="child"):
                    pass
                os._exit(0)
            os.waitpid(child, 0)
        """
    )
    processes = [
        {record["extra"]["process"] for record in records if record["event"] == "parse"}
        for records in forked.records.values()
    ]
    assert sorted(map(sorted, processes)) == [["child"], ["parent"]]


def test_with_durability_line_a_folder_that_cannot_be_made_is_said_once_and_counted(install, log_dir, caplog):
    log_dir.write_text("no folder")
    install(durability="line")
    with step(1):
        for _ in range(10):
            with span("parse"):
                pass
    assert status()["records"]["dropped"] == 10
    assert len([message for message in caplog.messages if "cannot be written" in message]) == 1


def test_a_buffer_that_nobody_empties_drops_its_newest_spans_and_counts_them(log_dir, records_below):
    files = Files(log_dir, Clock(), {"run_id": "run"}, dict)
    watched, emptying = threading.Event(), threading.Event()

    def hold_up(disk):
        watched.set()
        emptying.wait(600)
        return 0.0

    stuck = Writer(Disk(files, 2**30), LineEncoder(Clock()), hold_up)
    stuck.open()
    with step(1):
        with span("first"):
            pass
        assert watched.wait(600)
        for _ in range(writer.MOST_SPANS + 1000):
            with span("parse"):
                pass
    stuck.close()
    emptying.set()
    assert stuck.flush_then(files.close, 600)
    stuck.end(time.monotonic() + 600)
    assert stuck.dropped_records == 1000
    ends = [
        record
        for record in records_below(log_dir)["step_1/worker_0.jsonl"]
        if record["event"] == "step_closed"
    ]
    assert ends[-1]["extra"]["written"] == writer.MOST_SPANS + 1
    assert ends[-1]["extra"]["dropped"] == 1000
    assert [said["times"] for said in notices.noticed() if "encoded" in said["notice"]] == [1]


def rests():
    return isinstance(spans.current_buffer(), WakingBuffer)


@pytest.fixture
def resting(install, monkeypatch):
    """A process that recorded and then paused; without a wakeup, the encoder sleeps for an hour."""
    monkeypatch.setattr(writer, "_RESTS_AFTER", 2)
    monkeypatch.setattr(hangs, "_LOOK_EVERY_SEC", 3600)
    folder = install(hang_after_sec=36000)
    with step(1), span("first"):
        pass
    wait_for(rests, "the encoder does not rest", every_sec=0.01)
    return folder


def test_what_is_recorded_while_the_encoder_rests_wakes_it(resting, records_below, monkeypatch):
    monkeypatch.setattr(writer, "_RESTS_AFTER", 10**9)  # a busy machine may look too late otherwise
    with step(2), span("second"):
        pass
    assert not rests()
    wait_for(lambda: "step_2/worker_0.jsonl" in records_below(resting), "no step_2/worker_0.jsonl")
    monkeypatch.setattr(writer, "_RESTS_AFTER", 2)
    with step(2), span("third"):
        pass
    wait_for(rests, "the encoder does not rest", every_sec=0.01)  # again
    with span("tool_execution"):  # watched while it is open
        assert not rests()


def test_flush_and_uninstall_do_not_wait_for_an_encoder_that_rests(resting, records_below):
    assert flush(600)
    uninstall()
    assert spans.current_buffer() is spans.OFF
    assert [record["event"] for record in records_below(resting)["step_1/worker_0.jsonl"]] == [
        "log_opened",
        "first",
        "step_closed",
        "log_closed",
    ]


def test_the_encoder_does_not_rest_while_an_event_loop_is_watched(install, monkeypatch):
    monkeypatch.setattr(writer, "_RESTS_AFTER", 2)
    looks = []
    look = event_loop.check_heartbeats
    monkeypatch.setattr(hangs, "check_heartbeats", lambda: looks.append(look()) or looks[-1])
    install()

    async def main():
        with span("first"):
            await asyncio.sleep(0.1)
        seen = len(looks)
        while len(looks) < seen + 10:
            await asyncio.sleep(0.01)
            assert not rests()

    asyncio.run(asyncio.wait_for(main(), 600))


def test_a_disk_that_hangs_costs_bounded_memory_and_is_told_of_once(run_script):
    run = run_script(
        """
        import json, resource, time
        import hanging_open
        import sglang_instrument

        disk = hanging_open.until_it_answers()

        def largest_mb():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        sglang_instrument.install(memory_limit_mb=1)
        folder = sglang_instrument.status()["folder"]
        with sglang_instrument.step(1):
            with sglang_instrument.span("first"):
                pass
            before_mb = largest_mb()
            for number in range(400_000):
                with sglang_instrument.span("parse"):
                    pass
                if number % 1000 == 0:  # 400,000 records are 50 MB; the encoder may come late
                    while sglang_instrument.status()["records"]["waiting"] > 20_000:
                        time.sleep(0.001)
            print("grown_mb", largest_mb() - before_mb)
        print("flushed", sglang_instrument.flush(0.2))

        disk.set()
        print("flushed", sglang_instrument.flush(600))
        counts = sglang_instrument.status()["records"]
        notices = [said["times"] for said in sglang_instrument.status()["notices"]
                   if "keep up" in said["notice"]]
        sglang_instrument.uninstall()
        with open(f"{folder}/step_1/worker_0.jsonl", "rb") as file:
            records = [json.loads(line) for line in file]
        closed = [record["extra"] for record in records if record["event"] == "step_closed"]
        print("notices", len(notices), "closed", len(closed))
        print("dropped", counts["dropped"] > 100_000, closed[0]["dropped"] == counts["dropped"])
        written = [record for record in records if record["event"] in ("first", "parse")]
        print("written", closed[0]["written"] == len(written))
        print("all", closed[0]["written"] + closed[0]["dropped"])
        """,
        PYTHONPATH=str(Path(__file__).parents[2] / "support"),
    )
    said = dict(line.split(" ", 1) for line in run.stdout.splitlines() if not line.startswith("flushed"))
    assert run.stdout.count("flushed False") == run.stdout.count("flushed True") == 1
    assert float(said.pop("grown_mb")) < 32
    assert said == {"notices": "1 closed 1", "dropped": "True True", "written": "True", "all": "400001"}
    assert run.stderr.count("does not keep up") == 1


def test_a_process_ends_although_its_disk_hangs(run_script):
    run = run_script(
        """
        import hanging_open
        import sglang_instrument

        hanging_open.until_it_answers()
        sglang_instrument.install()
        with sglang_instrument.step(1):
            for _ in range(5_000):
                with sglang_instrument.span("parse"):
                    pass
        """,
        PYTHONPATH=str(Path(__file__).parents[2] / "support"),
    )
    assert "may be lost" in run.stderr


def test_flush_says_that_what_was_recorded_is_written(install, records_below):
    folder = install()
    with step(1):
        for number in range(1000):
            with span("parse", number=number):
                pass
        assert flush(600)
        written = records_below(folder)["step_1/worker_0.jsonl"]
        assert [record["extra"]["number"] for record in written[1:]] == list(range(1000))


def test_where_little_is_recorded_every_other_tick_writes_or_the_ticks_are_longer(log_dir):
    leave_sec = 0.0
    calm = Writer(
        Disk(Files(log_dir, Clock(), {"run_id": "run"}, dict), 2**30),
        LineEncoder(Clock()),
        lambda disk: leave_sec,
    )

    def left_after(recorded, woken=False):
        calm._spans.extend(span("parse") for _ in range(recorded))
        calm._tick(woken)
        return calm.waiting

    assert left_after(1) == 0  # the first record also opens the file
    assert [left_after(1), left_after(1), left_after(1), left_after(1)] == [1, 0, 1, 0]
    assert left_after(1, woken=True) == 0
    assert [left_after(writer._LITTLE + 1), left_after(writer._LITTLE + 1)] == [0, 0]
    assert calm._tick_sec == writer.TICK_SEC
    leave_sec = 1.0
    assert [left_after(1, woken=True), left_after(1), left_after(1)] == [0, 0, 0]
    assert calm._tick_sec == writer.CALM_TICK_SEC
    left_after(writer._LITTLE + 1)
    assert calm._tick_sec == writer.TICK_SEC
    calm.end(time.monotonic() + 600)


def test_a_wakeup_that_was_rung_wakes_the_next_waiter_once():
    bell = Wakeup()
    bell.wake()
    bell.wake()
    assert bell.wait(3600, 1, []) == 0
    assert bell.wait(0.001, 3, []) == 3


def test_a_wakeup_wakes_a_waiting_thread():
    bell, begun = Wakeup(), threading.Event()

    def wake():
        begun.wait(600)
        bell.wake()

    ringing = threading.Thread(target=wake)
    ringing.start()
    begun.set()
    assert bell.wait(600, 1, []) == 0
    ringing.join()


def test_whoever_waits_for_several_ticks_is_woken_at_the_first_that_has_something_to_do():
    bell, buffer = Wakeup(), []
    assert bell.wait(0.001, 5, buffer) == 5
    appending = threading.Timer(0.01, buffer.append, [None])
    appending.start()
    assert 0 < bell.wait(0.01, 60_000, buffer) < 60_000
    assert bell.wait(0.001, 60_000, buffer) == 1
    appending.join()


def test_a_writer_leaves_ticks_out_only_where_nothing_has_to_be_looked_at(log_dir):
    leave_sec = 0.0
    calm = Writer(
        Disk(Files(log_dir, Clock(), {"run_id": "run"}, dict), 2**30),
        LineEncoder(Clock()),
        lambda disk: leave_sec,
    )

    def left_out_after(recorded):
        calm._spans.extend(span("parse") for _ in range(recorded))
        calm._tick(False)
        return calm._most_ticks

    assert left_out_after(1) == left_out_after(0) == 1
    leave_sec = 1.0
    assert left_out_after(1) == writer._RESTS_AFTER
    assert left_out_after(0) == writer._RESTS_AFTER - 1
    calm._quiet_ticks = writer._RESTS_AFTER
    assert left_out_after(0) == 1  # it rests, or will at the next tick
    calm.wrap_buffer(lambda buffer: [])
    assert left_out_after(1) == 1
    calm.end(time.monotonic() + 600)


@pytest.fixture
def leaving_out(install, monkeypatch):
    """A process that recorded, and whose encoder checks only the buffer for an hour."""
    monkeypatch.setattr(writer, "_RESTS_AFTER", 10**9)
    monkeypatch.setattr(hangs, "_LOOK_EVERY_SEC", 3600)
    folder = install(hang_after_sec=36000)
    with step(1), span("first"):
        pass
    assert flush(600)
    return folder


def test_what_is_recorded_where_ticks_are_left_out_is_written_at_the_next_one(leaving_out, records_below):
    with bind(step=2, worker=3), span("second"):
        pass
    wait_for(lambda: "step_2/worker_3.jsonl" in records_below(leaving_out), "no step_2/worker_3.jsonl")
    with bind(role="trainer"), span("third"):
        pass
    wait_for(lambda: any("trainer_0" in path for path in records_below(leaving_out)), "no trainer_0")
    uninstall()


def test_an_event_loop_that_begins_where_ticks_are_left_out_is_looked_at(leaving_out, monkeypatch):
    looks = []
    look = event_loop.check_heartbeats
    monkeypatch.setattr(hangs, "check_heartbeats", lambda: looks.append(look()) or looks[-1])

    async def main():
        with span("second"):
            pass
        while sum(looks) < 5:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 600))
