"""Bind the agent that works, and the request that it works for."""

import pickle

import pytest

from sglang_instrument import bind, span
from sglang_instrument.recording.measure.context import CURRENT, derive
from sglang_instrument.testing import records


def extras(make):
    """Return the fields of what `make` records, by event."""
    with records() as made, bind(step=1, worker=0):
        make()
    return {record["event"]: record.get("extra") for record in made}


def test_an_agents_request_inside_another_one_is_for_it():
    def work():
        planner = bind(request_id="r7", agent="planner")
        with planner, span("outer"), bind(request_id="w0", turn=2, agent="worker"), span("inner"):
            pass

    assert extras(work) == {
        "outer": {"request_id": "r7", "agent": "planner"},
        "inner": {"request_id": "w0", "turn": 2, "agent": "worker", "parent_request": "r7"},
    }


def test_a_parent_is_bound_for_requests_that_begin_later():
    def work():
        with bind(agent="worker", parent_request="r7"), bind(request_id=3), span("call"):
            pass

    assert extras(work) == {"call": {"request_id": 3, "agent": "worker", "parent_request": "r7"}}


def test_a_request_inside_another_one_is_no_child_unless_an_agent_is_bound():
    def work():
        with bind(request_id="a"), bind(request_id="b"), span("call"):
            pass

    assert extras(work) == {"call": {"request_id": "b"}}


def test_another_agent_of_the_same_request_has_no_parent():
    def work():
        with bind(request_id="a"), bind(request_id="a", agent="critic"), span("call"):
            pass
        with bind(request_id="a", parent_request="a"), span("itself"):
            pass

    assert extras(work) == {
        "call": {"request_id": "a", "agent": "critic"},
        "itself": {"request_id": "a"},
    }


def test_a_field_of_the_span_wins():
    def work():
        with bind(request_id="a", agent="planner"), span("call", agent="other", size=1):
            pass

    assert extras(work) == {"call": {"request_id": "a", "agent": "other", "size": 1}}


@pytest.mark.parametrize("value", [object(), 2.5, ["a"]])
def test_what_is_no_name_never_reaches_training(value):
    def work():
        with bind(request_id="a", agent=value, parent_request=value), span("call"):
            pass

    assert extras(work)["call"]["request_id"] == "a"


def test_they_travel_to_other_processes():
    with bind(request_id="a", agent="worker", parent_request="r7"):
        context = CURRENT.get()
    for copied in (pickle.loads(pickle.dumps(context)), derive(context, {"turn": 1})):
        assert (copied.agent, copied.parent_request) == ("worker", "r7")
