"""Listeners hear each span and each instant event as it begins; a listener that fails costs no record."""

import pytest

from sglang_instrument import event, span, step
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.safety import notices
from sglang_instrument.recording.watch import span_listeners
from sglang_instrument.testing import records


@pytest.fixture
def listen():
    """Add listeners; remove them all at the end."""
    listening = []

    def add(began):
        listening.append(began)
        span_listeners.listen(began)

    yield add
    for began in listening:
        span_listeners.ignore(began)


def test_a_listener_hears_spans_and_instant_events_however_they_are_recorded(listen):
    heard = []
    with records() as seen, step(1):
        listen(lambda begun: heard.append(begun.event))
        with span("block"):
            event("instant")
        spans.record(spans.Span("by a patch"))
    assert heard == ["block", "instant", "by a patch"]
    assert sorted(record["event"] for record in seen) == sorted(heard)


def test_a_listener_that_raises_costs_no_record(listen):
    def fails(begun):
        raise RuntimeError(begun.event)

    with records() as seen, step(1):
        listen(fails)
        with span("block"):
            event("instant")
    assert [record["event"] for record in seen] == ["instant", "block"]
    assert [said["times"] for said in notices.noticed()] == [2]
    notices.forget()


def test_a_listener_that_is_ignored_hears_nothing(listen):
    heard = []
    with records(), step(1):
        listen(heard.append)
        span_listeners.ignore(heard.append)
        event("instant")
    assert heard == []
