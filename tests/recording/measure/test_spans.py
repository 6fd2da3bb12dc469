"""A span records how long a block took, for which request, and how it ended."""

import asyncio
import copy
import inspect
import pickle
import threading
import time
from collections.abc import Iterator

import pytest

import sglang_instrument
from sglang_instrument import bind, event, span, step
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.measure.context import CURRENT
from sglang_instrument.recording.measure.spans import Span
from sglang_instrument.recording.measure.tasks import thread_task
from sglang_instrument.testing import Records, records


@pytest.fixture
def seen() -> Iterator[Records]:
    with records() as captured:
        yield captured


def test_a_record_has_the_keys_of_the_reference_first_and_in_its_order(seen):
    with bind(step=12, worker=3, request_id="r1", turn=2), span("turn_engine_call"):
        pass
    assert list(seen[0]) == [
        "timestamp",
        "event",
        "duration_sec",
        "extra",
        "workid",
        "step",
        "start_us",
        "task",
    ]
    assert seen[0]["extra"] == {"request_id": "r1", "turn": 2}
    assert (seen[0]["workid"], seen[0]["step"]) == (3, 12)


def test_a_duration_is_the_wall_time_of_the_block(seen):
    before = time.perf_counter()
    with span("parse") as timed:
        time.sleep(0.02)
    wall = time.perf_counter() - before
    assert 0.02 <= timed.duration_sec <= wall
    assert seen[0]["duration_sec"] == timed.duration_sec


def test_the_start_of_a_span_and_its_duration_give_its_timestamp(seen):
    from datetime import datetime

    with span("parse"):
        time.sleep(0.01)
    end = datetime.fromisoformat(seen[0]["timestamp"]).timestamp()
    assert end == pytest.approx(seen[0]["start_us"] / 1e6 + seen[0]["duration_sec"], abs=5e-6)
    assert end == pytest.approx(time.time(), abs=600)  # the machine may be busy


def test_fields_come_after_the_ids_and_override_them(seen):
    with bind(request_id="r1", turn=2), span("parse", turn=7, calls=3) as timed:
        timed.add(ok=True)
    assert seen[0]["extra"] == {"request_id": "r1", "turn": 7, "calls": 3, "ok": True}


def test_an_event_has_no_duration(seen):
    event("hit", size=3)
    assert "duration_sec" not in seen[0]
    assert "start_us" not in seen[0]
    assert seen[0]["extra"] == {"size": 3}


def test_an_error_is_named_and_raised_again(seen):
    with pytest.raises(KeyError), span("tool_execution"):
        raise KeyError("secret")
    assert seen[0]["error"] == "KeyError"
    assert "secret" not in str(seen[0])


def test_the_text_of_an_error_is_logged_when_asked_for(seen):
    spans.log_error_messages(True)
    try:
        with pytest.raises(ValueError, match="no answer"), span("tool_execution"):
            raise ValueError("no answer")
    finally:
        spans.log_error_messages(False)
    assert seen[0]["error"] == "ValueError: no answer"


def test_a_custom_span_can_name_its_phase(seen):
    with span("my_judge", phase="reward"):
        assert len(spans.OPEN) == 1
    assert seen[0]["phase"] == "reward"
    assert not spans.OPEN


def test_span_and_event_take_the_same_keywords(seen):
    of_span, of_event = (dict(inspect.signature(made).parameters) for made in (span, event))
    assert [of_span["phase"], of_span["extra"]] == [of_event["phase"], of_event["extra"]]
    assert len(of_span) == len(of_event) == 3
    with bind(request_id="bound", turn=1):
        event("bought", phase="tool", request_id="mine", turn=4, cents=3)
        with span("buying", phase="tool", request_id="mine", turn=4, cents=3):
            pass
    for record in seen:
        assert record["phase"] == "tool"
        assert record["extra"] == {"request_id": "mine", "turn": 4, "cents": 3}


def test_only_spans_of_watched_phases_are_known_while_open(seen):
    with span("turn_post_process"):
        assert not spans.OPEN
    with span("tool_execution"), span("reward_calculation"):
        assert {open_span.event for open_span in spans.OPEN.values()} == {
            "tool_execution",
            "reward_calculation",
        }
    assert not spans.OPEN


def test_while_nothing_is_installed_a_span_still_measures():
    assert not sglang_instrument.installed()
    with span("parse") as timed:
        time.sleep(0.001)
    assert timed.duration_sec >= 0.001


@pytest.mark.parametrize("name", [["parse"], {}, None, 3], ids=str)
@pytest.mark.parametrize("phase", [None, "tool"])
def test_a_name_that_is_none_is_written_as_what_it_is_and_raises_nothing(seen, name, phase):
    with span(name, phase=phase, k=1):
        pass
    event(name, phase=phase)
    assert [(record["event"], record.get("extra")) for record in seen] == [(name, {"k": 1}), (name, None)]
    assert [record.get("phase") for record in seen] == [phase, phase]


def test_async_with_is_the_same_as_with(seen):
    async def run() -> None:
        async with span("parse") as timed:
            timed.add(n=1)

    asyncio.run(run())
    assert seen[0]["extra"] == {"n": 1}


def test_a_cancelled_span_says_so_and_stays_cancelled(seen):
    async def wait() -> None:
        with span("tool_execution"):
            await asyncio.sleep(10)

    async def run() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert seen[0]["error"] == "CancelledError"
    assert not spans.OPEN


def test_each_asyncio_task_has_a_number_and_names_who_spawned_it(seen):
    async def tool(name: str) -> None:
        with span("tool_execution", tool=name):
            await asyncio.sleep(0.001)

    async def request(name: str) -> None:
        with bind(request_id=name), span("async_rollout_request_complete"):
            with span("turn_engine_call"):
                await asyncio.sleep(0)
            await asyncio.gather(tool("a"), tool("b"))

    async def run() -> None:
        await asyncio.gather(request("r0"), request("r1"))

    with span("total_step_duration"):
        asyncio.run(run())
    requests = {record["extra"]["request_id"]: record for record in seen.of("async_rollout_request_complete")}
    step_task = seen.of("total_step_duration")[0]["task"]
    for tool_record in seen.of("tool_execution"):
        assert tool_record["spawned_by"] == requests[tool_record["extra"]["request_id"]]["task"]
    first_of_request = seen.of("turn_engine_call")
    assert [record["spawned_by"] for record in first_of_request] == [step_task, step_task]
    assert len({record["task"] for record in seen}) == 1 + 2 + 4


def test_a_task_keeps_its_number_from_bind_to_bind(seen):
    async def run() -> None:
        for turn in range(3):
            with bind(turn=turn), span("turn_end"), bind(request_id="r"), span("tool_execution"):
                await asyncio.sleep(0)
        event("after")

    asyncio.run(run())
    assert len({record["task"] for record in seen}) == 1


def test_a_thread_has_a_number_of_its_own_even_when_it_inherits_a_context(seen):
    async def run() -> None:
        with bind(request_id="r0"), span("async_rollout_request_complete"):
            await asyncio.gather(*(asyncio.to_thread(work) for _ in range(2)))

    both = threading.Barrier(2)

    def work() -> None:
        with span("tool_execution"):
            both.wait()

    asyncio.run(run())
    tasks = {record["task"] for record in seen}
    assert len(tasks) == 3
    assert all(record["extra"]["request_id"] == "r0" for record in seen)


def test_bound_ids_are_seen_by_tasks_and_end_with_the_block(seen):
    async def child() -> None:
        event("in child")

    async def run() -> None:
        with step(4), bind(worker=2, request_id="r", turn=0):
            await asyncio.create_task(child())
            with bind(turn=1):
                event("inner")
            event("outer again")
        event("after")

    asyncio.run(run())
    ids = [(record["step"], record["workid"], record.get("extra")) for record in seen]
    assert ids == [
        (4, 2, {"request_id": "r", "turn": 0}),
        (4, 2, {"request_id": "r", "turn": 1}),
        (4, 2, {"request_id": "r", "turn": 0}),
        (0, 0, None),
    ]


def test_validation_is_marked(seen):
    with bind(step=3, validate=True), span("total_step_duration"):
        pass
    assert seen[0]["validate"] is True


def test_one_bind_can_be_entered_again_while_it_is_open(seen):
    binding = bind(request_id="r")
    with binding, binding:
        event("inside")
    event("outside")
    assert seen[0]["extra"] == {"request_id": "r"}
    assert "extra" not in seen[1]


def test_ids_may_be_what_trainers_keep_them_in(seen):
    torch = pytest.importorskip("torch")
    with bind(step=torch.tensor(7), worker="3", request_id=torch.tensor(5), turn=1.0):  # type: ignore[arg-type]
        event("x")
    assert (seen[0]["step"], seen[0]["workid"]) == (7, 3)
    assert seen[0]["extra"] == {"request_id": 5, "turn": 1}


def test_a_span_that_ends_in_another_task_leaves_no_trace_in_either(seen):
    opened = bind(request_id="r")

    async def enter() -> None:
        opened.__enter__()

    async def leave() -> None:
        opened.__exit__(None, None, None)
        event("there")

    async def run() -> None:
        await asyncio.create_task(enter())
        await asyncio.create_task(leave())
        event("here")

    asyncio.run(run())
    assert all("extra" not in record for record in seen)


def test_a_task_that_outlives_an_installation_is_announced_to_the_next_one():
    async def request():
        with records() as first, span("did"):
            pass
        with records() as second:
            for _ in range(2):
                with span("did"):
                    pass
        return first, second

    first, second = asyncio.run(request())
    assert "spawned_by" in first[0]
    assert ["spawned_by" in record for record in second] == [True, False]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_span_that_is_part_of_what_a_program_copies_is_copied(again):
    with bind(step=3, request_id="a"), span("parse", tokens=3) as run:
        context = CURRENT.get()
    copied = again({"run": run, "context": context, "task": thread_task(1)})
    said = ("event", "extra", "start", "end", "error")
    assert [getattr(copied["run"], name) for name in said] == [getattr(run, name) for name in said]
    assert (copied["context"].step, copied["context"].request_id) == (3, "a")
    assert copied["task"].number == thread_task(1).number


class Own(Span):
    def __enter__(self):
        self.add(own=True)
        return super().__enter__()


class Called(Span):
    def __call__(self):
        return "called"


@pytest.mark.parametrize("kind", [Own, Called])
def test_a_class_derived_from_a_span_s_is_recorded_as_one(seen, kind):
    with kind("own") as run:
        pass
    assert isinstance(run, kind)
    with pytest.raises(KeyError), kind("fails"):
        raise KeyError
    assert [(record["event"], record.get("error")) for record in seen] == [
        ("own", None),
        ("fails", "KeyError"),
    ]
