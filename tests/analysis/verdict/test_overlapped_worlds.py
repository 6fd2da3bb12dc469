"""Where rollout and training overlap, or workers share a pool, the cause is named, not what follows."""

from dataclasses import replace

import pytest
from faulty_worlds import found_in
from test_slow_servers import even

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.verdict import findings_of
from sglang_instrument.testing.world.faults import FAULTS
from sglang_instrument.testing.world.faults.fault import WorldFault
from sglang_instrument.testing.world.play import play, walls, write_world
from sglang_instrument.testing.world.rollout.shape import ASYNCHRONOUS, DRAINED, ONE_OFF, ROUTED, draw_shape


@pytest.mark.parametrize("skew_sec", [0.0, 2.0])
def test_a_worker_that_is_always_late_is_told_from_a_clock_that_is_ahead(tmp_path, skew_sec):
    shape = replace(even(ONE_OFF), workers=4)
    hosts = shape.servers + shape.workers + 1
    skews = [0.0] * hosts
    skews[shape.servers] = skew_sec  # of the first worker
    shape = replace(shape, skew_sec=tuple(skews))
    findings, (fault,) = found_in(tmp_path / "late", shape, ["worker: always late"])
    late = [finding for finding in findings if finding.cause == "always-late"]
    assert [finding.worker for finding in late] == [fault.worker]
    assert late[0].evidence["sec"] == pytest.approx(fault.size * fault.wall_sec, rel=0.1)
    write_world(tmp_path / "clean", play(shape))
    clean = findings_of(open_run(tmp_path / "clean", cached=False), over=True)
    assert all(finding.cause != "always-late" for finding in clean)


def test_an_update_that_waits_for_one_call_names_it(tmp_path):
    findings, (fault,) = found_in(tmp_path, draw_shape(DRAINED, 1), ["weights: wait for one long reply"])
    (drain,) = [finding for finding in findings if finding.cause == "long-drain"]
    assert drain.step in (fault.steps[0], fault.steps[0] + 1)
    assert drain.evidence["tokens"] == 4096
    assert findings.index(drain) < 2


def test_a_cold_server_is_named_though_no_single_request_decides(tmp_path):
    findings, (fault,) = found_in(tmp_path, even(ASYNCHRONOUS), ["server: cold in the first step"])
    first = findings[0]
    assert (first.cause, first.evidence["server"]) == ("standstill", f"server_{fault.server}")


def test_a_worker_that_fills_what_all_share_is_named_for_the_step(tmp_path):
    shape = draw_shape(ONE_OFF, 103335, hidden=True)
    findings, (fault,) = found_in(tmp_path, shape, ["worker: slow rewards in a step"])
    first = findings[0]
    assert (first.cause, first.step, first.worker) == ("reward", fault.steps[0], fault.worker)
    assert [finding for finding in findings if finding.cause == "reward" and finding.scope == "step"] == []


def test_a_loop_that_is_blocked_where_requests_flow_is_named_and_no_server_is_far_away(tmp_path):
    shape = draw_shape(ASYNCHRONOUS, 503638, hidden=True)
    findings, (fault,) = found_in(tmp_path, shape, ["worker: blocked loop"])
    assert (findings[0].cause, findings[0].worker) == ("blocked-loop", fault.worker)
    assert [finding for finding in findings if finding.cause == "slow-server"] == []


def test_a_batch_of_rewards_that_goes_on_beside_the_next_rollout_is_named(tmp_path):
    findings, (fault,) = found_in(
        tmp_path, draw_shape(ONE_OFF, 504850, hidden=True), ["rewards: batch slow in a step"]
    )
    first = findings[0]
    assert (first.cause, first.event, first.step) == ("slow-trainer", "trainer_reward", fault.steps[0])


def test_groups_are_judged_in_the_step_that_took_them_and_not_in_the_one_that_made_them(tmp_path):
    findings, (fault,) = found_in(
        tmp_path / "one", draw_shape(ASYNCHRONOUS, 6364), ["groups: filtered in a step"], 1
    )
    assert (findings[0].cause, findings[0].step) == ("thrown-away", fault.steps[0])
    findings, (fault,) = found_in(
        tmp_path / "from", draw_shape(DRAINED, 6464), ["groups: filtered from a step on"], 0
    )
    first = findings[0]
    assert (first.cause, first.scope) == ("thrown-away", "run")
    assert first.evidence["first_step"] == fault.steps[0]


def test_a_cause_behind_another_in_its_step_is_told_without_a_cost_of_its_own(tmp_path):
    shape = draw_shape(ROUTED, 1300021, hidden=True)
    names = "replies: longer in a step", "worker: slow preprocessing in a step"
    for name in names:
        shape = FAULTS[name].needs(shape)
    usual = walls(play(shape))
    faults = [WorldFault(name, FAULTS[name], FAULTS[name].sizes[2], shape, usual) for name in names]
    write_world(tmp_path, play(shape, faults))
    first, second = findings_of(open_run(tmp_path, cached=False), over=True)[:2]
    assert (first.cause, first.step, first.worker) == ("preprocess", faults[1].steps[0], faults[1].worker)
    assert (second.cause, second.step, second.worker) == ("long-replies", faults[0].steps[0], None)
    assert (second.lost_sec, second.evidence["hidden_sec"] > 5) == (0.0, True)
    assert second.sentence.endswith(", behind what took longer")
