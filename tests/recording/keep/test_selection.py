"""Records are kept by level of detail, by sampled and by slow requests; dropped ones are counted."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_instrument import Config, bind, flush, span, status, step
from sglang_instrument.recording.keep import selection
from sglang_instrument.recording.keep.selection import Selection, is_drawn, selection_for
from sglang_instrument.recording.measure.context import Context
from sglang_instrument.recording.measure.scopes import Scope
from sglang_instrument.recording.measure.spans import Span
from sglang_instrument.schema import CONTROL_EVENTS

SECOND = 10**9


def record(request_id, event="turn_engine_call", duration_sec=1.0, error=None, scope=None, start=0):
    context = Context(request_id=request_id, scope=scope, step=1)
    end = start + int(duration_sec * SECOND)
    return Span(event, context=context, thread=0, start=start, end=end, error=error)


def request(request_id, duration_sec, **more):
    return record(request_id, "async_rollout_request_complete", duration_sec, **more)


@pytest.fixture
def scope():
    return Scope("worker", 0, 1, False, open=1)


def sampling(share):
    return Selection("all", share, lambda context: pytest.fail("every record of these tests has a scope"))


def ids(spans):
    return [span.context.request_id for span in spans]


@pytest.mark.parametrize(
    ("detail", "events"),
    [
        ("step", ["barrier"]),
        ("request", ["barrier", "reward_calculation", "async_rollout_request_complete", "mine"]),
        (
            "turn",
            [
                "turn_engine_call",
                "tool_execution",
                "turn_end",
                "reward_calculation",
                "async_rollout_request_complete",
                "mine",
                "barrier",
            ],
        ),
        (
            "all",
            [
                "turn_tool_parsing",
                "turn_engine_call",
                "tool_execution",
                "turn_end",
                "reward_calculation",
                "async_rollout_request_complete",
                "mine",
                "barrier",
            ],
        ),
    ],
)
def test_detail_keeps_records_up_to_its_level(install, records_below, detail, events):
    folder = install(detail=detail)
    with step(1):
        with bind(request_id="a"):
            with span("async_rollout_request_complete"):
                for event in ("turn_tool_parsing", "turn_engine_call", "tool_execution", "turn_end"):
                    with span(event, turn=0):
                        pass
                with span("reward_calculation"):
                    pass
            with span("mine"):
                pass
        with span("barrier"):
            pass
    flush(600)
    written = records_below(folder)["step_1/worker_0.jsonl"]
    seen = [record["event"] for record in written if record["event"] not in CONTROL_EVENTS]
    assert sorted(seen) == sorted(events)
    assert written[-1]["extra"] == {"written": len(events), "dropped": 0, "sampled_out": 0}


def test_no_selection_is_made_if_everything_is_kept():
    assert selection_for(Config(), Context) is None
    assert selection_for(Config(sample_requests=0.5), Context) is not None
    assert selection_for(Config(detail="turn"), Context) is not None


def test_every_process_draws_the_same_requests():
    code = """
from sglang_instrument.recording.keep.selection import is_drawn
print([number for number in range(1000) if is_drawn(f"request {number}", 0.1)])
"""
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    drawn = [number for number in range(1000) if is_drawn(f"request {number}", 0.1)]
    assert answers == {f"{drawn}\n".encode()}
    assert 70 <= len(drawn) <= 130


@pytest.mark.parametrize(
    "make", [str, int, "{:032x}".format, "a request of the name {}".format, "é\ud800{}".format]
)
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_the_share_that_is_drawn_is_the_share_that_was_asked_for(make, share):
    drawn = sum(is_drawn(make(number), share) for number in range(10_000)) / 10_000
    assert drawn == pytest.approx(share, abs=0.02)


def test_a_drawn_request_is_written_at_once(scope):
    half = sampling(0.5)
    drawn = next(number for number in range(100) if is_drawn(number, 0.5))
    assert ids(half.keep([record(drawn, scope=scope)])) == [drawn]


def test_records_outside_of_requests_are_always_written(scope):
    assert ids(sampling(0).keep([record(None, scope=scope)])) == [None]


def test_of_requests_that_end_in_the_order_of_their_durations_only_the_slowest_are_kept(scope):
    none = sampling(0)
    for number in range(100):
        spans = [record(number, scope=scope), request(number, 1 + number / 100, scope=scope)]
        assert none.keep(spans) == []
    assert set(ids(none.end_step(scope))) == {95, 96, 97, 98, 99}
    assert scope.sampled_out == none.sampled_out == 190


def test_the_slowest_request_of_a_small_step_is_kept(scope):
    none = sampling(0)
    none.keep([request(name, sec, scope=scope) for name, sec in (("a", 1), ("b", 3), ("c", 2))])
    assert ids(none.end_step(scope)) == ["b"]


def test_a_request_that_failed_is_kept_and_one_that_was_cancelled_is_not(scope):
    none = sampling(0)
    none.keep(
        [
            request("failed", 1, error="ValueError", scope=scope),
            request("cancelled", 2, error="CancelledError", scope=scope),
            request("slowest", 3, scope=scope),
        ]
    )
    assert ids(none.end_step(scope)) == ["failed", "slowest"]


def test_a_request_that_has_not_ended_when_its_step_has_is_kept(scope):
    none = sampling(0)
    none.keep([record("stuck", scope=scope), request("a", 1, scope=scope), request("b", 2, scope=scope)])
    assert ids(none.end_step(scope)) == ["stuck", "b"]


def test_a_late_record_is_kept_or_dropped_as_its_request_was(scope):
    none = sampling(0)
    none.keep([request("quick", 1, scope=scope), request("slow", 2, scope=scope)])
    none.end_step(scope)
    scope.open = 0
    late = [record(name, "reward_calculation", scope=scope) for name in ("quick", "slow", "nobody knows")]
    assert ids(none.keep(late)) == ["slow", "nobody knows"]
    assert scope.sampled_out == 2


def test_a_step_that_is_bound_again_is_sampled_again(scope):
    none = sampling(0)
    none.keep([request("a", 1, scope=scope)])
    assert ids(none.end_step(scope)) == ["a"]
    # As in the writer: the second block has ended before its records are selected.
    scope.open, scope.ended = 0, True
    assert none.keep([request("b", 0.5, scope=scope), request("c", 2, scope=scope)]) == []
    assert ids(none.end_step(scope)) == ["c"]


def test_what_is_held_for_requests_that_never_end_is_bounded(scope):
    none = sampling(0)
    written = 0
    for number in range(3 * selection.MOST_HELD):
        written += len(none.keep([record(number % 100, scope=scope)]))
    assert written >= 2 * selection.MOST_HELD
    assert written + len(none.end()) == 3 * selection.MOST_HELD


def test_what_is_held_of_a_step_that_never_ends_is_decided_on_as_it_goes(scope):
    none = sampling(0)
    written = []
    for number in range(selection.MOST_HELD + 1):
        written += none.keep([request(number, 1 + number % 100, scope=scope)])
    assert 0.04 < len(written) / selection.MOST_HELD < 0.07
    assert len(written) + scope.sampled_out == selection.MOST_HELD + 1


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["turn_engine_call", "reward_calculation"]))),
    st.lists(st.integers(1, 100), min_size=21, max_size=21),
    st.floats(0, 1),
    st.integers(1, 10),
)
def test_a_request_is_kept_as_a_whole_or_left_out_as_a_whole_and_counted(work, durations, share, chunk):
    scope = Scope("worker", 0, 1, False, open=1)
    spans = [record(number, event, scope=scope, start=start) for start, (number, event) in enumerate(work)]
    spans += [request(number, seconds, scope=scope) for number, seconds in enumerate(durations)]
    chosen = sampling(share)
    written = []
    for start in range(0, len(spans), chunk):
        written += chosen.keep(spans[start : start + chunk])
    written += chosen.end_step(scope)
    assert set(ids(written)) >= {number for number in range(21) if is_drawn(number, share)}
    for number in range(21):
        assert ids(written).count(number) in (0, ids(spans).count(number))
    assert len({id(span) for span in written}) == len(written) == len(spans) - scope.sampled_out


def test_a_step_says_how_many_of_its_records_were_left_out(install, records_below):
    folder = install(sample_requests=0.1)
    with step(1):
        for number in range(200):
            with bind(request_id=number), span("async_rollout_request_complete"), span("turn_engine_call"):
                pass
    flush(600)
    written = records_below(folder)["step_1/worker_0.jsonl"]
    counts = written[-1]["extra"]
    assert written[-1]["event"] == "step_closed"
    assert counts["written"] == len(written) - 2
    assert counts["written"] + counts["sampled_out"] == 400
    assert counts["sampled_out"] == status()["records"]["sampled_out"] > 300
    by_request = [record["extra"]["request_id"] for record in written[1:-1]]
    assert {by_request.count(number) for number in set(by_request)} == {2}


def test_what_is_held_when_everything_stops_is_decided_on(run_script):
    run = run_script(
        """
        import sglang_instrument

        sglang_instrument.install(sample_requests=0)
        for number in range(10):
            with sglang_instrument.bind(request_id=number):
                with sglang_instrument.span("async_rollout_request_complete"):
                    pass
        """
    )
    (written,) = run.records.values()
    assert [record["event"] for record in written] == [
        "log_opened",
        "async_rollout_request_complete",
        "log_closed",
    ]


def test_with_durability_line_a_drawn_request_is_in_its_file_at_once(install, records_below):
    folder = install(durability="line", sample_requests=0.5)
    drawn = next(number for number in range(100) if is_drawn(number, 0.5))
    with step(1):
        with bind(request_id=drawn), span("turn_engine_call"):
            pass
        assert records_below(folder)["step_1/worker_0.jsonl"][-1]["extra"]["request_id"] == drawn
