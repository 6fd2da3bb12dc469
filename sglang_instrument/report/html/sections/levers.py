"""Collect what the report says of settings: which to change, what that saves a step, and what it costs."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

from sglang_instrument.analysis.tables.changes.advise import shown_value
from sglang_instrument.plain_text import plain

if TYPE_CHECKING:
    from sglang_instrument.analysis.advice.advise import Advice
    from sglang_instrument.analysis.run.opening import Run


def lever_section(run: Run, advice: Advice | None) -> dict[str, Any] | None:
    """Return the levers of a run, and the answer in words.

    Args:
        run: The run.
        advice: As `advise` returns it; None where nothing tells it.

    Returns:
        sentence; rows: of the table of levers, each with `now_shown`, `proposed_shown` and its whole
        `command`; together: what the two best levers save together; step_sec; sentences. None without advice.
    """
    if advice is None:
        return None
    rows = [
        {
            **row,
            "now_shown": shown_value(row, "now"),
            "proposed_shown": shown_value(row, "proposed"),
            "command": plain(f"sglang-instrument {row['command']}"),
        }
        for row in advice.rows(quote(run.logs))
    ]
    together = advice.together
    return {
        "sentence": advice.sentence,
        "rows": rows,
        "together": together and together._asdict(),
        "step_sec": advice.step_sec,
        "sentences": [*advice.missing, *(advice.assumptions if rows else ())],
    }
