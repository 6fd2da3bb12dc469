"""Choose the steps that get a timeline: those asked for, those with a finding, the slowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.analysis.verdict.evidence.finding import Finding

#: With this many spans the file is small enough for mail; the first step is included at any size.
MOST_SPANS: Final = 250_000
_MOST_STEPS: Final = 12


@dataclass(frozen=True, order=True)
class Chosen:
    """A training step, or the validation at a step."""

    validate: bool
    step: int

    @property
    def key(self) -> str:
        """Return its name in links: `67`, or `v67` for a validation."""
        return f"{'v' if self.validate else ''}{self.step}"


def choose(
    run: Run, steps: pl.DataFrame, findings: Sequence[Finding], asked: Sequence[int], most: int = MOST_SPANS
) -> list[Chosen]:
    """Return the steps that get a timeline, in order.

    Args:
        run: The run.
        steps: As `step_table` returns them, training and validation.
        findings: As `findings_of` returns them.
        asked: Numbers of training steps that are always chosen.
        most: The most records of all steps together; the first step is always chosen.

    Raises:
        LogError: A step in `asked` does not exist, or `prune` deleted its records.
    """
    weights = _records_of(run)
    wanted = [Chosen(False, step) for step in asked]
    known = {Chosen(row["validate"], row["step"]) for row in steps.iter_rows(named=True)}
    for candidate in wanted:
        if candidate not in known:
            raise LogError(f"{run.folder}: no step {candidate.step}; there are {_ranges(known)}")
        run.demand_records(candidate.step, validate=False)
    chosen = list(dict.fromkeys(wanted))
    room = most - sum(weights.get(candidate, 0) for candidate in chosen)
    for candidate in dict.fromkeys([*_named(findings), *_slowest(steps)]):
        if (candidate.step, candidate.validate) in run.pruned_steps:
            continue
        if candidate in known and candidate not in chosen and len(chosen) < max(_MOST_STEPS, len(wanted)):
            weight = weights.get(candidate, 0)
            if weight <= room or not chosen:
                chosen.append(candidate)
                room -= weight
    return sorted(chosen)


def _named(findings: Sequence[Finding]) -> list[Chosen]:
    return [Chosen(finding.validate, finding.step) for finding in findings if finding.step is not None]


def _slowest(steps: pl.DataFrame) -> list[Chosen]:
    """Return training steps, then validations, each with the slowest first."""
    ordered = steps.sort("validate", "duration_sec", descending=[False, True], nulls_last=True)
    return [Chosen(validate, step) for validate, step in ordered.select("validate", "step").iter_rows()]


def _records_of(run: Run) -> dict[Chosen, int]:
    records: dict[Chosen, int] = {}
    for file in run.files:
        place: Any = file.place
        if place is not None and place.step is not None:
            key = Chosen(bool(place.validate), place.step)
            records[key] = records.get(key, 0) + sum(file.records)
    return records


def _ranges(known: set[Chosen]) -> str:
    numbers = sorted(known_step.step for known_step in known if not known_step.validate)
    if not numbers:
        return "no training steps"
    return f"{len(numbers)}, from {numbers[0]} to {numbers[-1]}"
