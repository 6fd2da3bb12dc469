"""Every record becomes one line of JSON, whatever it holds."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_instrument import bind, event, native, schema, span
from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.line_types import LONGEST_LINE
from sglang_instrument.recording.measure import identity
from sglang_instrument.recording.measure.context import Context
from sglang_instrument.recording.measure.scopes import scope_for
from sglang_instrument.recording.measure.spans import Span
from sglang_instrument.recording.measure.tasks import Task
from sglang_instrument.testing import records

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner) | st.tuples(inner)
    ),
    max_leaves=20,
)


@given(values)
def test_any_value_becomes_one_valid_line_and_its_neighbours_are_untouched(value):
    with records() as seen:
        with bind(step=1, request_id="r", turn=0):
            event("before", n=1)
            event("value", value=value)
            event("after", n=2)
        assert seen[0]["extra"] == {"request_id": "r", "turn": 0, "n": 1}
        assert "value" in seen[1]["extra"]
        assert seen[2]["extra"] == {"request_id": "r", "turn": 0, "n": 2}


@given(st.lists(values, max_size=6))
def test_a_batch_with_bad_values_keeps_every_record(some):
    encoder = LineEncoder(Clock())
    context = Context(scope=scope_for("worker", 0, 5, False))
    batch = [
        Span("x", {"value": repr(value) if isinstance(value, bytes) else value}, context=context)
        for value in some
    ]
    batch.append(Span("last", {"value": "\ud800"}, context=context))
    ((_, encoded, changed, _),) = encoder.encode_all(batch)
    assert [json.loads(line)["event"] for line in encoded.splitlines()] == ["x"] * len(some) + ["last"]
    assert changed >= 1


def test_a_record_that_is_too_long_keeps_its_short_fields():
    with records() as seen:
        event("big", n=3, **{f"text{index}": "x" * 16_000 for index in range(300)})
        event("small")
    assert seen[0]["extra"] == {"n": 3, "truncated": True}
    assert seen[1]["event"] == "small"


def test_no_line_is_longer_than_the_limit():
    encoder = LineEncoder(Clock())
    context = Context(scope=scope_for("worker", 0, 5, False))
    batch = [Span("e" * 100_000, {str(index): "y" * 300 for index in range(5000)}, context=context)]
    ((_, encoded, _, _),) = encoder.encode_all(batch)
    assert len(encoded) <= LONGEST_LINE


def test_nan_and_infinities_become_null():
    with records() as seen:
        event("x", nan=float("nan"), inf=float("-inf"))
    assert seen[0]["extra"] == {"nan": None, "inf": None}


def test_the_fast_and_the_general_encoding_write_the_same():
    """A span without fields takes the fast path; the same span with an empty phase takes the general one."""
    with records() as seen, bind(step=2, worker=1, request_id='a"b\\', turn=3):
        with span("turn_engine_call"):
            pass
        with span("turn_engine_call") as long_way:
            long_way.phase = ""
    short, long = seen
    assert list(short) == [key for key in long if key != "phase"]
    assert {key: short[key] for key in ("event", "extra", "workid", "step", "task")} == {
        key: long[key] for key in ("event", "extra", "workid", "step", "task")
    }


def test_timestamps_follow_the_clock_through_every_second_and_millisecond():
    from datetime import datetime

    clock = Clock()
    encoder = LineEncoder(clock)
    context = Context(scope=scope_for("worker", 0, 1, False), extra={"request_id": "r"})
    start = time.perf_counter_ns()
    batch = [
        Span("x", None, context=context, start=start, end=start + offset * 333_333)
        for offset in range(1, 5000, 7)
    ]
    ((_, encoded, _, _),) = encoder.encode_all(batch)
    for line, made in zip(encoded.splitlines(), batch, strict=True):
        written = datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp()
        assert written == pytest.approx(clock.epoch_us(made.end) / 1e6, abs=1e-6)


def test_spawned_by_is_only_in_the_first_record_of_a_task():
    encoder = LineEncoder(Clock())
    context = Context(scope=scope_for("worker", 0, 1, False), extra={"turn": 1})
    task = Task(7, 3)
    batch = [Span("x", None, context=context, end=2**62, task=task) for _ in range(3)]
    ((_, encoded, _, _),) = encoder.encode_all(batch)
    made = [json.loads(line) for line in encoded.splitlines()]
    assert [line.get("spawned_by") for line in made] == [3, None, None]
    assert [line["task"] for line in made] == [7, 7, 7]


@pytest.mark.parametrize("compiled", [False, native.ON])
def test_ids_bound_before_a_process_learnt_its_number_are_written_with_it(monkeypatch, compiled):
    monkeypatch.delenv("RANK", raising=False)
    encoder = LineEncoder(Clock(), compiled=compiled)
    context = Context(request_id="r", extra={"request_id": "r"})
    try:
        for rank in (3, 4):
            identity.learn(worker=rank)
            spans = [Span("did", context=context, thread=1, start=10**9, end=2 * 10**9) for _ in range(2)]
            ((_, lines, _, _),) = encoder.encode_all(spans)
            assert [json.loads(line)["workid"] for line in lines.splitlines()] == [rank, rank]
    finally:
        identity.forget()


def test_the_event_names_of_the_vocabulary_are_the_ones_of_the_reference():
    assert len(schema.REFERENCE_EVENTS) == 36
    assert all(kind.phase in schema.PHASES for kind in schema.EVENTS.values())
