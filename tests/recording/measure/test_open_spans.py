"""The watchdog reads the same open spans from compiled and pure Python code."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_instrument.recording.measure.reentry import AGAIN
from sglang_instrument.recording.measure.spans import OPEN, WatchedSpan


def ids(spans):
    return {id(span) for span in spans}


@given(st.lists(st.tuples(st.sampled_from(["enter", "enter again", "leave", "clear"]), st.integers(0, 1000))))
def test_open_spans_are_those_entered_and_not_left(steps):
    entered, expected = [], []
    for what, number in steps:
        if what == "enter":
            span = WatchedSpan(f"event {number}")
            span.__enter__()
            entered.append((span, [span]))
            expected.append(span)
        elif what == "enter again" and entered:
            span, blocks = entered[number % len(entered)]
            blocks.append(span.__enter__())
            expected.append(blocks[-1])
        elif what == "leave" and entered:
            span, blocks = entered[number % len(entered)]
            span.__exit__(None, None, None)
            left = blocks.pop()
            expected = [open_span for open_span in expected if open_span is not left]
            entered = [pair for pair in entered if pair[1]]
        elif what == "clear":  # as in a forked child, which may still leave spans that its parent entered
            OPEN.clear()
            expected = []
        assert len(OPEN) == len(expected)
        assert bool(OPEN) is bool(expected)
        assert ids(OPEN.values()) == ids(expected)
        assert {key: span.event for key, span in OPEN.items()} == {
            id(open_span): open_span.event for open_span in expected
        }
    OPEN.clear()
    for span, blocks in entered:
        for _ in blocks:
            span.__exit__(None, None, None)
    assert not OPEN
    assert not AGAIN


def test_an_open_span_is_kept_alive_without_other_references():
    WatchedSpan("kept").__enter__()
    assert [span.event for span in OPEN.values()] == ["kept"]
    OPEN.clear()
