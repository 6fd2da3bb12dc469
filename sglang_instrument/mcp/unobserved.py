"""Say what a log does not tell: an agent must not take nothing recorded for nothing happened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sglang_instrument.analysis.answers.engine.join import has_engine_logs
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.settings.recorded import settings_of_run

if TYPE_CHECKING:
    import polars as pl


def unobserved(path: str) -> list[str]:
    """Return sentences on what the log of a run lacks, each with what would record it.

    Args:
        path: The run, as the commands take it.

    Raises:
        LogError: There is no such run.
    """
    run = Run.open(Path(path))
    requests, turns = run.digest.requests, run.digest.turns
    known = {
        "the engines' own processes: SGLANG_INSTRUMENT=1 where they start": has_engine_logs(run),
        "settings of trainer and engine: they come with the trainers' patch tables": bool(
            settings_of_run(run)
        ),
        "requests: bind(request_id=...) around each": not requests.is_empty(),
        "lengths of responses: a field response_length of the request": _has(requests, "response_tokens"),
        "rewards: a field reward of the request": _has(requests, "reward"),
        "tools: span('tool_call') around each": _has(turns, "tool_sec"),
    }
    return [f"not observed: {what}" for what, is_known in known.items() if not is_known]


def _has(table: pl.DataFrame, column: str) -> bool:
    return column in table.columns and table[column].null_count() < len(table)
