"""Spans of the compiled parts lie in slabs of memory, which are used again when they are empty."""

import pytest

from sglang_instrument import native
from sglang_instrument.recording.spans import Span, WatchedSpan

pytestmark = pytest.mark.skipif(not native.ON, reason="memory is Python's own where nothing is compiled")

SLAB_BYTES = 8192
SLABS = 4096


def slabs_of(spans):
    return {id(span) // SLAB_BYTES for span in spans}


def made(count):
    return [Span(f"event {number}", {"number": number}) for number in range(count)]


def test_memory_is_used_again_when_its_spans_are_gone():
    slabs_of(made(5000))
    once = slabs_of(made(5000))
    for _ in range(20):
        once |= slabs_of(made(5000))
    assert len(once) < 2 * len(slabs_of(made(5000)))


def test_spans_lie_side_by_side():
    assert len(slabs_of(made(1000))) < 1000 // 20


def test_a_span_that_stays_keeps_its_own_while_others_come_and_go():
    staying = []
    for number in range(200):
        staying.append(WatchedSpan(f"stays {number}", {"number": number}))
        made(100)
    assert [span.event for span in staying] == [f"stays {number}" for number in range(200)]
    assert [span.extra for span in staying] == [{"number": number} for number in range(200)]


def test_spans_that_stay_keep_no_more_slabs_than_there_are():
    staying = []
    for number in range(SLABS + 1000):
        staying.append(Span("stays", {"number": number}))
        made(64)
    assert len(slabs_of(staying[:1000])) > 900
    assert len(slabs_of(staying[-900:])) < 100  # in memory of Python's, which is used again block by block
    assert [span.extra for span in staying] == [{"number": number} for number in range(SLABS + 1000)]


def test_a_class_of_the_program_s_own_has_memory_of_python_s():
    class Own(Span):
        pass

    class Slotted(WatchedSpan):
        __slots__ = ("note",)

    spans = [kind("event", {"number": number}) for number in range(1000) for kind in (Own, Slotted)]
    for span in spans:
        span.note = span.extra["number"]
    assert [span.note for span in spans[::2]] == [span.note for span in spans[1::2]] == list(range(1000))
