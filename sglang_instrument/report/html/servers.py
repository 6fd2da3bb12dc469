"""Collect what the report says of the servers that ran the engine's calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.routing.conversations import affinity, followed_calls
from sglang_instrument.analysis.answers.routing.load import balance, load_by_slice, server_table
from sglang_instrument.analysis.answers.routing.samples import server_samples
from sglang_instrument.analysis.answers.routing.server_calls import server_calls
from sglang_instrument.analysis.answers.routing.words import (
    affinity_words,
    balance_words,
    bars,
    unknown_words,
)

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_SLICES: Final = 32
_MOST: Final = 64  # servers with a row


def server_section(run: Run) -> dict[str, Any] | None:
    """Return the rows and sentences of the section; None if the log names no server.

    Returns:
        rows: of `server_table`, each with `bars`, its load over time; of_rows: how many there are; sentences.
    """
    calls = server_calls(run).filter(~pl.col("validate"))
    if not calls["server"].count():
        return None
    table = server_table(calls, server_samples(run, calls))
    drawn = bars(load_by_slice(calls, _SLICES))
    words = (balance_words(balance(table)), *affinity_words(affinity(followed_calls(calls))))
    return {
        "rows": [{**row, "bars": drawn.get(row["server"], "")} for row in table.head(_MOST).to_dicts()],
        "of_rows": len(table),
        "sentences": [*filter(None, words), *unknown_words(table)],
    }
