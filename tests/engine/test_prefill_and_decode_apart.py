"""Prefill and decode on two real servers behind SGLang's router: one request is one row over both."""

import json
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
from apart_servers import ROUTER, apart_servers
from awaited import records_of, rids_of, wait_for
from engine_log import PROMPTS
from sglang_server import instrumented

from sglang_instrument.analysis.answers.engine.call_times import paths_of
from sglang_instrument.analysis.answers.engine.join import engine_summary, joined_calls
from sglang_instrument.analysis.answers.engine.requests import engine_requests
from sglang_instrument.analysis.answers.routing.load import balance
from sglang_instrument.analysis.ledger.ledger import step_ledger
from sglang_instrument.analysis.questions import open_run
from sglang_instrument.analysis.tables.engine.servers import SERVERS
from sglang_instrument.cli.main import main

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not (ROUTER / ".done").exists(), reason="tests/environments/router.sh"),
]

#: Seconds by which each copy between the servers is made longer.
COPY_SEC = 0.2
#: The rid that the caller gives, if it gives one: else each server makes one of its own.
LOAD = [(None, PROMPTS[0], 6), ("mine", PROMPTS[1], 8), (None, PROMPTS[2], 3)]
PARTS = ("queue_sec", "prefill_sec", "transfer_sec", "decode_sec")
CLIENT = """
    import json, sys, urllib.request
    import sglang_instrument

    sglang_instrument.install()
    with sglang_instrument.bind(step=1, worker=0), sglang_instrument.span("total_step_duration"):
        for number, (rid, prompt, tokens) in enumerate(json.loads(sys.argv[2])):
            params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
            body = {"input_ids": prompt, "sampling_params": params, **({"rid": rid} if rid else {})}
            request = urllib.request.Request(sys.argv[1] + "/generate", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            with sglang_instrument.bind(request_id=f"request {number}", turn=0), \\
                 sglang_instrument.span("turn_engine_call") as call:
                with urllib.request.urlopen(request, timeout=600) as reply:
                    answer = json.loads(reply.read())
                call.add(rid=answer["meta_info"]["id"])
            print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """The replies of two servers, and the folder of the run that they and the client logged."""
    folder = tmp_path_factory.mktemp("apart")
    environment = instrumented(
        folder, SGLANG_INSTRUMENT_RUN_ID="20261124T000000-apart", MEMORY_TRANSPORT_SEC=str(COPY_SEC)
    )
    with apart_servers(folder, environment) as (url, _):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CLIENT), url, json.dumps(LOAD)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        replies = [json.loads(line) for line in done.stdout.splitlines()]
        log = folder / "logs/run/engine"
        wait_for(lambda: ended_in_each(log, "server", "engine_request"), "a server lacks a request")
        wait_for(lambda: ended_in_each(log, "scheduler", "scheduler_finish"), "a scheduler lacks an end")
    return replies, folder / "logs/run"


def ended_in_each(log, kind, event):
    """Return whether the processes of this kind, one a server, have logged the end of each request."""
    files = list(log.glob(f"{kind}_*.jsonl"))
    ends = [rids_of(records_of(log, path.name, event)) for path in files]
    asked = [[rid for rid in rids if not rid.startswith("HEALTH_CHECK")] for rids in ends]
    return [len(rids) for rids in asked] == [len(LOAD)] * 2


@pytest.fixture
def run(apart):
    return open_run(apart[1], cached=False)


def test_the_cache_goes_across(apart, expected):
    """The stand-in for the transport copies: the replies are those of the model without SGLang."""
    for reply, whole, (_, _, tokens) in zip(apart[0], expected, LOAD, strict=False):
        assert reply["output_ids"] == whole[:tokens]


def test_one_request_is_one_row_over_both_servers(apart, run):
    rows = engine_requests(run).sort("start_us").to_dicts()
    replies = [reply["meta_info"] for reply in apart[0]]
    assert [row["rid"] for row in rows] == [reply["id"] for reply in replies]
    assert [row["completion_tokens"] for row in rows] == [tokens for _, _, tokens in LOAD]
    assert [row["prompt_tokens"] for row in rows] == [len(prompt) for _, prompt, _ in LOAD]
    assert [row["prefill_rid"] == row["rid"] for row in rows] == [rid is not None for rid, _, _ in LOAD]
    assert len({(row["server"], row["prefill_server"]) for row in rows}) == 1
    assert rows[0]["server"] != rows[0]["prefill_server"]


def test_the_parts_lie_within_the_request_and_the_copies_within_the_transfer(run):
    for row in engine_requests(run).to_dicts():
        assert all(row[part] > 0 for part in PARTS)
        assert row["transfer_sec"] >= COPY_SEC
        assert row["prefill_sec"] + row["decode_sec"] < row["duration_sec"] - COPY_SEC
        assert sum(row[part] for part in PARTS) <= row["duration_sec"]
        assert 0 <= row["bootstrap_sec"] <= row["queue_sec"]


def test_calls_and_the_ledger_have_the_transfer(run):
    calls = joined_calls(run)
    assert sorted(calls["request_id"]) == [f"request {number}" for number in range(len(LOAD))]
    ledger = step_ledger(paths_of(run))
    (transfer,) = ledger.filter(ledger["event"] == "transfer").to_dicts()
    assert transfer["part"] == "engine"
    assert transfer["sec"] == pytest.approx(calls["transfer_sec"].sum(), abs=1e-3)
    assert engine_summary(run)["shares"]["transfer"] > 0


def test_both_servers_are_rows_with_their_roles(run):
    servers = SERVERS.make(run)
    assert dict(servers.select("role", "calls").iter_rows()) == {"prefill": len(LOAD), "decode": len(LOAD)}
    reader = servers.filter(servers["role"] == "prefill").to_dicts()[0]
    assert reader["prompt_tokens"] == sum(len(prompt) for _, prompt, _ in LOAD)
    assert reader["completion_tokens"] is None
    assert reader["kv_cache_share"] > 0
    assert balance(servers)["servers"] == 1


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_without_the_log_of_one_server_the_other_tells_its_half(apart, tmp_path, role):
    folder = shutil.copytree(apart[1], tmp_path / "run")
    lacking = [path for path in (folder / "engine").iterdir() if f'"mode":"{role}"' in path.read_text()]
    assert len(lacking) == 2
    for path in lacking:
        path.unlink()
    rows = engine_requests(open_run(folder, cached=False)).to_dicts()
    assert len(rows) == len(LOAD)
    for row in rows:
        assert row["prefill_server"] is None
        assert row["transfer_sec"] >= COPY_SEC
        assert (row["prefill_sec"] is None) == (role == "prefill")
        assert (row["decode_sec"] is None) == (role == "decode")


def test_requests_and_servers_print_it(apart, capsys):
    assert main(["requests", "--engine", str(apart[1])]) == 0
    assert "transfer s" in capsys.readouterr().out
    assert main(["servers", str(apart[1])]) == 0
    printed = capsys.readouterr().out
    assert " decode " in printed
    assert " prefill " in printed
