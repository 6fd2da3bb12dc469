"""What a table's fields read is kept without a dict, and shown and written as if it were one."""

import copy
import json
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument import native
from sglang_instrument.patching.probe import probes_for
from sglang_instrument.patching.tables import parse_table
from sglang_instrument.recording import spans
from sglang_instrument.recording.clock import Clock
from sglang_instrument.recording.context import push
from sglang_instrument.recording.lines import LineMaker

pytestmark = pytest.mark.skipif(not native.ON, reason=f"nothing is compiled: {native.REASON}")

NAMES = ["a", "b", "c", "d", "e"]
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.integers(), st.floats(), st.text(), st.binary(max_size=3)
)
values = st.recursive(
    scalars, lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(), one, max_size=3), max_leaves=8
)


@pytest.fixture(scope="module")
def recorded():
    """Run what it is given, and return the spans that ended meanwhile."""
    before = spans.current_buffer()

    def run(program):
        taken = []
        spans.use_buffer(taken, int)
        try:
            program()
        finally:
            spans.use_buffer(before, int)
        return taken

    return run


def probes(*regions):
    """Return the probes of regions of one function, by event."""
    patch = {"target": "function", "region": list(regions)}
    table = parse_table("extras.toml", {"trainer": "test", "module": "extras", "patch": [patch]})
    regions = table.patches[0].regions
    make = probes_for(regions)
    return {region.event: make(region) for region in regions}


def run_of(probe, known, within=lambda: None):
    """Be the rewritten code around a region."""
    with probe(*[known[name] for name in probe.enter_locals]) as run:
        within()
        if probe.exit_locals:
            run.leave(*[known[name] for name in probe.exit_locals])


def lines_of(taken):
    """Return the lines of spans, without their times."""
    maker, begin, lines = LineMaker(Clock()), 0, []
    taken = list(taken)
    while begin < len(taken):
        begin, pieces = maker.encode_chunk(taken, begin)
        lines += [bytes(encoded) for _, encoded, _, _ in pieces]
    return b"".join(lines)


EXIT = {name: name for name in NAMES[1:]}
WHOLE = probes({"event": "whole", "enter": {"a": "a", "x": "b"}, "exit": {**EXIT, "sizes": "size(e)"}})[
    "whole"
]


@settings(max_examples=200, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(NAMES, values)), st.booleans())
def test_what_is_read_is_written_as_it_is_shown(recorded, known, bound):
    def program():
        pushed = push({"request_id": "r", "turn": 3}) if bound else None
        run_of(WHOLE, known)
        if pushed is not None:
            pushed.pop()

    (span,) = recorded(program)
    kept = lines_of([span])
    shown = span.extra
    assert type(shown) is dict
    assert span.extra is shown  # it may be changed
    assert list(shown)[:2] == ["a", "x"]
    assert kept == lines_of([span])
    assert repr(copy.copy(span).extra) == repr(pickle.loads(pickle.dumps(span)).extra) == repr(shown)


SUMS = [(kind, event) for kind in ("total", "sum", "mean") for event in ("part", "own")]
PARTS = probes(
    {"event": "part", "exit": {"n": "n", "nothing": "n.nothing"}},
    {"event": "own", "exit": {"duration_sec": "n", "turn": "n"}},
    {
        "event": "whole",
        "exit": {
            **{f"{kind}_{event}": f"{kind}(inside.{event}[*].duration_sec)" for kind, event in SUMS},
            "percent": "percent(inside.part[*].duration_sec)",
            "rows": "inside.part[*]{turn, took: duration_sec, n, nothing}",
            "numbers": "inside.part[*].n",
            "turns": "inside.own[*].turn",
            "most": "max(inside.part[*].duration_sec)",
            "any": "any(inside.own)",
        },
    },
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=5), st.lists(st.integers(0, 9), max_size=3), st.booleans())
def test_parts_add_up_to_what_their_records_say(recorded, parts, owns, bound):
    def within():
        for number in parts:
            run_of(PARTS["part"], {"n": number})
        for number in owns:
            run_of(PARTS["own"], {"n": number})

    def program():
        pushed = push({"turn": 7}) if bound else None
        run_of(PARTS["whole"], {}, within)
        if pushed is not None:
            pushed.pop()

    *inner, whole = recorded(program)
    kept = lines_of([whole])
    durations = [span.duration_sec for span in inner if span.event == "part"]
    turn = {"turn": 7} if bound else {}
    expected = {
        "total_part": sum(durations),
        "total_own": sum(owns),
        **({"sum_part": sum(durations)} if durations else {}),
        **({"sum_own": sum(owns)} if owns else {}),
        "mean_part": sum(durations) / len(durations) if durations else 0,
        "mean_own": sum(owns) / len(owns) if owns else 0,
        "percent": round(100 * sum(durations) / whole.duration_sec, 2) if durations else 0.0,
        "rows": [{**turn, "took": took, "n": number} for took, number in zip(durations, parts, strict=True)],
        "numbers": parts,
        "turns": owns,
        "most": max(durations, default=0),
        "any": bool(owns),
    }
    assert json.loads(kept)["extra"] == {**turn, **expected}
    assert whole.extra == expected
    assert {name: type(value) for name, value in whole.extra.items()} == {
        name: type(value) for name, value in expected.items()
    }
    assert kept == lines_of([whole])


def test_a_field_that_is_bound_too_is_the_record_s_own(recorded):
    own = probes({"event": "own", "exit": {"turn": "n", "request_id": "n", "share": "x"}})["own"]

    def program():
        pushed = push({"turn": 7, "request_id": "r"})
        run_of(own, {"n": 2, "x": math.nan})
        pushed.pop()

    (span,) = recorded(program)
    assert json.loads(lines_of([span]))["extra"] == {"request_id": 2, "turn": 2, "share": None}


def test_a_field_at_both_ends_is_that_of_the_second(recorded):
    probe = probes({"event": "whole", "enter": {"a": "a", "b": "b"}, "exit": {"b": "c", "d": "d"}})["whole"]
    (span,) = recorded(lambda: run_of(probe, {"a": 1, "b": 2, "c": 3, "d": 4}))
    assert json.loads(lines_of([span]))["extra"] == {"a": 1, "b": 3, "d": 4} == span.extra


def test_a_region_without_any_of_its_fields_has_none(recorded):
    probe = probes({"event": "whole", "exit": {"b": "b.missing"}})["whole"]
    (span,) = recorded(lambda: run_of(probe, {"b": None}))
    assert "extra" not in json.loads(lines_of([span]))
    assert span.extra == {}
