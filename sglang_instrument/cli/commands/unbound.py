"""Say below a table what an own rollout did not bind, so that the table lacks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_instrument.cli.tables import print_told

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run


def print_unbound(run: Run) -> None:
    """Print a line for each thing that was not bound; nothing if all was."""
    from sglang_instrument.analysis.answers.unbound_calls import unbound_calls

    for sentence in unbound_calls(run).sentences:
        print_told("not bound", sentence, "bold yellow")
