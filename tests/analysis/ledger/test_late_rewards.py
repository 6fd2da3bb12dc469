"""Rewards that a rollout waits for after it has its samples are its reward time, and are found."""

from pathlib import Path

import polars as pl
import pytest
from async_run import STEP_SEC, AsyncRun, sample
from hand_written import record

from sglang_instrument.analysis import findings_of, open_run
from sglang_instrument.analysis.ledger.ledger import step_ledger

_LATE_SEC = 3.0


def over_sampled(late_sec: float) -> AsyncRun:
    """Return a rollout that has its samples after 4 s, and waits for the reward of one more request."""
    run = AsyncRun(steps=4, behind=0)
    for step, records in run.rollouts.items():
        begin, complete = step * STEP_SEC, step * STEP_SEC + 4  # when the last member has ended
        records += sample(f"left {step}", begin, complete + late_sec, response_length=100)
        call = records[-2]
        assert call["event"] == "turn_engine_call"
        call["duration_sec"] = 2.5
        records[-1:-1] = [
            record(
                "reward_calculation",
                begin + 3.0,
                complete + late_sec,
                extra={"request_id": f"left {step}"},
                task=call["task"],
            )
        ]
        records.append(record("requests_abort", complete, complete + 0.5, task=0))
    return run


def late_rewards_in(folder: Path) -> list[str]:
    findings = findings_of(open_run(folder), over=True)
    return [finding.sentence for finding in findings if finding.cause == "late-rewards"]


def test_a_judge_that_scores_after_over_sampling_ended_is_found(tmp_path: Path) -> None:
    folder = over_sampled(_LATE_SEC).write(tmp_path)
    (sentence,) = late_rewards_in(folder)
    assert "with the samples of the step complete, the rollout waited 3 s a step" in sentence
    assert "for rewards of 4 requests that were left over" in sentence


@pytest.mark.parametrize("late_sec", [0.0, 0.2])
def test_rewards_that_end_with_the_samples_are_no_finding(late_sec: float, tmp_path: Path) -> None:
    assert late_rewards_in(over_sampled(late_sec).write(tmp_path)) == []


def test_the_ledger_counts_the_wait_as_reward(tmp_path: Path) -> None:
    ledger = step_ledger(open_run(over_sampled(_LATE_SEC).write(tmp_path)).digest)
    sums = ledger.group_by("part").agg(pl.col("sec").sum())
    by_part = dict(sums.iter_rows())
    assert by_part["reward"] >= 4 * _LATE_SEC
    assert "postprocess" not in by_part
