"""Black-box agents behind a gateway: a header joins their calls with requests, and none is guessed."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from gateway import REQUEST_HEADER, gateway
from sglang_server import instrumented

from sglang_instrument.analysis.answers.engine.join import calls_of_request, joined_calls
from sglang_instrument.analysis.answers.engine.requests import engine_requests
from sglang_instrument.analysis.answers.requests import request_table
from sglang_instrument.analysis.answers.routing.server_calls import server_calls
from sglang_instrument.analysis.questions import open_run
from sglang_instrument.cli.main import main

pytestmark = pytest.mark.engine

CALLS = 3  # of each agent
TOKENS = 3  # of each reply
#: By its key, the header that the gateway adds for an agent. That of key-1 names a span of the gateway's own,
#: that of key-3 a trace of nobody's.
TRACES = {f"key-{number}": f"00-{number + 1:032x}-{number + 7:016x}-01" for number in range(2)}
HEADERS = {
    "key-0": {"traceparent": TRACES["key-0"]},
    "key-1": {"traceparent": f"00-{2:032x}-{99:016x}-01"},
    "key-2": {REQUEST_HEADER: "request of key-2"},
    "key-3": {"traceparent": f"00-{77:032x}-{77:016x}-01"},
    "stray": {},
}
ROLLOUT = """
    import subprocess, sys, json
    import sglang_instrument
    from concurrent.futures import ThreadPoolExecutor
    from sglang_instrument import bind, span

    agent, url, keys, traces = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])

    def run(key):
        command = [sys.executable, "-c", agent, url, key]
        if key == "stray":
            return subprocess.run(command, check=True)  # of nobody's request, at the same time as the others
        fields = {"traceparent": traces[key]} if key in traces else {}
        with bind(request_id=f"request of {key}"), span("request", **fields):
            subprocess.run(command, check=True)

    sglang_instrument.install()
    with bind(step=1, worker=0), span("total_step_duration"), ThreadPoolExecutor(len(keys)) as pool:
        list(pool.map(run, keys))
"""
#: Knows an address and a key, as an agent that somebody else wrote.
AGENT = """
import json, sys, urllib.request
for number in range(%d):
    body = {"model": "m", "prompt": [400 + number, 17, 18], "max_tokens": %d, "temperature": 0}
    request = urllib.request.Request(sys.argv[1] + "/v1/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + sys.argv[2]})
    urllib.request.urlopen(request, timeout=1200).read()
"""


@pytest.fixture(scope="module")
def run(served):
    """The run of a rollout whose agents called a real server through a gateway."""
    served.begin_part("gateway")
    environment = instrumented(
        served.log.parents[1], SGLANG_INSTRUMENT_RUN_ID="20261124T000000-two"
    )  # as the server's
    with gateway(served.server.url, HEADERS) as url:
        arguments = [AGENT % (CALLS, TOKENS), url, json.dumps(list(HEADERS)), json.dumps(TRACES)]
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(ROLLOUT), *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    return open_run(served.end_part("gateway"), cached=False)


def test_all_calls_of_a_named_agent_are_joined_and_no_others(run):
    assert len(engine_requests(run)) == CALLS * len(HEADERS)
    calls = joined_calls(run)
    joined = dict(calls.group_by("request_id").len().iter_rows())
    assert joined == {f"request of key-{number}": CALLS for number in range(3)}
    assert calls.sort("request_id", "called_us")["turn"].to_list() == list(range(CALLS)) * 3
    assert calls["rid"].n_unique() == len(calls)
    assert calls.select("queue_sec", "prefill_sec", "decode_sec").null_count().sum_horizontal().item() == 0


def test_a_call_lies_within_its_request(run):
    requests = {row["request_id"]: row for row in request_table(run.everything).to_dicts()}
    for call in joined_calls(run).to_dicts():
        request = requests[call["request_id"]]
        assert request["start_us"] <= call["called_us"]
        assert call["called_us"] + call["call_sec"] * 1e6 <= request["end_us"]


def test_a_request_shows_its_calls(run):
    row = next(
        row for row in request_table(run.everything).to_dicts() if row["request_id"] == "request of key-1"
    )
    assert len(calls_of_request(run, row)) == CALLS


def test_servers_know_the_conversations(run):
    calls = server_calls(run)
    assert calls["request_id"].count() == 3 * CALLS
    assert len(calls) == CALLS * len(HEADERS)


def test_each_call_of_an_agent_is_a_turn_of_its_request(run, capsys):
    assert main(["turns", str(run.folder), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(row["turn"], row["requests"], row["response_tokens"]) for row in answer["turns"]] == [
        (turn, 3, 3 * TOKENS) for turn in range(CALLS)
    ]
    assert [(row["turns"], row["requests"]) for row in answer["counts"]] == [(CALLS, 3)]
    table = request_table(run.everything)
    calls = joined_calls(run)
    for request in table.filter(table["turns"] == CALLS).to_dicts():
        mine = calls.filter(calls["request_id"] == request["request_id"])
        assert request["engine_sec"] == pytest.approx(mine["call_sec"].sum())
        assert request["response_tokens"] == CALLS * TOKENS
        assert request["finish_reason"] == mine.sort("called_us")["finish_reason"][-1]
    assert table["turns"].drop_nulls().to_list() == [CALLS] * 3  # nothing is guessed for the others


def test_turns_of_agents_are_in_sql(run, capsys):
    query = "select request_id, count(*) as n from turns group by request_id order by request_id"
    assert main(["sql", str(run.folder), query, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [tuple(row.values()) for row in rows["rows"]] == [(f"request of key-{n}", CALLS) for n in range(3)]
