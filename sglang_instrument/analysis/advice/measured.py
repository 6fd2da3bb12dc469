"""Put what a twin measured in the place of what a replay promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sglang_instrument.analysis.advice.advise import Advice, Advised, first_in_words, in_order
from sglang_instrument.analysis.advice.intervals import Saving


@dataclass(frozen=True)
class Measurement:
    """What a twin measured of a lever.

    Attributes:
        value: The value that was tried.
        saving: What it saves a step.
        pairs: How many pairs of steps were compared.
    """

    value: Any
    saving: Saving
    pairs: int


def with_measured(advice: Advice, measured: Mapping[int, Measurement]) -> Advice:
    """Return advice in which measurements stand in place of estimates.

    Args:
        advice: As the log alone tells it.
        measured: By the place of its lever in `advice.levers`.

    Returns:
        The advice, with its levers in their new order. Two best levers together are left out: they were
        simulated.
    """
    if not measured:
        return advice
    levers = [
        _measured(advised, measured[place], advice.step_sec) if place in measured else advised
        for place, advised in enumerate(advice.levers)
    ]
    levers = in_order(levers, advice.step_sec)
    return replace(advice, levers=levers, together=None, sentence=first_in_words(levers, advice.step_sec))


def _measured(advised: Advised, measurement: Measurement, step_sec: float) -> Advised:
    value, saving = measurement.value, measurement.saving
    proposal = replace(
        advised.proposal,
        proposed=value,
        rests_on=f"measured on a twin over {measurement.pairs} pairs of steps; {advised.proposal.rests_on}",
        costs_sec=None,
    )
    return Advised(advised.lever, proposal, saving, saving.sec / step_sec if step_sec else 0.0, True)
