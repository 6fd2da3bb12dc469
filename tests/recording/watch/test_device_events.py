"""The GPU time of step-level spans is known later; nothing waits for it, and no record is lost.

torch.cuda is a stand-in, with a clock that the test advances and events that complete at times of this clock.
"""

import asyncio
import os
import sys
import threading
import types

import orjson
import pytest

import sglang_instrument
from sglang_instrument import instrument, span, step
from sglang_instrument.recording.measure import gpu_sync, spans
from sglang_instrument.recording.safety import notices
from sglang_instrument.recording.watch import gpu_events, span_listeners
from sglang_instrument.recording.watch.gpu_events import HeldBack


class StandInEvent:
    """Stands in for torch.cuda.Event: complete when the stand-in's clock reaches its place in the queue."""

    made = 0

    def __init__(self, gpu, enable_timing):
        assert enable_timing
        self.gpu, self.at_ms = gpu, None
        StandInEvent.made += 1

    def record(self, stream):
        assert stream == "the stream"
        self.gpu.touched("record")
        self.at_ms = self.gpu.queued_ms

    def query(self):
        self.gpu.touched("query")
        return self.gpu.done_ms >= self.at_ms

    def elapsed_time(self, end):
        self.gpu.touched("elapsed_time")
        assert self.query()
        assert end.query()
        return end.at_ms - self.at_ms


class StandInCuda:
    """Stands in for torch.cuda: work is queued and done in milliseconds of its own clock."""

    def __init__(self):
        self.initialized, self.context, self.capturing, self.compiling, self.fails = (
            True,
            True,
            False,
            False,
            "",
        )
        self.queued_ms = self.done_ms = 0.0
        self.calls, self.threads = [], set()

    def is_initialized(self):
        return self.initialized

    def current_device(self):
        return 0

    def current_stream(self):
        return "the stream"

    def is_current_stream_capturing(self):
        return self.capturing

    def synchronize(self):
        raise AssertionError("nothing may wait")

    def Event(self, enable_timing):  # noqa: N802 - torch's name
        return StandInEvent(self, enable_timing)

    def touched(self, what):
        self.calls.append(what)
        self.threads.add(threading.get_ident())
        assert not self.capturing
        assert not self.compiling
        if self.fails == what:
            raise RuntimeError("CUDA error: device-side assert triggered")

    def queue(self, ms):
        """Queue work, as a kernel's launch does."""
        self.queued_ms += ms

    def finish(self):
        """Do all that is queued."""
        self.done_ms = self.queued_ms


@pytest.fixture
def gpu(monkeypatch):
    cuda = StandInCuda()
    torch = types.SimpleNamespace(
        cuda=cuda,
        _C=types.SimpleNamespace(_cuda_hasPrimaryContext=lambda index: cuda.context),
        compiler=types.SimpleNamespace(is_compiling=lambda: cuda.compiling),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(gpu_events, "LONGEST_HOLD_NS", 10**15)  # on a busy machine, a test may take seconds
    yield cuda
    notices.forget()


@pytest.fixture
def passed(gpu, monkeypatch):
    """Return the list to which a HeldBack of this test passes spans on; it queries events at every span."""
    monkeypatch.setattr(gpu_events, "_LOOK_EVERY_NS", 0)
    spans_passed = []
    held_back = HeldBack().wrap(spans_passed)
    gpu_sync.use_policy("events")
    spans.use_buffer(held_back)
    held_back.on()
    yield spans_passed
    held_back.off()
    spans.use_buffer(spans.OFF)
    gpu_sync.use_policy("off")


@pytest.fixture
def recording(gpu, tmp_path, monkeypatch):
    """Return a function that starts recording into files, and one that returns the records of an event."""
    monkeypatch.setenv("EXPERIMENT_NAME", "run")

    def start(**settings):
        sglang_instrument.install(log_dir=tmp_path, trainers="none", sync="events", **settings)

    def read(event):
        lines = [
            orjson.loads(line)
            for path in sorted(tmp_path.rglob("step_*/*.jsonl"))
            for line in path.read_bytes().splitlines()
        ]
        return [line for line in lines if line["event"] == event]

    yield start, read
    sglang_instrument.uninstall()


def holding():
    buffer = spans.current_buffer()
    assert isinstance(buffer, HeldBack)
    return buffer


def names(passed):
    return [recorded.event for recorded in passed]


def test_a_span_is_held_back_until_the_gpu_has_done_its_work(gpu, passed):
    with span("preprocessing_duration"):
        gpu.queue(30)
    assert passed == []
    with span("parse"):
        assert passed == []
    assert names(passed) == ["parse"]
    gpu.finish()
    with span("later"):
        pass
    [timed] = [recorded for recorded in passed if recorded.event == "preprocessing_duration"]
    assert timed.device_sec == pytest.approx(0.030)
    assert [recorded.device_sec for recorded in passed if recorded is not timed] == [None, None]


def test_work_queued_before_and_after_a_span_is_not_in_its_device_sec(gpu, passed):
    gpu.queue(500)
    with span("total_step_duration"):
        gpu.queue(10)
        with span("preprocessing_duration"):
            gpu.queue(20)
        with span("barrier"):
            pass
        gpu.queue(5)
    gpu.queue(700)
    gpu.finish()
    with span("later"):
        pass
    device_sec = {recorded.event: recorded.device_sec for recorded in passed}
    assert device_sec["preprocessing_duration"] == pytest.approx(0.020)
    assert device_sec["barrier"] == pytest.approx(0)
    assert device_sec["total_step_duration"] == pytest.approx(0.035)


def test_spans_of_requests_get_no_cuda_events_and_are_not_held_back(gpu, passed):
    with span("turn_engine_call"), span("tool_execution"):
        pass
    assert names(passed) == ["tool_execution", "turn_engine_call"]
    assert gpu.calls == []


@pytest.mark.parametrize("state", ["capturing", "compiling", "no context", "not initialized"])
def test_nothing_is_asked_of_a_gpu_that_is_captured_traced_or_not_in_use(gpu, passed, state):
    gpu.capturing, gpu.compiling = state == "capturing", state == "compiling"
    gpu.context, gpu.initialized = state != "no context", state != "not initialized"
    with span("preprocessing_duration"):
        pass
    assert names(passed) == ["preprocessing_duration"]
    assert gpu.calls == []


def test_a_capture_that_begins_within_a_span_is_left_alone_and_so_is_one_that_ends_in_it(gpu, passed):
    with span("preprocessing_duration"):
        gpu.capturing = True
    with span("barrier"):
        gpu.capturing = False
    assert names(passed) == ["preprocessing_duration", "barrier"]


def test_what_is_held_when_a_capture_begins_is_asked_for_after_it(gpu, passed):
    with span("preprocessing_duration"):
        gpu.queue(3)
    gpu.finish()
    gpu.capturing = True
    with span("captured"):
        pass
    assert names(passed) == ["captured"]
    gpu.capturing = False
    with span("later"):
        pass
    assert sorted(names(passed)) == ["captured", "later", "preprocessing_duration"]
    assert max(recorded.device_sec or 0 for recorded in passed) == pytest.approx(0.003)


@pytest.mark.parametrize("fails", ["record", "query", "elapsed_time"])
def test_an_error_of_the_gpu_is_left_to_the_trainer_said_once_and_costs_no_record(gpu, passed, fails):
    gpu.fails = fails
    for _ in range(3):
        with span("preprocessing_duration"):
            pass
        gpu.finish()
        with span("later"):
            pass
    for held in holding()._held.values():
        assert len(held) <= 3
    holding().release_all()
    assert sorted(names(passed)) == ["later"] * 3 + ["preprocessing_duration"] * 3
    said = [notice["notice"] for notice in notices.noticed() if "CUDA event" in str(notice["notice"])]
    assert len(said) == 1


def test_a_span_that_raised_is_not_marked_at_its_end(gpu, passed):
    with pytest.raises(KeyError), span("preprocessing_duration"):
        raise KeyError
    assert [recorded.error for recorded in passed] == ["KeyError"]
    assert gpu.calls == ["record"]


def test_a_span_that_never_ends_gives_its_mark_to_no_other_and_is_forgotten(gpu, passed, monkeypatch):
    monkeypatch.setattr(gpu_events, "_MOST_BEGUN", 10)
    for _ in range(200):
        span("preprocessing_duration").__enter__()
        with span("turn_engine_call"):
            gpu.queue(1)
    assert [recorded.device_sec for recorded in passed] == [None] * 200
    assert len(holding()._begun) == 10
    spans.OPEN.clear()


def test_a_span_held_too_long_is_recorded_without_device_sec(gpu, passed, monkeypatch):
    with span("preprocessing_duration"):
        gpu.queue(30)
    asked = list(gpu.calls)
    holding().let_old_go()
    assert passed == []
    monkeypatch.setattr(gpu_events, "LONGEST_HOLD_NS", 0)
    holding().let_old_go()
    assert names(passed) == ["preprocessing_duration"]
    assert gpu.calls == asked
    assert [notice["times"] for notice in notices.noticed()] == [1]


def test_cuda_events_are_used_again(gpu, passed):
    before = StandInEvent.made
    for _ in range(50):
        with span("preprocessing_duration"):
            gpu.queue(1)
        gpu.finish()
        holding().release_finished()
    assert len(passed) == 50
    assert StandInEvent.made - before == 2


def test_decorated_functions_and_spans_in_coroutines_are_marked_too(gpu, passed):
    @instrument(event="preprocessing_duration")
    def prepare():
        gpu.queue(4)

    @instrument(event="padding_duration", fields={"rows": "rows"})
    def pad(rows):
        gpu.queue(rows)

    async def run():
        async with span("data_extraction_duration"):
            gpu.queue(2)
            await asyncio.sleep(0)

    prepare()
    pad(8)
    asyncio.run(run())
    gpu.finish()
    holding().release_finished()
    device_sec = {recorded.event: recorded.device_sec for recorded in passed}
    assert device_sec["preprocessing_duration"] == pytest.approx(0.004)
    assert device_sec["padding_duration"] == pytest.approx(0.008)
    assert device_sec["data_extraction_duration"] == pytest.approx(0.002)


def test_only_the_thread_that_queued_the_work_asks_the_gpu(gpu, passed):
    with span("preprocessing_duration"):
        gpu.queue(1)
    gpu.finish()

    def elsewhere():
        for _ in range(3):
            with span("elsewhere"):
                pass

    other = threading.Thread(target=elsewhere)
    other.start()
    other.join()
    holding().let_old_go()
    assert names(passed) == ["elsewhere"] * 3
    assert gpu.threads == {threading.get_ident()}


def test_spans_are_not_held_back_after_sync_is_off(gpu):
    held_back = HeldBack()
    held_back.on()
    held_back.off()
    assert span_listeners._listening == ()


def test_device_sec_is_in_the_record(gpu, recording):
    start, read = recording
    start()
    with step(1), span("total_step_duration"):
        with span("preprocessing_duration", rows=3):
            gpu.queue(7)
        gpu.finish()
    sglang_instrument.flush(600)
    [prepared] = read("preprocessing_duration")
    assert prepared["device_sec"] == pytest.approx(0.007)
    assert prepared["extra"] == {"rows": 3}
    assert list(prepared).index("device_sec") > list(prepared).index("task")
    assert read("total_step_duration")[0]["device_sec"] == pytest.approx(0.007)


@pytest.mark.parametrize("durability", ["buffered", "line"])
def test_a_step_is_closed_after_its_records_even_if_the_gpu_is_far_behind(
    gpu, recording, tmp_path, durability
):
    start, read = recording
    start(durability=durability)
    with step(1), span("total_step_duration"):
        gpu.queue(7)
    sglang_instrument.flush(600)
    lines = (tmp_path / "run/step_1/worker_0.jsonl").read_bytes().splitlines()
    events = [orjson.loads(line)["event"] for line in lines]
    assert events[:2] == ["log_opened", "total_step_duration"]
    assert set(events[2:]) == {"step_closed"}
    assert "device_sec" not in read("total_step_duration")[0]
    assert sglang_instrument.status()["records"]["waiting"] == 0


def test_records_are_written_by_an_exit_of_the_process_while_they_are_held(gpu, recording):
    start, read = recording
    start()
    with step(1):
        with span("preprocessing_duration"):
            gpu.queue(7)
        assert sglang_instrument.status()["records"]["waiting"] >= 1
        sglang_instrument.uninstall()
    assert len(read("preprocessing_duration")) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_what_its_parent_holds_alone(gpu, recording, tmp_path):
    start, read = recording
    start()
    with step(1):
        with span("preprocessing_duration"):
            gpu.queue(7)
        child = os.fork()
        if not child:
            gpu.initialized = False  # torch's answer in a forked child
            with span("in_the_child"):
                pass
            sglang_instrument.flush(600)
            os._exit(0 if sglang_instrument.status()["records"]["waiting"] == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
    sglang_instrument.flush(600)
    assert len(read("preprocessing_duration")) == 1
    assert len(read("in_the_child")) == 1


def test_each_thread_queries_its_events_at_its_own_times(gpu, passed, monkeypatch):
    monkeypatch.setattr(gpu_events, "_LOOK_EVERY_NS", 10**15)

    def work():
        with span("preprocessing_duration"):
            gpu.queue(1)
        gpu.finish()
        with span("later"):
            pass

    for _ in range(3):
        other = threading.Thread(target=work)
        other.start()
        other.join()
        holding()._held.clear()  # the next thread may get the same ident
    assert [recorded.device_sec for recorded in passed if recorded.event == "preprocessing_duration"] == [
        pytest.approx(0.001)
    ] * 3
