"""`advise` proposes the setting that is wrong in a world; it is silent where none is and where a fault is."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from set_worlds import changed, play_set, step_sec, well_set_world, wrong_world

from sglang_instrument.analysis import advise, cap_table, open_run
from sglang_instrument.analysis.advice import findings
from sglang_instrument.analysis.advice.advise import Advice, Advised, in_order
from sglang_instrument.analysis.advice.evidence.change import Change
from sglang_instrument.analysis.advice.evidence.cliffs import cliffs_in
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import Lever
from sglang_instrument.analysis.advice.findings import with_changes
from sglang_instrument.analysis.advice.intervals import Saving, saving_of
from sglang_instrument.analysis.advice.measured import Measurement, with_measured
from sglang_instrument.analysis.advice.promises import Promise, promises_of
from sglang_instrument.analysis.advice.verify import _held
from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.cli.main import main
from sglang_instrument.testing import Hang, synthetic_run
from sglang_instrument.testing.world.play import write_world


def advice_of(folder: Path, world):
    return advise(open_run(write_world(folder, play_set(world)), cached=False))


def saved_in_truth(world, row):
    """Return what a step saves when the same requests are played with the proposed setting."""
    return step_sec(play_set(world)) - step_sec(play_set(changed(world, row)))


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("running limit", "max_running_requests"),
        ("pool of tools or rewards", "how many calls of rewards run at once"),
        ("time-out of a tool", "time-out of tool search"),
        ("constant cost out of the loop", "where preprocessing of the batch runs"),
        ("servers", "servers of the rollout"),
    ],
)
def test_the_setting_that_is_wrong_is_proposed_and_its_saving_is_real(tmp_path, kind, setting):
    world = wrong_world(kind, 0)
    rows = advice_of(tmp_path / "world", world).rows("LOGS")
    row = next(row for row in rows if row["lever"] == kind)
    assert row["setting"] == setting
    assert row["low"] < row["saves_sec"] < row["high"]
    assert row["saves_sec"] == pytest.approx(saved_in_truth(world, row), rel=0.25)
    assert "LOGS" in row["command"]


def test_a_well_set_world_has_nothing_to_gain(tmp_path):
    advice = advice_of(tmp_path / "world", well_set_world(0))
    assert advice.levers == []
    assert advice.sentence.startswith("nothing to gain from settings: the rollout is at work in ")


def test_no_lever_is_told_while_a_fault_dominates(tmp_path):
    run = open_run(synthetic_run(tmp_path / "exp", steps=4, workers=2, causes=[Hang(4, 1)]), cached=False)
    advice = advise(run)
    assert advice.levers == []
    assert advice.mend_first is not None
    assert advice.mend_first.cause == "hang"
    assert advice.sentence == f"mend this first: {advice.mend_first.sentence}"


def test_the_best_two_are_simulated_together_and_save_no_more_than_their_sum(tmp_path):
    world = wrong_world("servers", 0)
    advice = advice_of(tmp_path / "world", replace(world, before_sec=5.0))
    first, second = (advised.saving for advised in advice.levers[:2])
    assert advice.together is not None
    assert max(first.sec, second.sec) <= advice.together.sec <= first.sec + second.sec + 1e-6


def test_what_a_twin_measured_stands_in_place_of_the_estimate(tmp_path):
    advice = advice_of(tmp_path / "world", wrong_world("running limit", 0))
    rows = advice.rows("LOGS")
    place = next(place for place, row in enumerate(rows) if row["lever"] == "running limit")
    others = [row for number, row in enumerate(rows) if number != place]

    saving = Saving(90.0, 80.0, 100.0)
    measured = with_measured(advice, {place: Measurement(48, saving, 20)})
    first = measured.rows("LOGS")[0]
    assert (first["lever"], first["kind"], first["proposed"]) == ("running limit", "measured", 48)
    assert (first["saves_sec"], first["low"], first["high"]) == saving
    assert first["share"] == pytest.approx(90.0 / advice.step_sec)
    assert first["rests_on"].startswith("measured on a twin over 20 pairs of steps; ")
    assert measured.sentence.startswith("max_running_requests: to 48 saves 90 s of a step of ")
    assert measured.rows("LOGS")[1:] == others
    assert next(promise.saves_sec for promise in promises_of(measured, "run")) == 90.0

    nothing = with_measured(advice, {place: Measurement(48, Saving(0.1, -0.2, 0.4), 20)})
    assert nothing.rows("LOGS")[-1]["saves_sec"] == 0.1
    assert all(promise.lever != "running limit" for promise in promises_of(nothing, "run"))
    assert with_measured(advice, {}) == advice


def test_a_promise_is_kept_and_held_against_the_run_after_the_change(tmp_path, capsys):
    world = wrong_world("running limit", 2)
    before, after = tmp_path / "before", tmp_path / "after"
    write_world(before, play_set(world))
    assert main(["advise", str(before), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["levers"][0]
    write_world(after, play_set(changed(world.continued(), row)))
    assert main(["advise", "--verify", str(before), str(after)]) == 2
    assert "promised nothing for it before" in capsys.readouterr().err  # worlds are dated before today
    file = before / ".store/promises.jsonl"
    [promise] = map(json.loads, file.read_text().splitlines())
    assert (promise["setting"], promise["proposed"]) == (row["setting"], row["proposed"])
    file.write_text(json.dumps({**promise, "made_us": 1}) + "\nnot a promise\n")
    assert main(["advise", "--verify", str(before), str(after), "--json"]) == 0
    [verified] = json.loads(capsys.readouterr().out)["verified"]
    assert verified["was_changed"] is True
    assert verified["held"] is True
    assert verified["promised_low"] <= verified["saved_sec"] <= verified["promised_high"]
    truth = step_sec(play_set(world)) - step_sec(play_set(changed(world.continued(), row)))
    assert verified["saved_sec"] == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize(
    ("low", "high", "held"),
    [
        (2.5, 3.5, True),
        (3.5, 5.0, True),  # both intervals have 3.5 to 4 s
        (4.5, 6.0, False),
        (0.2, 1.9, False),
        (-0.5, 2.5, None),  # it may be nothing
        (-0.5, 1.9, False),
        (None, None, True),
    ],
)
def test_a_promise_holds_as_far_as_the_steps_tell(low, high, held):
    promise = Promise(1, "run", "servers", "servers", 1, 2, 10.0, 3.0, 2.0, 4.0)
    assert _held(promise, 3.0, low, high) is held


def test_the_curve_of_caps_saves_more_and_cuts_more_the_lower_they_are(tmp_path):
    world = wrong_world("response cap", 5)
    table = cap_table(open_run(write_world(tmp_path / "world", play_set(world)), cached=False))
    assert table["cap"].is_sorted(descending=True)
    assert table["cut_share"].is_sorted()
    assert table["saves_sec"].is_sorted()
    [knee] = table.filter("is_knee").to_dicts()
    assert 0 < knee["cut_share"] <= 0.05
    assert knee["cut_reward_at_least"] <= knee["cut_reward"] <= knee["cut_reward_at_most"]


def test_an_interval_needs_two_steps_and_widens_with_what_steps_differ():
    assert saving_of([5.0]) is None
    narrow, wide = saving_of([5.0, 5.1, 4.9, 5.0]), saving_of([2.0, 8.0, 4.0, 6.0])
    assert narrow.sec == pytest.approx(wide.sec) == pytest.approx(5.0)
    assert narrow.low > wide.low


def test_calls_that_end_at_one_time_are_a_cliff_and_others_are_none():
    usual = [0.5 + 0.03 * number for number in range(400)]
    assert cliffs_in(usual) == []
    [cliff] = cliffs_in([*usual, *(1_800.0 + number / 10 for number in range(-15, 16))])
    assert (cliff.calls, cliff.above) == (31, 0)
    assert cliff.words("s") == "1,800 +- 1.5 s"


def test_a_finding_carries_the_change_that_answers_it_and_summary_says_it(tmp_path, capsys):
    folder = write_world(tmp_path / "world", play_set(wrong_world("running limit", 0)))
    assert main(["summary", str(folder), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    changes = [finding["change"] for finding in findings if finding["cause"] == "trainer-waits"]
    lever = advise(open_run(folder, cached=False)).rows("LOGS")[0]
    assert changes[0] == {
        "setting": "max_running_requests",
        "from": lever["now"],
        "to": lever["proposed"],
        **{name: lever[name] for name in ("saves_sec", "low", "high")},
    }
    assert main(["summary", str(folder)]) == 0
    words = f"change: max_running_requests from {lever['now']} to {lever['proposed']} saves "
    assert words in " ".join(capsys.readouterr().out.split())


def test_a_verdict_on_a_large_run_waits_for_no_replay(tmp_path, monkeypatch):
    run = open_run(write_world(tmp_path / "world", play_set(wrong_world("running limit", 0))), cached=False)
    monkeypatch.setattr(findings, "_MOST_REQUESTS", len(run.digest.requests) - 1)
    assert {finding.change for finding in findings.findings_with_changes(run)} == {None}
    monkeypatch.setattr(findings, "_MOST_REQUESTS", len(run.digest.requests))
    assert any(finding.change for finding in findings.findings_with_changes(run))


def test_of_a_long_run_some_steps_are_replayed_which_save_what_they_save(tmp_path):
    run = open_run(write_world(tmp_path / "world", play_set(wrong_world("running limit", 0))), cached=False)
    half = run.digest.requests["turns"].fill_null(1).sum() // 2
    whole, some = (Grounds(run, loop_of(run), most).playback for most in (20_000, half))
    assert 0 < some.requests < whole.requests
    few, many = (playback.saved(Change(limit=16)) for playback in (some, whole))
    assert 0 < len(few) < len(many)
    # The speed is fitted to the replayed steps alone.
    assert all(any(saved == pytest.approx(other, rel=0.05) for other in many) for saved in few)


def test_a_replay_at_servers_that_log_has_prefills_hold_up_what_decodes(tmp_path):
    world = wrong_world("servers", 0)
    limit = world.shape.server.max_running * 3 // 2
    run = open_run(write_world(tmp_path / "world", play_set(world)), cached=False)
    saved = Grounds(run, loop_of(run)).playback.saved(Change(limit=limit))
    server = replace(world.shape.server, max_running=limit)
    after = replace(world, shape=replace(world.shape, server=server))
    truth = step_sec(play_set(world)) - step_sec(play_set(after))
    assert sum(saved) / len(saved) == pytest.approx(truth, rel=0.2)


def test_a_finding_without_a_lever_has_no_change(tmp_path):
    run = open_run(synthetic_run(tmp_path / "exp", steps=4, workers=2, causes=[Hang(4, 1)]), cached=False)
    assert [finding.change for finding in run.findings] == [None]


def test_a_change_answers_findings_of_its_own_tool_alone(tmp_path):
    advised = advice_of(tmp_path / "world", wrong_world("time-out of a tool", 0)).levers
    of_search = [each for each in advised if each.lever.name == "time-out of a tool"]
    slow = Finding("tool", "step", 9.0, "slow", event="tool_call search")
    assert with_changes([slow], Advice(of_search, ""))[0].change["setting"] == "time-out of tool search"
    assert with_changes([replace(slow, event="tool_call edit")], Advice(of_search, ""))[0].change is None


def test_without_tokens_nothing_is_simulated_and_limits_are_shown_nevertheless(tmp_path, capsys):
    folder = write_world(tmp_path / "world", play_set(wrong_world("time-out", 0)))
    assert main(["advise", str(folder), "--json"]) == 0
    limits = json.loads(capsys.readouterr().out)["limits"]
    assert limits != []
    for path in folder.rglob("*.jsonl"):
        path.write_text(re.sub(r'"(generated|completion|response)_tokens":\d+,?', "", path.read_text()))
    assert main(["advise", str(folder), "--json", "--no-promise"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert all(lever["saves_sec"] is None for lever in answer["levers"])
    assert "let the call log generated_tokens" in answer["missing"][0]
    assert answer["limits"] == limits


def advised(name, saving, share=0.0, **more):
    return Advised(Lever(name, "simulated" if saving else "named", iter, **more), None, saving, share)


def test_levers_stand_in_the_order_of_what_they_save_for_sure():
    likely, sure = advised("likely", Saving(3.0, 0.1, 6.0)), advised("sure", Saving(2.0, 1.5, 2.5))
    dear, cheap = advised("dear", None, 0.7), advised("cheap", None, 0.5)
    assert in_order([likely, cheap, sure, dear], step_sec=10.0) == [dear, sure, likely, cheap]


def test_what_throws_samples_away_stands_behind_what_saves_a_quarter_as_much():
    dropping = advised("dropping", Saving(4.0, 3.0, 5.0), drops_samples=True)
    enough, less = advised("enough", Saving(1.0, 0.3, 1.7)), advised("less", Saving(0.9, 0.8, 1.0))
    dear, cheap = advised("dear", None, 0.45), advised("cheap", None, 0.35)
    levers = [less, dropping, cheap, enough, dear]
    assert in_order(levers, step_sec=10.0) == [dear, enough, dropping, less, cheap]


def test_what_a_twin_measured_stands_before_what_throws_samples_away():
    dropping = advised("dropping", Saving(4.0, 3.0, 5.0), 0.4, drops_samples=True)
    nothing, cheap = advised("nothing", Saving(0.1, -0.1, 0.3)), advised("cheap", None, 0.2)
    measured = advised("measured", Saving(3.0, 2.5, 3.5), 0.3)
    assert in_order([dropping, nothing, cheap, measured], step_sec=10.0) == [
        *(measured, dropping, cheap, nothing)
    ]
