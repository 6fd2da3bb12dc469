"""Two data-parallel schedulers of a real server on the CPU, its detokenizer and its controller."""

import time
from itertools import pairwise

import pytest
from awaited import lines_of, records_of, wait_for, wait_for_rids
from engine_log import PROMPTS, RIDS, SAMPLING, Served
from sglang_server import instrumented, start_server

pytestmark = pytest.mark.engine


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
    server = start_server(folder, instrumented(folder, **settings), "--dp-size=2", overlap=True)
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
