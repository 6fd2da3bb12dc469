"""Collect what the report says of the training loop: both sides of it, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.loop_lanes import LOOP_PARTS
from sglang_instrument.analysis.ledger.loop_of_run import loop_of

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_MOST: Final = 40  # steps with a row


def loop_section(run: Run) -> dict[str, Any] | None:
    """Return the loop's shape, its means, the longest steps and the parts of both sides.

    None where the log lacks the trainer's phases, or the rollout.
    """
    loop = loop_of(run)
    shape = loop.shape()
    if shape is None:
        return None
    steps = loop.steps()
    sums = loop.ledger().group_by("part", "side").agg(pl.col("sec").sum())
    by_part = {(row["part"], row["side"]): row["sec"] for row in sums.to_dicts()}
    wall = float(steps["to_next_step_sec"].sum()) or 1.0
    parts = [
        {"part": part, **{side: by_part.get((part, side), 0.0) for side in ("trainer", "rollout")}}
        for part in LOOP_PARTS
        if any((part, side) in by_part for side in ("trainer", "rollout"))
    ]
    return {
        "shape": shape,
        "mean": loop.mean(),
        "to_next_step_sec": wall,
        "parts": parts,
        "steps": steps.sort("to_next_step_sec", descending=True).head(_MOST).sort("step").to_dicts(),
        "of_steps": len(steps),
    }
