"""Name two runs that are compared, as shortly as tells them apart, with the time at which each began."""

from datetime import datetime, timezone
from typing import Any

from sglang_instrument.analysis.run.opening import Run


def names_of(run: Run, other: Run) -> tuple[str, str]:
    """Return the names of two runs: of their experiments, or what opens them where these are the same."""
    first, second = _short(run), _short(other)
    return (first, second) if first != second else (run.logs, other.logs)


def dated_names_of(run: Run, other: Run) -> tuple[str, str]:
    """Return the names of two runs for a legend, such as "gsm8k_600, 2026-01-05 08:00 UTC"."""
    first, second = names_of(run, other)
    return _dated(first, run), _dated(second, other)


def _short(run: Run) -> str:
    """Return the name of the experiment, with the id of an older run."""
    name = run.folder.absolute().name
    return name if run.run_id is None else f"{name}@{run.run_id}"


def _dated(name: str, run: Run) -> str:
    begun: Any = run.digest.steps["start_us"].min()
    if begun is None:
        return name
    return f"{name}, {datetime.fromtimestamp(begun / 1e6, timezone.utc):%Y-%m-%d %H:%M} UTC"
