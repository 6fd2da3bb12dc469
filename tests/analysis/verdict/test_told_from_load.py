"""What the load, a router's habit or the order of ends makes of calls is no fault; what hides behind it is.

Worlds in which the verdict once accused somebody, or was silent.
"""

from dataclasses import replace

import polars as pl
import pytest
from faulty_worlds import found_in

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.testing.world.rollout.shape import (
    ASYNCHRONOUS,
    DRAINED,
    ONE_OFF,
    OVERSAMPLED,
    OWN,
    ROUTED,
    draw_shape,
)


def causes(findings: list[Finding]) -> list[str]:
    return [finding.cause for finding in findings]


def test_a_token_that_takes_longer_beside_more_calls_is_no_slow_engine(tmp_path):
    findings, _ = found_in(tmp_path, draw_shape(DRAINED, 1550010, hidden=True))
    assert "engine" not in causes(findings)


def test_an_engine_that_is_slow_at_its_load_is_named_beside_a_slower_part_of_its_calls(tmp_path):
    shape = replace(draw_shape(ROUTED, 1700003, hidden=True), steps=6)
    names = "servers: slow decode in a step", "server: slow prefill"
    findings, (decode, _) = found_in(tmp_path, shape, names)
    assert [finding.step for finding in findings if finding.cause == "engine"] == list(decode.steps)


@pytest.mark.parametrize(("family", "seed"), [(ROUTED, 1150004), (OVERSAMPLED, 1650014)])
def test_a_server_that_is_as_busy_as_another_one_in_other_steps_is_no_fault(tmp_path, family, seed):
    findings, _ = found_in(tmp_path, draw_shape(family, seed, hidden=True))
    assert "uneven-servers" not in causes(findings)


def test_steps_that_take_what_has_ended_have_no_more_turns(tmp_path):
    findings, _ = found_in(tmp_path, draw_shape(ASYNCHRONOUS, 1650014, hidden=True))
    assert "more-turns" not in causes(findings)


def test_one_long_reply_of_a_turn_is_told_from_requests_with_more_turns(tmp_path):
    names = "turns: more in a step", "replies: one is long"
    findings, (turns, reply) = found_in(tmp_path, draw_shape(ONE_OFF, 1400022, hidden=True), names)
    assert causes(findings)[:2] == ["long-replies", "more-turns"]
    assert [finding.step for finding in findings[:2]] == [reply.steps[0], turns.steps[0]]
    assert findings[0].evidence["tokens"] == 4096
    assert (
        f"the next longest of the run has {findings[0].evidence['next_tokens']:,.0f} " in findings[0].sentence
    )


def test_longer_replies_to_a_few_prompts_of_one_worker_are_no_draw(tmp_path):
    names = "worker: late in a step", "worker: long replies in a step"
    findings, (late, long) = found_in(tmp_path, draw_shape(ONE_OFF, 1600018, hidden=True), names)
    places = [(finding.cause, finding.step, finding.worker) for finding in findings[:2]]
    assert places == [
        ("long-replies", long.steps[0], long.worker),
        ("late-start", late.steps[0], late.worker),
    ]


def test_longer_prompts_of_a_few_groups_are_named_and_not_the_engine(tmp_path):
    names = "worker: slow batch in a step", "prompts: longer in a step"
    findings, (_, prompts) = found_in(tmp_path, draw_shape(OWN, 1700000, hidden=True), names)
    assert causes(findings) == ["post-processing", "long-prompts"]
    assert findings[1].step == prompts.steps[0]


def test_some_rewards_that_are_slow_from_a_step_on_are_named(tmp_path):
    names = "engine: stands for a time", "rewards: one reward worker slow"
    findings, (_, rewards) = found_in(tmp_path, draw_shape(OWN, 1600005, hidden=True), names)
    first = findings[0]
    assert (first.cause, first.event) == ("shift", "reward")
    assert first.evidence["first_step"] == rewards.steps[0]
    run = open_run(tmp_path, cached=False)
    later = run.digest.requests.filter(pl.col("step") >= rewards.steps[0])
    assert first.evidence["of"] == later.filter(pl.col("reward_sec") > 0).height
    assert 0 < first.evidence["calls"] <= first.evidence["of"] / 2


@pytest.mark.parametrize(("family", "seed"), [(ROUTED, 1850001), (ONE_OFF, 1850002)])
def test_replies_to_a_few_hard_prompts_are_drawn(tmp_path, family, seed):
    findings, _ = found_in(tmp_path, draw_shape(family, seed, hidden=True))
    assert not any(finding.cause == "long-replies" and finding.scope == "worker" for finding in findings)


def test_calls_that_queued_at_a_busy_server_are_no_slow_calls(tmp_path):
    findings, _ = found_in(tmp_path, draw_shape(OVERSAMPLED, 1850016, hidden=True))
    assert "slow-calls" not in causes(findings)
