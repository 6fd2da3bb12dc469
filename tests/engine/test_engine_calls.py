"""Calls of the real engine: failed, cancelled, with a `traceparent`; and what is patched for them."""

import pytest
from engine_calls import TRACEPARENT
from logged import read_records, recorded_events

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def logs(engine_run):
    """{file: [record, ...]} without control records."""
    return {path: recorded_events(records) for path, records in read_records(engine_run.folder).items()}


def traceparents(logs, event):
    """Return the `traceparent` of each record of an event in step 1, in which calls come with and without."""
    records = logs["step_1/worker_0.jsonl"]
    return [record["extra"].get("traceparent") for record in records if record["event"] == event]


def test_a_call_logs_the_traceparent_that_it_was_given_and_no_other(logs):
    assert traceparents(logs, "engine_generate") == [TRACEPARENT, None]
    assert traceparents(logs, "engine_stream") == [TRACEPARENT]


def names(logs, event, error=None):
    """Return the `rid` of each record of an event in step 2 that ended with this error."""
    records = [record for record in logs["step_2/worker_0.jsonl"] if record["event"] == event]
    return [record["extra"].get("rid") for record in records if record.get("error") == error]


def heard_of(logs):
    """Return the requests that came to the scheduler."""
    records = logs["engine/scheduler_0_tp0.jsonl"]
    return {record["extra"]["rid"] for record in records if record["event"] == "scheduler_receive"}


@pytest.mark.parametrize("event", ["engine_request", "engine_wait", "engine_stream"])
def test_a_cancelled_request_has_the_name_by_which_its_scheduler_knows_it(logs, event):
    [rid] = names(logs, event, "CancelledError")
    assert rid in heard_of(logs)


def test_a_failed_request_has_a_name_that_no_scheduler_heard_of(logs):
    [rid] = names(logs, "engine_request", "ValueError")
    assert isinstance(rid, str)
    assert rid not in heard_of(logs)


def test_a_request_that_is_answered_keeps_its_name(logs):
    [rid] = names(logs, "engine_request")
    assert names(logs, "engine_wait") == [rid]
    assert rid in heard_of(logs)


def test_a_cancelled_request_has_no_fields_of_an_answer(logs):
    requests = [record for record in logs["step_2/worker_0.jsonl"] if record["event"] == "engine_request"]
    assert all(set(request["extra"]) == {"items", "rid"} for request in requests if "error" in request)


def test_kind_signature_and_pickling_of_what_we_change_stay_and_the_code_comes_back(engine_run):
    during, after, restored = engine_run.looks
    assert len(during) >= 20
    assert during == after
    assert set(restored) == {True}
    kinds = {target.rpartition(".")[2]: kinds for target, (_, kinds, *_) in after.items()}
    assert kinds["async_generate"] == [True, False, False]  # the check itself works
    assert kinds["generate_request"] == [False, True, False]
