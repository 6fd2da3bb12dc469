"""Find rollouts that have the samples of their step, and still wait for rewards of other requests."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.asynchronous.fates import logs_consumption
from sglang_instrument.analysis.ledger.intervals import sec_between
from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, OF_STEP, Evidence

LATE_REWARDS: Final = NamedCause(
    "late-rewards",
    "run",
    "the last sample that a step took was complete, and for at least 5 % of the time, and 0.5 s a step, the "
    "rollout went on to wait for rewards of requests that the step did not take",
    "end these rewards when the rollout has its samples, as by a look at the trainer's flag in the reward "
    "function, or over-sample less: `turns LOGS{step} --tools` has the rewards, `waste LOGS` the tokens",
    not_planted="the simulated trainer takes every sample",
)


@detector(LATE_REWARDS)
def find_late_rewards(evidence: Evidence) -> Findings:
    """Yield a finding if steps that have their samples wait for rewards of others."""
    if not logs_consumption(evidence.everything):
        return
    is_taken = (pl.col("trained_step") == pl.col("step")).fill_null(False)
    complete = evidence.fates.filter(is_taken).group_by(STEP_OF_WORKER).agg(last_us=pl.col("end_us").max())
    rewards = evidence.digest.path.filter((pl.col("phase") == "reward") & ~pl.col("validate"))
    rewards = rewards.join(complete, on=STEP_OF_WORKER)
    late_sec = (pl.col("end_us") - pl.max_horizontal("start_us", "last_us")) / 1e6
    waited = rewards.group_by(STEP_OF_WORKER).agg(sec=late_sec.clip(lower_bound=0.0).sum())
    waited = waited.group_by(STEP).agg(pl.col("sec").max())  # workers wait beside each other
    steps = evidence.windows.join(complete, on=STEP, how="semi")
    steps = steps.select(took_sec=sec_between("begin_us", "done_us"))
    sec, wall = float(waited["sec"].sum()), float(steps["took_sec"].sum())
    if not sec or sec < LEAST_SEC * len(steps) or sec < OF_STEP * wall:
        return
    scored = evidence.digest.requests.filter(pl.col("reward_sec") > 0)
    left = evidence.fates.filter(~is_taken).join(complete, on=STEP_OF_WORKER)
    left = left.join(scored, on=[*STEP_OF_WORKER, "request_id"], how="semi")
    requests = left.filter(pl.col("end_us") > pl.col("last_us")).height
    worst = waited.sort("sec", *STEP, descending=[True, False, False]).row(0, named=True)
    sentence = (
        f"with the samples of the step complete, the rollout waited {seconds(sec / len(steps))} a step, "
        f"{sec / wall:.0%} of the time, for rewards of {requests:,} requests that were left over; "
        f"longest in step {worst['step']}, {seconds(worst['sec'])}"
    )
    numbers = {
        "share": sec / wall,
        "sec": sec,
        "steps": len(steps),
        "requests": requests,
        "worst_step": worst["step"],
    }
    yield Finding(LATE_REWARDS.name, "run", sec / len(steps), sentence, event="reward", evidence=numbers)
