"""Propose to take work out of the loop that takes equally long in each step, such as preprocessing."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.advice.evidence.change import Change
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever

_PHASES: Final = ("preprocess", "postprocess", "broadcast")
_CONSTANT: Final = 0.3  # deviation of its seconds from step to step, of their mean
_FEWEST: Final = 3  # steps


@lever(
    "constant cost out of the loop",
    "simulated",
    "preprocess",
    "post-processing",
    "broadcast",
    model_error=0.01,
)
def constant_costs(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield each phase of workers outside of requests whose time is the same in all steps."""
    steps = grounds.loop.lanes.paths.of_workers.filter(~pl.col("validate")).steps
    for phase in _PHASES:
        name = f"wall_{phase}"
        if name not in steps.columns:
            continue
        of_steps = steps.group_by("step").agg(sec=pl.col(name).median()).drop_nulls().sort("step")
        if len(of_steps) < _FEWEST:
            continue
        mean: Any = of_steps["sec"].mean()
        deviation: Any = of_steps["sec"].std()
        if not mean or deviation > _CONSTANT * mean:
            continue
        change = Change(outside_sec=dict(of_steps.iter_rows()))
        yield ProposedChange(
            f"where {phase}ing of the batch runs" if phase.endswith("process") else f"the {phase}",
            "in each step, before the requests" if phase == "preprocess" else "in each step",
            "ahead, while the step before trains; or once, and kept",
            costs="memory for what is prepared ahead",
            rests_on=f"{mean:.2g} s in each of {len(of_steps)} steps, whatever the batch",
            command="events LOGS",
            change=change,
            per_step=grounds.playback.saved(change),
        )
