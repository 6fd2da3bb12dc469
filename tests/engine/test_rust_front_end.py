"""SGLang's Rust front end, real: a load over it and over the Python one gives the same counts and tokens."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from awaited import records_of, rids_of, wait_for
from drafts_and_tiers import HOST_TOKENS, STORAGE_TOKENS, verifications
from sglang_server import instrumented, start_server
from stand_in_plugin import write_stand_in

from sglang_instrument.analysis.answers.engine.join import joined_calls
from sglang_instrument.analysis.answers.engine.requests import engine_requests
from sglang_instrument.analysis.answers.routing.schedulers import scheduler_table
from sglang_instrument.analysis.questions import open_run
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.cli.main import main

pytestmark = pytest.mark.engine

#: Each rid with its prompt and the length of its reply. The last one's prompt is that of the first.
LOAD = {
    **{f"call-{number}": ([400 + 9 * number, 17, 18, 19], 4 + 3 * number) for number in range(5)},
    "again": ([400, 17, 18, 19], 6),
}
#: A rollout of one's own, which asks for one request after the other.
CLIENT = """
    import json, sys, urllib.request
    import sglang_instrument

    sglang_instrument.install()
    port, load = sys.argv[1], json.loads(sys.argv[2])
    with sglang_instrument.bind(step=1, worker=0):
        for rid, (prompt, tokens) in load.items():
            params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
            body = {"rid": rid, "input_ids": prompt, "sampling_params": params}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            with sglang_instrument.bind(request_id=f"of {rid}", turn=0), \\
                 sglang_instrument.span("turn_engine_call", rid=rid):
                with urllib.request.urlopen(request, timeout=600) as reply:
                    print(json.dumps(json.loads(reply.read())["meta_info"]))
"""
RUN_ID = {"SGLANG_INSTRUMENT_RUN_ID": "20261124T000000-two"}  # of both front ends, as of `two_servers`
OF_WORK = ["rid", "prompt_tokens", "cached_tokens", "completion_tokens", "finish_reason", "retractions"]


def asked(server, logs):
    """Ask for the whole load; return what the replies say of themselves, by rid."""
    environment = {**os.environ, **instrumented(logs, **RUN_ID)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CLIENT), str(server.port), json.dumps(LOAD)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(LOAD, map(json.loads, done.stdout.splitlines()), strict=True))


def ended(engine):
    """Return the requests of the load whose end a scheduler has logged; Rust adds to their ids."""
    rids = rids_of(records_of(engine, "scheduler_0_tp0.jsonl", "scheduler_finish"))
    return {rid.partition("#")[0] for rid in rids} & set(LOAD)


@pytest.fixture(scope="module")
def rust(tmp_path_factory):
    """What a server with the Rust front end answered, and the run that it and the client logged."""
    folder = tmp_path_factory.mktemp("rust")
    write_stand_in(folder, "drafts_and_tiers:pretend")
    detail = {"SGLANG_INSTRUMENT_ENGINE_DETAIL": "batches"}
    server = start_server(
        folder,
        instrumented(folder, SGLANG_RUST_SERVER="1", **RUN_ID, **detail),
        "--max-running-requests=8",
        "--enable-forward-pass-metrics",
    )
    try:
        replies = asked(server, folder)
        wait_for(lambda: len(ended(folder / "logs/run/engine")) == len(LOAD), "not all ends are logged")
    finally:
        server.kill()
    return replies, folder / "logs/run"


@pytest.fixture(scope="module")
def python(served):
    """The same of a server with the Python front end."""
    served.begin_part("front end")
    replies = asked(served.server, served.log.parents[1])
    return replies, served.end_part("front end")


def requests_of(folder):
    table = engine_requests(Run.open(folder, cached=False))
    return table.filter(table["rid"].is_in(list(LOAD)))


def test_both_front_ends_give_the_same_counts_and_tokens(rust, python):
    tables = [requests_of(folder).select(OF_WORK).sort("rid") for _, folder in (rust, python)]
    assert tables[0].equals(tables[1])
    assert dict(tables[0].select("rid", "completion_tokens").iter_rows()) == {
        rid: tokens for rid, (_, tokens) in LOAD.items()
    }
    assert tables[0].filter(tables[0]["rid"] == "again")["cached_tokens"].item() == 3


#: What a table counts; times differ from run to run, and names of processes from front end to front end.
COUNTED = {
    *("step", "turn", "turns", "requests", "request_id", "rid", "calls", "retractions", "finish_reason"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "response_tokens", "cached_share", "unended"),
}


def counted(value):
    """Return what an answer counts, with its structure."""
    if isinstance(value, list):
        return sorted(map(counted, value), key=repr)
    if not isinstance(value, dict):
        return value
    is_kept = {name: name in COUNTED or isinstance(part, dict | list) for name, part in value.items()}
    return {name: counted(part) for name, part in value.items() if is_kept[name]}


@pytest.mark.parametrize("command", ["requests", "requests --engine", "turns", "summary"])
def test_a_user_sees_the_same_counts_with_both_front_ends(rust, python, command, capsys):
    answers = []
    for _, folder in (rust, python):
        name, *options = command.split()
        assert main([name, str(folder), "--json", *options]) == 0
        answer = json.loads(capsys.readouterr().out)
        answer.pop("health", None)  # of processes that this test has killed
        answers.append(counted(answer.get("requests", answer) if name == "requests" else answer))
    assert answers[0] == answers[1]
    assert len(repr(answers[0])) > 100  # something is counted


def test_times_lie_within_what_the_reply_says(rust, python):
    for replies, folder in (rust, python):
        for row in requests_of(folder).to_dicts():
            parts = row["queue_sec"] + row["prefill_sec"] + row["decode_sec"]
            assert 0 < parts <= replies[row["rid"]]["e2e_latency"]


def test_a_request_without_a_server_of_its_own_is_its_schedulers(rust):
    table = requests_of(rust[1])
    assert set(table["server"]) == {"scheduler_0_tp0"} == set(table["scheduler"])
    assert table["tokenize_sec"].null_count() == len(table)  # done in Rust
    for row in table.to_dicts():
        parts = row["queue_sec"] + row["prefill_sec"] + row["decode_sec"]
        assert row["duration_sec"] == pytest.approx(parts, abs=2e-6)


def test_the_rollouts_requests_are_joined_with_the_engines(rust):
    calls = joined_calls(open_run(rust[1], cached=False))
    assert set(calls["request_id"]) == {f"of {rid}" for rid in LOAD}
    assert calls["decode_sec"].min() > 0


def test_status_names_what_never_runs(rust, capsys):
    assert main(["status", str(rust[1])]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "with SGLANG_RUST_SERVER set, never recorded: " in text
    assert "sglang/requests engine_request" in text
    assert "scheduler_finish" not in text


def test_drafts_and_tiers_are_known_though_replies_do_not_tell_them(rust):
    """The numbers are a stand-in's: neither drafts nor HiCache run on a CPU."""
    replies, folder = rust
    assert not any(
        "spec_verify_ct" in reply or "cached_tokens_details" in reply for reply in replies.values()
    )
    for row in requests_of(folder).to_dicts():
        assert row["verifications"] == verifications(LOAD[row["rid"]][1])
        tiers = (HOST_TOKENS, STORAGE_TOKENS) if row["rid"] == "again" else (0, 0)
        assert (row["cached_host_tokens"], row["cached_storage_tokens"]) == tiers


def test_each_forward_pass_has_its_time_from_the_stream_of_metrics(rust):
    """The stream is SGLang's own; a clock of the CPU stands in for the events of CUDA that time a pass."""
    passes = records_of(rust[1] / "engine", "scheduler_0_tp0.jsonl", "forward_pass")
    asked = [extra for extra in (record["extra"] for record in passes) if extra["gpu_sec"] > 0]
    health_checks = sum(
        rid.startswith("HEALTH_CHECK")  # a prompt of one token
        for rid in rids_of(records_of(rust[1] / "engine", "scheduler_0_tp0.jsonl", "scheduler_finish"))
    )
    prompts = sum(extra["prefill_tokens"] for extra in asked) - health_checks
    assert prompts == sum(len(prompt) for prompt, _ in LOAD.values()) - 3  # the last one's is in the cache
    replies = sum(extra["decode_requests"] for extra in asked)
    assert replies == sum(tokens - 1 for _, tokens in LOAD.values())  # the first token is the prefill's
    (scheduler,) = scheduler_table(Run.open(rust[1], cached=False)).to_dicts()
    assert scheduler["forward_passes"] == len(passes)
    assert scheduler["forward_sec"] == pytest.approx(sum(extra["gpu_sec"] for extra in asked))
    assert 0 < scheduler["forward_share"] <= 1
