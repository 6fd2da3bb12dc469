"""Refuse steps and workers that a run does not have, and name the nearest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def existing_numbers(run: str, kind: str, wanted: range, recorded: pl.Series) -> list[int]:
    """Return the wanted numbers that the run has, in order; at least one.

    Args:
        run: The name of the run, for the message.
        kind: What the numbers are: "step", "validation step" or "worker".
        wanted: The numbers that were asked for.
        recorded: The numbers that the run has; repeated ones and nulls do not matter.

    Raises:
        LogError: The run has none of them. The message names the nearest.
    """
    numbers: list[int] = recorded.drop_nulls().unique().sort().to_list()
    if existing := [number for number in numbers if number in wanted]:
        return existing
    if not numbers:
        raise LogError(f"{run}: no {kind} has a record yet")
    nearest = sorted(sorted(numbers, key=lambda number: abs(number - wanted[0]))[:3])
    offer = ", ".join(map(str, nearest))
    asked = f"{wanted[0]}" if len(wanted) == 1 else f"{wanted[0]}-{wanted[-1]}"
    raise LogError(f"{run}: no {kind} {asked}; there are {len(numbers)}, the nearest: {offer}")


def demand_step(run: Run, step: int | None, worker: int | None = None, validate: bool = False) -> None:
    """Raise LogError unless the run has this step and, in it, this worker; None stands for all."""
    digest = run.everything
    rows = digest.requests if digest.steps.is_empty() else digest.steps  # of a dump without times
    rows = rows.filter(validate=validate)
    if step is not None:
        kind = "validation step" if validate else "step"
        existing_numbers(run.name, kind, range(step, step + 1), rows["step"])
        rows = rows.filter(step=step)
    if worker is not None:
        existing_numbers(run.name, "worker", range(worker, worker + 1), rows["worker"])
