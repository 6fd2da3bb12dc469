"""Say below a table what an own rollout did not bind, so that the table lacks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_instrument.cli.tables import print_told

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run


def print_unbound(run: Run) -> None:
    """Print a line for each thing that was not bound; nothing if all was."""
    for sentence in _sentences(run):
        print_told("not bound", sentence, "bold yellow")


def words_for_nothing(run: Run) -> str:
    """Return what a table of requests without rows says: that none is known, if calls of the engine are."""
    return "none is known, though the engine was called" if _sentences(run) else "nothing was recorded"


def _sentences(run: Run) -> list[str]:
    from sglang_instrument.analysis.answers.unbound_calls import unbound_calls

    return unbound_calls(run).sentences
