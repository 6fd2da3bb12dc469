"""Weight updates: their parts, the calls that they stalled, and from which weights replies came."""

import json

import pytest
from hand_written import record
from weight_logs import Engine, drain, flush, pause, resume, update, write_process

from sglang_instrument.analysis import findings_of, lineage, open_run, weight_updates, weights_findings
from sglang_instrument.cli.main import main


@pytest.fixture
def engine():
    return Engine()


def causes(folder):
    return [finding.cause for finding in weights_findings(open_run(folder, cached=False))]


def rows_of(folder):
    return {row["rid"]: row for row in lineage(open_run(folder, cached=False)).to_dicts()}


def updates_in(folder):
    return weight_updates(open_run(folder, cached=False))


def test_an_update_has_its_parts_and_the_time_that_calls_stood_still(tmp_path, engine):
    engine.serve("before", 0, 5)
    engine.serve("stalled", 8, 20)
    engine.serve("waits", 11, 14.5)
    engine.of_scheduler += [pause(10), update(10.5, 13, 1), flush(13), resume(14)]
    engine.write(tmp_path)
    (row,) = updates_in(tmp_path)
    assert (row["update"], row["weight_version"], row["is_done"]) == (1, "1", True)
    secs = [row[f"{part}_sec"] for part in ("pause", "transfer", "flush", "resume")]
    assert secs == pytest.approx([0.01, 2.5, 0.01, 0.01], abs=1e-5)
    assert row["drain_sec"] is None
    assert row["duration_sec"] == pytest.approx(4.01, abs=1e-5)
    assert row["in_flight"] == 2
    assert row["lost_sec"] == pytest.approx(4.0 + 3.01, abs=1e-4)
    assert (row["aborted"], row["resumed"], row["last_server"]) == (0, 0, None)


def test_pieces_of_one_update_are_one_and_the_next_update_is_another(tmp_path, engine):
    engine.of_scheduler += [update(10, 10.2, 1), update(10.3, 10.5, 1), update(10.6, 10.9, 2)]
    engine.of_scheduler += [pause(20), update(25, 26), update(29, 30), resume(31), pause(50), update(51, 52)]
    engine.write(tmp_path)
    assert [(row["weight_version"], row["transfer_sec"]) for row in updates_in(tmp_path)] == [
        ("1", pytest.approx(0.4, abs=1e-5)),
        ("2", pytest.approx(0.3, abs=1e-5)),
        (None, 2.0),
        (None, 1.0),
    ]


def test_an_update_from_disk_that_fails_beside_one_that_succeeds_stays_apart(tmp_path, engine):
    engine.of_server += [drain(0.99), drain(1.3)]
    engine.of_scheduler += [update(1.0, 1.2, 12, how="disk", success=True), flush(1.2)]
    engine.of_scheduler += [update(1.31, 1.35, how="disk", success=False)]
    engine.write(tmp_path)
    good, bad = updates_in(tmp_path)
    assert (good["weight_version"], good["is_done"], good["flush_sec"]) == ("12", True, pytest.approx(0.01))
    assert (bad["weight_version"], bad["is_done"], bad["flush_sec"]) == (None, False, None)
    assert (good["drain_sec"], bad["drain_sec"]) == pytest.approx((0.01, 0.01))


def test_a_pause_that_never_ends_does_not_join_updates(tmp_path, engine):
    for begin in (0, 60, 120):
        engine.of_scheduler += [pause(begin), update(begin + 5, begin + 6)]
    engine.write(tmp_path)
    assert [row["duration_sec"] for row in updates_in(tmp_path)] == [6.0, 6.0, 6.0]


def test_the_engines_own_records_say_which_server_was_last(tmp_path):
    for rank, end in enumerate((11, 11.2, 16)):
        engine = Engine(rank)
        engine.of_scheduler.append(update(10, end, 1))
        engine.write(tmp_path)
    write_process(tmp_path, "step_1/trainer_0", [update(9.5, 17, 1)])
    (row,) = updates_in(tmp_path)
    assert (row["last_server"], row["last_server_late_sec"]) == ("scheduler_2_tp0", pytest.approx(4.8))
    assert [server["server"] for server in row["servers"]] == [f"scheduler_{rank}_tp0" for rank in range(3)]
    assert row["transfer_sec"] == pytest.approx(6)
    assert row["duration_sec"] == pytest.approx(7.5)
    (finding,) = weights_findings(open_run(tmp_path, cached=False))
    assert (finding.cause, finding.lost_sec) == ("slow-update", pytest.approx(4.8))
    assert "scheduler_2_tp0 was the last server in the weight update" in finding.sentence


def test_a_trainer_alone_knows_the_whole_update(tmp_path):
    whole = update(10, 15, 7, how="trainer")
    write_process(tmp_path, "step_7/trainer_0", [whole])
    aborts = pause(2)
    aborts["extra"] = {"mode": "abort"}
    write_process(tmp_path, "step_7/worker_0", [aborts])
    (row,) = updates_in(tmp_path)
    assert (row["step"], row["weight_version"], row["transfer_sec"], row["duration_sec"]) == (
        7,
        "7",
        5.0,
        5.0,
    )
    assert (row["servers"], row["last_server"], row["pause_sec"]) == ([], None, None)


def test_the_ranks_of_a_replica_are_one_server(tmp_path):
    for replica, rank, end in ((0, 0, 11), (0, 1, 12), (1, 0, 11.5)):
        moved = {**update(10, end, 1), "workid": replica}
        write_process(tmp_path, f"step_1/receiver_{replica}_tp{rank}", [moved])
    (row,) = updates_in(tmp_path)
    assert [server["server"] for server in row["servers"]] == ["server 1", "server 0"]
    assert row["last_server_late_sec"] == pytest.approx(0.5)


def test_servers_that_differ_a_little_are_not_accused(tmp_path):
    for rank, end in enumerate((11, 11.2, 11.6)):
        engine = Engine(rank)
        engine.of_scheduler.append(update(10, end, 1))
        engine.write(tmp_path)
    assert causes(tmp_path) == []


def test_a_prefix_that_was_cached_before_an_update_without_a_flush_is_named_with_its_tokens(tmp_path, engine):
    engine.serve("first", 0, 5, cached=0)
    engine.of_scheduler += [update(10, 11, 1)]
    engine.serve("again", 12, 15, cached=99)
    engine.serve("later", 16, 18, cached=60)
    engine.serve("other", 19, 21, cached=0)
    engine.write(tmp_path)
    rows = rows_of(tmp_path)
    stale = {rid: (row["stale_least"], row["stale_most"]) for rid, row in rows.items()}
    assert stale == {"first": (0, 0), "again": (99, 99), "later": (60, 60), "other": (0, 0)}
    assert rows["again"]["prefix_weights"] == "before 1"
    assert rows["again"]["first_weights"] == "1"
    assert rows["other"]["prefix_weights"] is None
    (finding,) = weights_findings(open_run(tmp_path, cached=False))
    assert finding.cause == "stale-prefix"
    assert finding.sentence.startswith("2 of 4 calls were served from a prefix of older weights (159 cached")
    assert [call["rid"] for call in finding.evidence["named"]] == ["again", "later"]


def test_what_new_weights_may_have_computed_makes_the_least_smaller(tmp_path, engine):
    engine.serve("first", 0, 5, node=7)
    engine.of_scheduler += [update(10, 11, 1)]
    engine.serve("new", 12, 15, cached=0, node=0)
    engine.serve("unknown", 16, 18, cached=60, node=9)
    engine.serve("old node", 19, 21, cached=50, node=7)
    engine.write(tmp_path)
    rows = rows_of(tmp_path)
    assert (rows["unknown"]["stale_least"], rows["unknown"]["stale_most"]) == (0, 60)
    assert (rows["old node"]["stale_least"], rows["old node"]["stale_most"]) == (50, 50)
    (finding,) = weights_findings(open_run(tmp_path, cached=False))
    assert "1 more may have been" in finding.sentence


def test_equal_prompts_have_the_limits_of_the_first_one(tmp_path, engine):
    engine.serve("before", 0, 5, node=1, prompt_end=4)
    engine.of_scheduler += [update(10, 11, 1)]
    engine.serve("new", 12, 13, cached=0, node=1, prompt_end=8)
    engine.serve("new again", 14, 15, cached=99, node=10, prompt_end=8)
    engine.serve("branch", 16, 17, cached=60, node=12, prompt_end=14)
    engine.serve("as before", 18, 19, cached=99, node=16, prompt_end=4)
    engine.write(tmp_path)
    limits = {rid: (row["stale_least"], row["stale_most"]) for rid, row in rows_of(tmp_path).items()}
    assert limits == {
        "before": (0, 0),
        "new": (0, 0),
        "new again": (0, 0),
        "branch": (0, 60),
        "as before": (99, 99),
    }


@pytest.mark.parametrize("flushed", [10.5, 11])
def test_with_a_flush_during_or_after_the_update_nobody_is_accused(tmp_path, engine, flushed):
    engine.serve("first", 0, 5)
    engine.of_scheduler += [update(10, 11, 1), flush(flushed)]
    engine.serve("again", 12, 15, cached=99)
    engine.write(tmp_path)
    assert (rows_of(tmp_path)["again"]["stale_most"], causes(tmp_path)) == (0, [])


def test_a_flush_that_failed_is_none(tmp_path, engine):
    engine.of_scheduler += [update(10, 11, 1), flush(11, success=False)]
    engine.serve("again", 12, 15, cached=99)
    engine.write(tmp_path)
    assert causes(tmp_path) == ["stale-prefix"]


def test_an_update_that_failed_leaves_the_weights_as_they_were(tmp_path, engine):
    engine.of_scheduler += [update(10, 11, 1, success=False)]
    engine.serve("again", 12, 15, cached=99)
    engine.write(tmp_path)
    assert rows_of(tmp_path)["again"]["first_weights"] is None
    assert causes(tmp_path) == []
    assert [row["is_done"] for row in updates_in(tmp_path)] == [False]


def test_a_reply_that_was_written_across_an_update_has_both_weights(tmp_path, engine):
    engine.of_scheduler += [update(5, 6, 3), flush(6), update(20, 21, 4), flush(21)]
    engine.serve("both", 10, 30)
    engine.write(tmp_path)
    row = rows_of(tmp_path)["both"]
    assert (row["first_weights"], row["weights"], row["updates_during"]) == ("3", "4", 1)


def test_a_label_that_contradicts_the_updates_is_found_and_right_ones_are_not(tmp_path, engine):
    engine.of_scheduler += [update(10, 11, 1), flush(11), update(30, 31, 2), flush(31)]
    engine.serve("before", 0, 5, weight_version="0")
    engine.serve("right", 12, 15, weight_version="1")
    engine.serve("late", 12, 31.5, weight_version="1")  # the label may change a little after the weights
    engine.serve("lies", 16, 20, weight_version="2")
    engine.serve("old", 40, 45, weight_version=1)
    engine.serve("none", 46, 47)
    engine.write(tmp_path)
    wrong = {rid: row["label_is_wrong"] for rid, row in rows_of(tmp_path).items()}
    assert wrong == {"before": False, "right": False, "late": False, "lies": True, "old": True, "none": None}
    (finding,) = weights_findings(open_run(tmp_path, cached=False))
    assert (finding.cause, finding.evidence["calls"]) == ("wrong-label", 2)
    assert "lies says 2, its server had 1" in finding.sentence


def test_a_label_that_the_server_was_told_contradicts_nothing(tmp_path, engine):
    engine.of_scheduler += [update(10, 11, 1), update(20, 21, 2)]
    engine.of_server += [record("weights_version", 30, 30.01, extra={"weight_version": "13"})]
    engine.serve("told", 32, 33, weight_version="13")
    engine.serve("odd", 22, 23, weight_version="14")
    engine.write(tmp_path)
    rows = rows_of(tmp_path)
    assert (rows["told"]["label_is_wrong"], rows["odd"]["label_is_wrong"]) == (False, True)
    assert len(updates_in(tmp_path)) == 2


def test_labels_without_known_versions_are_not_judged(tmp_path, engine):
    engine.of_scheduler += [update(10, 11), flush(11)]
    engine.serve("default", 12, 15, weight_version="default")
    engine.write(tmp_path)
    assert rows_of(tmp_path)["default"]["label_is_wrong"] is None
    assert causes(tmp_path) == []


def test_an_update_that_aborts_everything_is_found(tmp_path, engine):
    for number in range(6):
        engine.serve(f"cut {number}", 5 + number / 10, 10.1, tokens=40, finish_reason="abort")
    engine.serve("done", 0, 4)
    engine.of_scheduler += [pause(10, 0.2), update(10.2, 11, 1), flush(11), resume(11.1)]
    engine.write(tmp_path)
    (row,) = updates_in(tmp_path)
    assert (row["aborted"], row["aborted_tokens"]) == (6, 240)
    (finding,) = weights_findings(open_run(tmp_path, cached=False))
    assert finding.cause == "aborting-update"
    assert finding.sentence.startswith("update 1 aborted 6 calls, 240 written tokens were thrown away")


def test_aborted_calls_whose_requests_go_on_are_no_finding(tmp_path, engine):
    for number in range(6):
        name = f"request {number}"
        engine.serve(f"cut {number}", 5, 10.1, finish_reason="abort", request_id=name)
        engine.serve(f"rest {number}", 12, 15, request_id=name)
    engine.of_scheduler += [pause(10, 0.2), update(10.2, 11, 1), flush(11), resume(11.1)]
    engine.write(tmp_path)
    (row,) = updates_in(tmp_path)
    assert (row["aborted"], row["resumed"]) == (0, 6)
    assert causes(tmp_path) == []


def test_calls_of_a_scheduler_without_updates_in_its_log_have_no_lineage(tmp_path, engine):
    engine.serve("again", 12, 15, cached=99, weight_version="1")
    engine.write(tmp_path)
    write_process(tmp_path, "step_1/trainer_0", [update(10, 11, 1)])
    row = rows_of(tmp_path)["again"]
    assert (row["label"], row["first_weights"], row["stale_most"]) == ("1", None, None)
    assert causes(tmp_path) == []


def test_the_verdict_has_them_also_where_only_engines_logged(tmp_path, engine):
    engine.of_scheduler += [update(10, 11, 1)]
    engine.serve("again", 12, 15, cached=99)
    engine.write(tmp_path)
    (finding,) = findings_of(open_run(tmp_path, cached=False), over=True)
    assert finding.cause == "stale-prefix"
    assert "flush_cache=True" in finding.advice


def test_odd_records_are_left_out(tmp_path, engine):
    odd = update(10, 11, 1)
    odd["extra"] = {"weight_version": [1], "success": "yes", "part": 7, "rids": 3}
    engine.of_scheduler += [odd, {"timestamp": "x", "event": "weights_update"}, {"event": "scheduler_admit"}]
    engine.of_scheduler.append({**update(12, 13), "extra": None})
    engine.serve(7, 14, 15, cached="many")
    engine.write(tmp_path)
    assert [row["weight_version"] for row in updates_in(tmp_path)] == [None]
    assert causes(tmp_path) == []


def test_what_an_update_lacks_is_null_and_a_sentence_says_what_would_record_it(tmp_path, capsys):
    write_process(tmp_path, "step_1/trainer_0", [update(10, 12)])
    assert main(["weights", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    [row] = answer["updates"]
    parts = [f"{part}_sec" for part in ("pause", "drain", "resume", "flush")]
    calls = ("running", "in_flight", "lost_sec", "resumed", "aborted", "aborted_tokens")
    unknown = (*calls, "last_server", *parts)
    assert {row[name] for name in unknown} == {None}
    words = " ".join(answer["missing"])
    for setting in (
        "engine_detail",
        'detail="turn"',
        "SGLANG_INSTRUMENT=1",
        "weight_version",
        "pause or drain",
    ):
        assert setting in words
    assert main(["weights", str(tmp_path)]) == 0
    assert answer["missing"][0] in capsys.readouterr().out


def test_without_the_reasons_why_calls_ended_it_is_not_known_how_many_were_aborted(tmp_path, engine):
    engine.serve("runs", 5, 20, finish_reason=None)
    engine.of_scheduler += [update(10, 12, 1)]
    engine.write(tmp_path)
    [row] = updates_in(tmp_path)
    assert (row["in_flight"], row["aborted"], row["resumed"], row["aborted_tokens"]) == (1, None, None, None)


def test_a_log_without_updates_says_what_would_record_them(tmp_path, capsys, engine):
    engine.serve("call", 5, 20)
    engine.write(tmp_path)
    assert main(["weights", str(tmp_path)]) == 0
    assert "no weight update is in the log; the tables of verl" in capsys.readouterr().out
