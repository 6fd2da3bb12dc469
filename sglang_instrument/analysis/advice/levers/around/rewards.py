"""Propose to compute rewards behind generation or training, where the step waits for them."""

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from sglang_instrument.analysis.advice.evidence.change import Change
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever
from sglang_instrument.analysis.changes.replaying.rules import Rules
from sglang_instrument.analysis.ledger.loop_lanes import REWARD


@lever(
    "rewards off the critical path", "simulated", "late-rewards", "exposed-reward", "reward", model_error=0.03
)
def rewards(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield rewards that are computed while other requests generate, or while log-probs are."""
    ledger = grounds.loop.ledger().filter((pl.col("side") == "trainer") & (pl.col("part") == REWARD))
    of_trainer = dict(ledger.filter(~pl.col("validate")).select("step", "sec").iter_rows())
    change = Change(Rules(scale={"reward": 0.0}))
    if of_trainer:
        change = replace(change, outside_sec=of_trainer)
    setting = grounds.setting("rewards aside")
    where = "the trainer computes them between rollout and training" if of_trainer else "in each request"
    yield ProposedChange(
        setting.name,
        setting.value,
        True if setting.name.endswith("async") else "beside generation or log-probs",
        costs="whatever computes rewards runs beside generation: its memory and its cores",
        rests_on=f"the step waits for rewards: {where}; a replay without that wait",
        command="loop LOGS",
        change=change,
        per_step=grounds.playback.saved(change),
        not_recorded=setting.not_recorded,
    )
