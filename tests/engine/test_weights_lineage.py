"""A real SGLang server whose weights are updated: lineage names the calls with a prefix of older weights."""

import json
import threading
import time

import pytest
from awaited import wait_for_rids
from routed_engines import read
from sglang_server import model_of_the_demo

from sglang_instrument.analysis import lineage, open_run, weight_updates, weights_findings
from sglang_instrument.cli.main import main

pytestmark = pytest.mark.engine

SHARED = [300 + place for place in range(40)]  # a prompt that all calls of a group share
OTHER = [500 + place for place in range(40)]
#: Readers take what is less than a second apart for one update, or for a label that is late.
APART_SEC = 1.2


class Script:
    """Asks a server and updates its weights; remembers how many tokens each reply got from the cache."""

    def __init__(self, server):
        self.server = server
        self.cached = {}
        self.ended = {}

    def ask(self, rid, prompt, tokens=8):
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": prompt, "rid": rid, "sampling_params": sampling}
        reply = self.server.post("/generate", body)
        self.cached[rid] = reply["meta_info"]["cached_tokens"]
        self.ended[rid] = reply["meta_info"]["finish_reason"]["type"]
        return reply

    def update(self, version, settle_sec=APART_SEC, **how):
        time.sleep(settle_sec)
        body = {"model_path": str(model_of_the_demo()), "weight_version": version, **how}
        assert self.server.post("/update_weights_from_disk", body)["success"]
        time.sleep(APART_SEC)


def ask_while_it_is_aborted(script, log):
    """Have four long calls in flight when an update aborts everything; nobody asks again."""
    rids = [f"aborted {number}" for number in range(4)]
    threads = [
        threading.Thread(target=script.ask, args=(rid, OTHER[number:], 440))
        for number, rid in enumerate(rids)
    ]
    time.sleep(APART_SEC)
    for thread in threads:
        thread.start()
    wait_for_rids(log, "scheduler_0_tp0.jsonl", "scheduler_receive", rids)
    # No flush: its batch may still be in flight when the scheduler gets the update, which then ends it.
    script.update("4", settle_sec=0, abort_all_requests=True, flush_cache=False)
    for thread in threads:
        thread.join()


@pytest.fixture(scope="module")
def updated(served):
    """What the script got, and the run that the server logged of it."""
    script = Script(served.server)
    read(served.server, "/flush_cache?timeout=60", "POST")  # else a prefix is in the cache for other tests
    served.begin_part("weights")
    for rid in ("first", "first again"):
        script.ask(rid, SHARED)
    script.update("1", flush_cache=False)
    script.ask("kept", SHARED)  # from the cache, of version 0
    script.ask("kept and longer", [*SHARED, 7, 8, 9])
    script.ask("new", OTHER)
    script.ask("new again", OTHER)  # from the cache, of version 1
    script.update("2", flush_cache=True)
    for rid in ("flushed", "flushed again"):
        script.ask(rid, SHARED)
    time.sleep(1)  # a flush while a batch is in flight ends the scheduler
    script.server.post("/pause_generation", {"mode": "in_place"})
    script.update("3", flush_cache=True)
    script.server.post("/continue_generation", {})
    script.ask("after the pause", SHARED)
    ask_while_it_is_aborted(script, served.log / "engine")
    read(served.server, "/flush_cache?timeout=60", "POST")
    script.ask("last", SHARED)
    wait_for_rids(served.log / "engine", "server_0.jsonl", "engine_request", script.ended)
    return script, served.end_part("weights")


@pytest.fixture(scope="module")
def run(updated):
    return open_run(updated[1], cached=False)


@pytest.fixture(scope="module")
def rows(run):
    return {row["rid"]: row for row in lineage(run).to_dicts()}


def test_each_call_that_was_served_from_a_prefix_of_older_weights_is_named_with_its_tokens(updated, rows):
    cached = updated[0].cached
    assert cached["kept"] > 0
    named = {rid: row["stale_most"] for rid, row in rows.items() if row["stale_most"]}
    assert cached["new again"] > 0
    assert named == {rid: cached[rid] for rid in ("kept", "kept and longer")}
    assert named == {rid: row["stale_least"] for rid, row in rows.items() if row["stale_least"]}
    assert rows["kept"]["prefix_weights"] == "before 1"


def test_after_a_flush_nobody_is_accused(updated, rows):
    after = ("flushed", "flushed again", "after the pause", "last")
    assert updated[0].cached["flushed again"] > 0
    assert [rows[rid]["stale_most"] for rid in after] == [0, 0, 0, 0]


def test_replies_have_the_weights_that_made_them_and_right_labels_are_not_accused(rows):
    weights = {rid: (row["first_weights"], row["label"]) for rid, row in rows.items()}
    assert weights["first"] == ("before 1", "0")
    assert (weights["new"], weights["flushed"], weights["last"]) == (("1", "1"), ("2", "2"), ("4", "4"))
    assert [rid for rid, row in rows.items() if row["label_is_wrong"]] == []


def test_an_update_has_its_parts_as_the_server_went_through_them(run):
    updates = weight_updates(run)
    assert [row["weight_version"] for row in updates] == ["1", "2", "3", "4"]
    assert all(row["is_done"] and row["transfer_sec"] > 0 for row in updates)
    assert [row["flush_sec"] is None for row in updates] == [True, False, False, True]
    paused = updates[2]
    assert paused["pause_sec"] > 0
    assert paused["resume_sec"] > 0
    assert paused["duration_sec"] > 2  # the time between pause and resume belongs to it
    assert [server["server"] for server in paused["servers"]] == ["scheduler_0_tp0"]


def test_an_update_that_aborts_everything_is_found_and_so_are_stale_prefixes(updated, run):
    by_cause = {finding.cause: finding for finding in weights_findings(run)}
    assert set(by_cause) == {"stale-prefix", "aborting-update"}
    aborted = [rid for rid, how in updated[0].ended.items() if how == "abort"]
    assert len(aborted) >= 2
    assert by_cause["aborting-update"].evidence["aborted"] == len(aborted)
    assert by_cause["stale-prefix"].evidence["sure"] == 2


def test_labels_that_lie_are_found(updated, tmp_path):
    folder = tmp_path / "run"
    for path in updated[1].glob("engine/*.jsonl"):
        copy = folder / "engine" / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["event"] == "engine_request" and line["extra"]["rid"] == "flushed":
                line["extra"]["weight_version"] = "4"
        copy.write_text("".join(json.dumps(line) + "\n" for line in lines))
    wrong = [
        finding
        for finding in weights_findings(open_run(folder, cached=False))
        if finding.cause == "wrong-label"
    ]
    assert [finding.evidence["named"][0]["rid"] for finding in wrong] == ["flushed"]


def test_the_command_prints_them(updated, capsys):
    assert main(["weights", str(updated[1])]) == 0
    assert "2 of " in capsys.readouterr().out
    assert main(["weights", str(updated[1]), "--lineage", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {row["rid"] for row in answer["lineage"]} >= {"kept", "new", "last"}
    assert main(["weights", str(updated[1]), "--update", "9"]) == 2
    assert "there are 4" in capsys.readouterr().err
