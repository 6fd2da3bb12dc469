"""A real server on the CPU and its scheduler, which is killed: what both have logged."""

import pytest
from engine_log import RIDS, TOKENS

from sglang_instrument.analysis.run.opening import Run

pytestmark = pytest.mark.engine

#: The records of a request with a short prompt.
OF_A_REQUEST = [
    *("engine_request", "engine_tokenize", "engine_send", "engine_wait"),
    *("scheduler_receive", "scheduler_admit", "scheduler_first_tokens", "scheduler_finish"),
]
#: What `scheduler_finish` says of each request that ends in a batch, a list a field.
ENDS = ("rids", "finish_reasons", "reply_tokens", "prefix_tokens")


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
    of_the_machine = {"event_loop_lag", "event_loop_block"}  # a busy one lets the server's loop wait
    assert others <= {"engine_start", "scheduler_gauges"} | of_the_machine


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
