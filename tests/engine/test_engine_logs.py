"""SGLang's own processes, real ones: a server and its schedulers, detokenizer and controller, on the CPU."""

import json
import os
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from awaited import lines_of, records_of, wait_for, wait_for_rids
from engine_log import PROMPTS, RIDS, SAMPLING, TOKENS, Served
from sglang_server import instrumented, model_of_the_demo, start_server

from sglang_instrument.analysis.run.opening import Run

pytestmark = pytest.mark.engine

GREEDY = """
import json, sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
for prompt in json.loads(sys.argv[2]):
    ids = torch.tensor([prompt])
    for _ in range(int(sys.argv[3])):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    print(json.dumps(ids[0, len(prompt):].tolist()))
"""

#: The records of a request with a short prompt.
OF_A_REQUEST = [
    *("engine_request", "engine_tokenize", "engine_send", "engine_wait"),
    *("scheduler_receive", "scheduler_admit", "scheduler_first_tokens", "scheduler_finish"),
]
#: What `scheduler_finish` says of each request that ends in a batch, a list a field.
ENDS = ("rids", "finish_reasons", "reply_tokens", "prefix_tokens")


@pytest.fixture(scope="module")
def expected():
    """What the model says without SGLang, and without us."""
    command = [sys.executable, "-W", "ignore", "-c", GREEDY, str(model_of_the_demo())]
    done = subprocess.run(
        [*command, json.dumps(PROMPTS), str(TOKENS)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return list(map(json.loads, done.stdout.splitlines()))


def is_done(folder):
    """Return whether schedulers have logged the result of each batch."""
    counts = (
        [len(records_of(folder, f"scheduler_{rank}_tp0.jsonl", f"scheduler_{end}")) for rank in (0, 1)]
        for end in ("batch", "result")
    )
    return next(counts) == next(counts)


def is_quiet(folder):
    """Return whether three seconds pass in which nothing is logged."""
    before = {path.name: len(lines_of(path)) for path in folder.iterdir()}
    time.sleep(3)
    return before == {path.name: len(lines_of(path)) for path in folder.iterdir()}


def test_replies_are_what_they_are_without_us(killed, expected):
    assert [reply["output_ids"] for reply in killed.replies] == expected


def test_each_process_writes_a_file_of_its_own_below_engine(killed):
    assert set(killed.records) == {
        "engine/server_0.jsonl",
        "engine/scheduler_0_tp0.jsonl",
    }


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("engine/server_0.jsonl", "engine_request"),
        ("engine/server_0.jsonl", "engine_tokenize"),
        ("engine/server_0.jsonl", "engine_send"),
        ("engine/server_0.jsonl", "engine_wait"),
        ("engine/scheduler_0_tp0.jsonl", "scheduler_receive"),
    ],
)
def test_each_request_is_recorded_once_where_it_passes(killed, path, event):
    rids = [extra["rid"] for extra in killed.of(path, event)]
    assert sorted(rid for rid in rids if rid in RIDS) == RIDS


def test_the_scheduler_says_once_how_each_request_ended(killed):
    ended = killed.of("engine/scheduler_0_tp0.jsonl", "scheduler_finish")
    of_batches = [zip(*(extra[name] for name in ENDS), strict=True) for extra in ended]
    ends = sorted(end for of_batch in of_batches for end in of_batch if end[0] in RIDS)
    answered = {extra["rid"]: extra for extra in killed.of("engine/server_0.jsonl", "engine_request")}
    assert ends == [
        (
            rid,
            answered[rid]["finish_reason"],
            answered[rid]["completion_tokens"],
            answered[rid]["cached_tokens"],
        )
        for rid in RIDS
    ]


def test_a_request_says_what_it_was_answered(killed):
    by_rid = {extra["rid"]: extra for extra in killed.of("engine/server_0.jsonl", "engine_request")}
    for rid, reply in zip(RIDS, killed.replies, strict=True):
        assert by_rid[rid]["completion_tokens"] == TOKENS == len(reply["output_ids"])
        assert by_rid[rid]["finish_reason"] == "length"


def test_a_request_is_eight_records_at_the_default_detail_and_no_more(killed):
    """What a new source adds goes to `engine_detail="batches"`, or into fields of these records."""
    recorded = {rid: [] for rid in RIDS}
    others = set()
    for records in killed.records.values():
        for record in records:
            extra = record.get("extra", {})
            rids = extra.get("rids") or [extra.get("rid")]
            for rid in set(rids) & set(RIDS):
                recorded[rid].append(record["event"])
            others |= {record["event"]} if rids == [None] else set()
    assert {rid: sorted(events) for rid, events in recorded.items()} == dict.fromkeys(
        RIDS, sorted(OF_A_REQUEST)
    )
    assert others <= {"engine_start", "scheduler_gauges"}


def test_no_batch_is_recorded_unless_it_is_asked_for(killed):
    events = {record["event"] for records in killed.records.values() for record in records}
    assert events.isdisjoint({"scheduler_batch", "scheduler_result", "model_forward", "engine_output"})
    assert events.isdisjoint({"forward_pass", "engine_detokenize"})


def test_a_scheduler_that_is_killed_leaves_whole_lines(killed):
    path = "engine/scheduler_0_tp0.jsonl"  # read_records() refuses torn ones
    assert "in-vain" in {extra["rid"] for extra in killed.of(path, "scheduler_receive")}
    assert Run.open(killed.folder, cached=False).health.torn == 0


def test_the_join_says_what_each_request_waited_for(killed):
    lives = killed.lives()
    assert set(lives) == {*RIDS, "in-vain"}
    for rid in RIDS:
        life = lives[rid]
        parts = life["queue_sec"] + life["prefill_sec"] + life["decode_sec"]
        assert life["scheduler"] == "scheduler_0_tp0"
        assert life["server"] == "server_0"
        assert 0 < parts <= life["duration_sec"] + 0.5  # the clocks of three processes
        assert life["retractions"] == 0


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    """Two data-parallel schedulers that overlap batches and retract some requests; `batches` are recorded."""
    folder = tmp_path_factory.mktemp("two")
    settings = {
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
        "SGLANG_TEST_RETRACT": "1",
        "SGLANG_TEST_RETRACT_INTERVAL": "10",
        "SGLANG_INSTRUMENT_ENGINE_DETAIL": "batches",
    }
    # Unlimited, the caches of its schedulers are gigabytes, which the system must clear.
    arguments = ("--dp-size=2", "--max-total-tokens=8192")
    server = start_server(folder, instrumented(folder, **settings), *arguments, overlap=True)
    log = folder / "logs/run/engine"
    try:
        body = {"input_ids": PROMPTS, "rid": RIDS, "sampling_params": SAMPLING}
        replies = server.post("/generate", body)
        wait_for_rids(log, "detokenizer_0.jsonl", "engine_detokenize", RIDS)
        wait_for(lambda: is_done(log) and is_quiet(log), "an idle engine goes on logging")
    finally:
        server.kill()  # after SIGTERM its controller keeps a core busy for half a minute
    return Served(replies, folder / "logs/run")


def test_replies_of_two_schedulers_are_what_they_are_without_us(parallel, expected):
    assert [reply["output_ids"] for reply in parallel.replies] == expected


def test_two_schedulers_and_their_controller_write_files_of_their_own(parallel):
    assert set(parallel.records) == {
        "engine/server_0.jsonl",
        "engine/controller_0.jsonl",
        "engine/scheduler_0_tp0.jsonl",
        "engine/scheduler_1_tp0.jsonl",
        "engine/detokenizer_0.jsonl",
        "engine/tokenizer_0.jsonl",
    }


def test_with_all_batches_the_detokenizer_names_each_request_once_when_it_ends(parallel):
    ended = parallel.of("engine/detokenizer_0.jsonl", "engine_detokenize")
    rids = [rid for extra in ended for rid in extra["rids"]]
    assert sorted(rid for rid in rids if rid in RIDS) == RIDS


def test_the_controller_dispatches_each_request_to_one_scheduler(parallel):
    dispatched = [extra["rid"] for extra in parallel.of("engine/controller_0.jsonl", "engine_dispatch")]
    received = [
        extra["rid"]
        for rank in (0, 1)
        for extra in parallel.of(f"engine/scheduler_{rank}_tp0.jsonl", "scheduler_receive")
    ]
    assert sorted(rid for rid in dispatched if rid in RIDS) == RIDS
    assert sorted(rid for rid in received if rid in RIDS) == RIDS
    assert {life["scheduler"] for life in parallel.lives().values()} == {
        "scheduler_0_tp0",
        "scheduler_1_tp0",
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_batches_say_how_they_ran(parallel, rank):
    path = f"engine/scheduler_{rank}_tp0.jsonl"
    batches = parallel.of(path, "scheduler_batch")
    modes = {batch["forward_mode"] for batch in batches}
    assert {"EXTEND", "DECODE"} <= modes
    assert all(batch["batch_size"] > 0 for batch in batches)
    assert len(parallel.of(path, "scheduler_result")) == len(batches)
    assert len(parallel.of(path, "model_forward")) >= len(batches)
    decoding = [run for run in parallel.of(path, "model_forward") if run["forward_mode"] == "DECODE"]
    assert decoding
    assert all(run["tokens"] == run["batch_size"] for run in decoding)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_overlapping_scheduler_is_seen_to_launch_a_batch_before_it_is_done_with_the_last(parallel, rank):
    records = parallel.records[f"engine/scheduler_{rank}_tp0.jsonl"]
    runs = [record for record in records if record["event"] in ("scheduler_batch", "scheduler_result")]
    order = [record["event"] for record in sorted(runs, key=lambda record: record["start_us"])]
    assert ("scheduler_batch", "scheduler_batch") in pairwise(order)


def test_a_retracted_request_says_so(parallel):
    retracted = [
        rid
        for rank in (0, 1)
        for extra in parallel.of(f"engine/scheduler_{rank}_tp0.jsonl", "scheduler_retract")
        for rid in extra["rids"]
    ]
    lives = parallel.lives()
    assert retracted
    assert {rid: life["retractions"] for rid, life in lives.items() if life["retractions"]} == {
        rid: retracted.count(rid) for rid in retracted
    }
