"""Which request a header of HTTP names, and when none. With a real server: tests/engine/test_gateway.py."""

import json

import pytest

import sglang_instrument
from sglang_instrument import bind, span
from sglang_instrument.analysis.answers.engine.gateway import gateway_calls
from sglang_instrument.analysis.questions import open_run

TRACE, OTHER = f"{1:032x}", f"{2:032x}"


def header(trace, number):
    return f"00-{trace}-{number:016x}-01"


@pytest.fixture
def joined(install):
    """Log requests, then calls that a server got; return the request of each call that has one."""

    def make(requests, calls):
        folder = install()
        with bind(step=1, worker=0):
            for request_id, fields in requests:
                with bind(request_id=request_id), span("request", **fields):
                    pass
        sglang_instrument.uninstall()
        (log,) = folder.glob("step_1/*.jsonl")
        records = [json.loads(line) for line in log.read_text().splitlines()]
        (folder / "engine").mkdir()
        start_us = next(record["start_us"] for record in records if "start_us" in record)
        served = [
            {
                "timestamp": records[0]["timestamp"],
                "event": "engine_request",
                "duration_sec": 1e-6,
                "extra": {"rid": rid, **fields},
                "workid": 0,
                "start_us": start_us,
            }
            for rid, fields in calls.items()
        ]
        lines = [json.dumps(record) for record in (records[0], *served)]
        (folder / "engine/server_0.jsonl").write_text("\n".join(lines) + "\n")
        return dict(gateway_calls(open_run(folder, cached=False)).select("rid", "request_id").iter_rows())

    return make


def test_a_traceparent_names_the_request_that_logs_it_even_if_others_have_its_trace(joined):
    requests = [(name, {"traceparent": header(TRACE, number)}) for number, name in enumerate("ab", 1)]
    calls = {"one": {"traceparent": header(TRACE, 2)}}
    assert joined(requests, calls) == {"one": "b"}


def test_a_span_of_the_gateways_own_names_the_only_request_of_its_trace(joined):
    requests = [("a", {"traceparent": header(TRACE, 1)}), ("b", {"traceparent": header(OTHER, 1)})]
    assert joined(requests, {"one": {"traceparent": header(OTHER, 9)}}) == {"one": "b"}


def test_a_trace_of_several_requests_names_none(joined):
    requests = [(name, {"traceparent": header(TRACE, number)}) for number, name in enumerate("ab", 1)]
    assert joined(requests, {"one": {"traceparent": header(TRACE, 9)}}) == {}


def test_the_header_of_the_setting_holds_the_id(joined):
    calls = {"one": {"request_header": "a"}, "two": {"request_header": "unknown"}, "three": {}}
    assert joined([("a", {}), ("b", {})], calls) == {"one": "a"}


def test_what_is_no_header_joins_nothing(joined):
    calls = {"one": {"traceparent": ""}, "two": {"traceparent": 3}, "three": {"request_header": None}}
    assert joined([("a", {"traceparent": "x"})], calls) == {}
