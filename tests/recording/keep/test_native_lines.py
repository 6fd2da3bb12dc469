"""The compiled and the pure encoder write the same lines for any records."""

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_instrument import native
from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.line_types import LONGEST_LINE
from sglang_instrument.recording.measure.context import Context
from sglang_instrument.recording.measure.scopes import Scope
from sglang_instrument.recording.measure.spans import Span
from sglang_instrument.recording.measure.tasks import Task

pytestmark = pytest.mark.skipif(not native.ON, reason=f"nothing is compiled: {native.REASON}")

CLOCK = Clock()
SCOPES = [
    Scope("worker", 0, 5, False),
    Scope("worker", 3, 2**40, False),
    Scope("worker", 1, 5, True),
    Scope("server", 7, None, False),
]
NOW = 10**15

texts = st.text(st.characters(), max_size=40) | st.sampled_from(
    [
        "",
        '"',
        "\\",
        "a\x00b",
        "\x1f\x7f\x80",
        "é",
        "日本",
        "🚀" * 3,
        "\ud800",
        "x" * 7,
        "y" * 8 + '"',
        "z" * 300,
    ]
)
floats = st.floats() | st.integers(-(10**12), 10**12).flatmap(
    lambda whole: st.sampled_from([whole / 10, whole / 1000, whole / 1e9, whole * 1.0])
)
scalars = st.none() | st.booleans() | st.integers() | st.integers(-(2**66), 2**66) | floats | texts
values = st.recursive(
    scalars | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(texts | st.integers(), inner, max_size=5)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)
fields = st.none() | st.dictionaries(
    st.sampled_from(["request_id", "turn", "tokens"]) | texts, values, max_size=5
)
ids = (
    st.none()
    | st.fixed_dictionaries({"request_id": texts | st.integers(0, 2**63 - 1)})
    | st.fixed_dictionaries({"request_id": texts, "turn": st.integers(-(2**63), 2**63 - 1)})
)
starts = st.integers(NOW - 10**12, NOW + 10**12) | st.integers(0, 2**61)
durations = (
    st.none() | st.integers(0, 10**6) | st.integers(-(10**9), 2**52) | st.sampled_from([1, 999, 10**9])
)
spans = st.fixed_dictionaries(
    {
        "event": st.sampled_from(["turn_engine_call", "tool_execution"]) | texts,
        "extra": fields,
        "phase": st.none() | texts,
        "waited": st.none() | st.integers(0, 2**52),
        "start": starts,
        "duration": durations,
        "error": st.none() | texts,
        "task": st.integers(-1, 2),
        "context": st.integers(0, 3),
        "device_sec": st.none() | st.floats(0, 1e6),
    }
)


def encoded(described, contexts, compiled):
    """Return by scope an encoder's lines of described spans, and how many records were changed."""
    known = [
        Context(scope=SCOPES[scope], extra=None if extra is None else dict(extra))
        for scope, extra in contexts
    ]
    tasks = [Task(number, spawned_by) for number, spawned_by in ((7, 3), (8, None), (9, 0))]
    made = []
    for description in described:
        span = Span(
            description["event"],
            description["extra"],
            phase=description["phase"],
            waited=description["waited"],
            context=known[description["context"]],
            thread=1,
            start=description["start"],
            end=0 if description["duration"] is None else description["start"] + description["duration"],
            error=description["error"],
            task=None if description["task"] < 0 else tasks[description["task"]],
        )
        span.device_sec = description["device_sec"]
        made.append(span)
    written = {}
    for scope, lines, changed, records in LineEncoder(CLOCK, compiled=compiled).encode_all(made):
        assert lines.count(b"\n") == records
        written[SCOPES.index(scope)] = lines, changed
    return written


def read(lines):
    """Return the records as lists of pairs, because the order of keys counts; NaN is refused."""
    parsed = []
    for line in lines.splitlines():
        assert len(line) < LONGEST_LINE
        parsed.append(json.loads(line, object_pairs_hook=list, parse_constant=pytest.fail))
    return parsed


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.lists(spans, max_size=12),
    st.lists(st.tuples(st.integers(0, 3), ids), min_size=4, max_size=4),
)
def test_any_spans_are_written_as_the_pure_encoder_writes_them(described, contexts):
    pure = encoded(described, contexts, compiled=False)
    compiled = encoded(described, contexts, compiled=True)
    assert compiled.keys() == pure.keys()
    for scope, (lines, changed) in pure.items():
        assert read(compiled[scope][0]) == read(lines)
        assert compiled[scope][1] == changed


USUAL = {
    "event": "tool_execution",
    "extra": None,
    "phase": None,
    "waited": None,
    "start": NOW,
    "duration": 401_417_962,
    "error": None,
    "task": 0,
    "context": 0,
    "device_sec": None,
}
CONTEXTS = [(0, {"request_id": "r0", "turn": 1}), (1, {"request_id": 'a"b\\'}), (2, None), (3, {"turn": 3})]


def both(*described):
    """Return the lines of both encoders for usual spans with the given changes."""
    made = [USUAL | change for change in described]
    return [encoded(made, CONTEXTS, compiled) for compiled in (False, True)]


@pytest.mark.parametrize(
    "described",
    [
        {},
        {"duration": None, "extra": {"n": 1}},
        {"duration": 123_456_789_012_345},
        {"duration": 10**10},
        {"duration": -400_000_001},
        {"waited": 401_000_000},
        {"waited": 500_000_000},
        {"extra": {"k": 1, "ok": True, "no": False, "none": None, "text": "tab\tend\x00", "é": "日本 🚀"}},
        {"extra": {"turn": 9, "request_id": "own", "n": -5}},
        {"extra": {"list": [1, [2, (3, "x")], {}], "dict": {"a": {"b": []}}, "empty": ""}},
        {"extra": {"f": [0.0, -0.0, 0.1, -2.5, 1e15, 1e16, 0.30000000000000004, 5e-324, float("nan")]}},
        {"extra": {"big": [2**63 - 1, -(2**63), 2**63, 2**64 - 1]}},
        {"extra": {}},
        {"error": "ValueError", "phase": "", "device_sec": 1.25},
        {"context": 1},
        {"context": 2},
        {"context": 3, "extra": {"n": 0}},
    ],
    ids=str,
)
def test_usual_records_are_the_same_to_the_byte(described):
    pure, compiled = both(described, described)
    assert compiled == pure


@given(st.integers(0, 2**53) | st.integers(0, 10**12))
def test_a_duration_is_read_as_the_same_number(duration):
    ((lines, _),) = both({"duration": duration or 1})[1].values()
    assert json.loads(lines)["duration_sec"] == (duration or 1) / 1e9


@given(st.floats(allow_nan=False, allow_infinity=False) | floats.filter(math.isfinite))
def test_a_float_is_read_as_the_same_number(number):
    ((lines, _),) = both({"extra": {"f": number}})[1].values()
    said = json.loads(lines)["extra"]["f"]
    assert (type(said), said, math.copysign(1, said)) == (float, number, math.copysign(1, number))


def test_a_record_without_end_keeps_its_place_and_its_neighbours():
    cycle = [1]
    cycle.append(cycle)
    nested = []
    for _ in range(100_000):
        nested = [nested]
    pure, compiled = both({}, {"extra": {"c": cycle}}, {"extra": {"n": nested}}, {"extra": {"ok": 1}})
    assert compiled == pure
    lines, changed = compiled[0]
    extras = [json.loads(line)["extra"] for line in lines.splitlines()]
    assert extras == [{"request_id": "r0", "turn": 1}, *[{"truncated": True}] * 2, extras[0] | {"ok": 1}]
    assert changed == 2


@pytest.mark.parametrize("start", [-(2**62), -1, 0, 999, 2**62])
def test_times_of_any_size_are_written(start):
    pure, compiled = both({"start": start})
    assert compiled == pure


def test_a_record_that_is_too_long_is_cut_alike():
    long = {f"text{index}": "x" * 16_000 for index in range(10)}
    pure, compiled = both(
        {},
        {"extra": long | {"n": 3}},
        {"event": "e" * 70_000},
        {"event": "\x01" * 12_000},
        {"error": "é" * 40_000},
    )
    assert compiled == pure
    assert compiled[0][1] == 4


def spans_of(count, extra):
    context = Context(scope=SCOPES[0], extra={"request_id": "r"})
    return [Span("x", extra(number), context=context, start=NOW, end=NOW + 1) for number in range(count)]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_chunk_releases_the_spans_that_it_encoded_and_no_other(compiled):
    spans = spans_of(5000, lambda number: {"n": number})
    encoder, end, seen = LineEncoder(CLOCK, compiled=compiled), 0, []
    while end < len(spans):
        end, ((_, lines, changed, _),) = encoder.encode_chunk(spans, end)
        seen += [json.loads(line)["extra"]["n"] for line in bytes(lines).splitlines()]
        assert (len(seen), changed) == (end, 0)
        assert spans[:end] == [None] * end
        assert None not in spans[end:]
    assert seen == list(range(5000))


def test_a_chunk_of_long_records_ends_early():
    spans = spans_of(500, lambda number: {"text": "x" * 16_000, "more": "y" * 16_000, "n": number})
    encoder, end, ends, pieces_so_far = LineEncoder(CLOCK), 0, [], []
    while end < len(spans):
        end, pieces = encoder.encode_chunk(spans, end)
        ends.append(end)
        pieces_so_far += pieces  # a returned chunk stays unchanged while later ones are made
    assert max(after - before for before, after in zip([0, *ends], ends, strict=False)) < 10
    written = b"".join(bytes(lines) for _, lines, _, _ in pieces_so_far)
    assert [json.loads(line)["extra"]["n"] for line in written.splitlines()] == list(range(500))


def test_a_few_lines_hold_no_more_memory_than_they_need():
    encoder = LineEncoder(CLOCK)
    encoder.encode_chunk(spans_of(1000, lambda number: {"text": "x" * 200}), 0)
    _, ((_, lines, _, _),) = encoder.encode_chunk(spans_of(1, lambda number: None), 0)
    assert type(lines) is bytes


def test_lines_of_several_files_do_not_mix():
    described = [{"context": number % 4, "extra": {"n": number}} for number in range(1000)]
    pure, compiled = both(*described)
    assert compiled == pure
    assert sorted(compiled) == [0, 1, 2, 3]


def test_a_context_whose_defaults_change_goes_where_they_say(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    context = Context(extra={"turn": 1})
    encoder = LineEncoder(CLOCK)
    monkeypatch.setenv("RANK", "1")
    first = encoder.encode_all([Span("x", context=context, end=NOW)])
    monkeypatch.setenv("RANK", "2")
    second = encoder.encode_all([Span("x", context=context, end=NOW)])
    assert [json.loads(lines)["workid"] for ((_, lines, _, _),) in (first, second)] == [1, 2]


def test_an_object_that_is_no_span_affects_no_other_record():
    spans = [spans_of(1, lambda number: {"n": 1})[0], "no span", Span("x", context="no context")]
    spans += spans_of(1, lambda number: {"n": 2})
    ((_, lines, _, records),) = LineEncoder(CLOCK).encode_all(spans)
    assert ([json.loads(line)["extra"]["n"] for line in lines.splitlines()], records) == ([1, 2], 2)
