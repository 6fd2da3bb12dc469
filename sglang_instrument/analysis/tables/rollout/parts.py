"""Declare the parts of the ledger as columns: shares of a time that a terminal shows."""

from __future__ import annotations

from typing import Final

from sglang_instrument.analysis.tables.column import Column

#: Share of a row's time from which on a part of the ledger has a column.
LEAST: Final = 0.05
#: Parts that have a column in any case.
ALWAYS: Final = ("engine", "tool")
#: What the parts of the ledger are; waiting at barriers has a column of its own.
PARTS: Final = {
    "late start": "it began after the first worker did",
    "preprocess": "spans of the phase preprocess, within requests and outside",
    "waiting for own requests": "a request waited until fewer of its worker were in flight",
    "engine": "calls of the engine",
    "tool": "tools",
    "interaction": "interactions with the environment",
    "environment": "setting sandboxes and environments up, resetting them, and taking them down",
    "reward": "rewards",
    "blocked loop": "the event loop was blocked, whatever else ran",
    "postprocess": "spans of the phase postprocess, within requests and outside",
    "broadcast": "sending objects to other workers",
    "cache": "flushing the engine's caches",
    "weights": "updating the engine's weights",
    "other": "spans of the phase other: those of no other part",
    "between steps": "from its end to the begin of the next step",
    "unaccounted": "in a step, request or turn, but in no part of it",
}
#: The column of all parts together that have none.
SMALLER: Final = "smaller parts"


def part_columns(first: str) -> tuple[Column, ...]:
    """Return a column for each part, which are shown where rows have them, and one for the parts without.

    Args:
        first: What the shares are of, for `--explain`.
    """
    columns = [
        _terminal_only(part, f"{first if number == 0 else 'the same'}: {meaning}")
        for number, (part, meaning) in enumerate(PARTS.items())
    ]
    smaller = f"all parts without a column, each below {LEAST:.0%}; all parts add up to 100"
    return (*columns, _terminal_only(SMALLER, smaller, former_title="rest"))


def _terminal_only(name: str, meaning: str, former_title: str = "") -> Column:
    return Column(name, meaning, "share", json=False, frame=False, optional=True, former_title=former_title)
