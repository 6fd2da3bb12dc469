"""Say in words what `staleness` and `waste` found: samples that no step took, tokens thrown away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_instrument.analysis.answers.asynchronous.fates import UNKNOWN, USED, WAITING


def staleness_words(steps: Sequence[Mapping[str, Any]], fates: Mapping[str, int]) -> list[str]:
    """Return what the table does not show: samples that no step took, labels that cannot be right.

    Args:
        steps: Rows of `staleness_table`.
        fates: How many samples have each fate.
    """
    said = []
    lost = sum(count for name, count in fates.items() if name not in (USED, WAITING, UNKNOWN))
    if fates.get(USED):
        why = ": `waste` tells why" if lost else ""
        said.append(
            f"{fates[USED]:,} samples used, {fates.get(WAITING, 0):,} not taken by any step yet, "
            f"{lost:,} thrown away{why}"
        )
    ahead = sum(row["ahead"] or 0 for row in steps)
    if ahead:
        said.append(
            f"{ahead:,} samples carry newer versions than the trainer had when it took them: versions went "
            "back after a restart, or a label is wrong; they have no staleness here"
        )
    return said


def waste_words(total: Mapping[str, Any] | None, engine: Mapping[str, Any] | None) -> list[str]:
    """Return how many tokens were thrown away, and what the engines' own logs count.

    Args:
        total: Of `waste.totals`.
        engine: Of `waste.engine_waste`.
    """
    said = []
    if total is not None and total["generated_tokens"]:
        said.append(_thrown_away(total))
        if at_limit := total["used_at_limit_tokens"]:
            said.append(f"{at_limit:,} tokens were used of replies that hit their limit")
    if engine is not None and engine["generated_tokens"] is not None:
        aborted, again = engine["aborted_tokens"], engine["computed_again_tokens"]
        ended = "" if aborted is None else f", {aborted:,} of them in aborted ones"
        more = "" if again is None else f", {again:,} tokens computed again after retractions"
        said.append(
            f"the engines' own logs, validation included: {engine['generated_tokens']:,} tokens in "
            f"{engine['requests']:,} requests{ended}{more}"
        )
    return said


def _thrown_away(total: Mapping[str, Any]) -> str:
    """Return how many tokens were thrown away; a lower limit where the fate of some is not known."""
    generated, wasted, unknown = (total[f"{name}_tokens"] for name in ("generated", "wasted", "unknown"))
    if wasted is None or (unknown and not wasted):
        return f"what became of {unknown or generated:,} of {generated:,} generated tokens is not known"
    least = "at least " if unknown else ""
    share = _percent(wasted / generated)
    return f"{least}{wasted:,} of {generated:,} generated tokens were thrown away: {share} %"


def _percent(share: float) -> str:
    value = share * 100
    return f"{value:.0f}" if value >= 10 or not value else f"{value:.1f}" if value >= 0.05 else "<0.1"
