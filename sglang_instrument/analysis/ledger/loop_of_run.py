"""Make the loop of a run, with the weight updates that its training processes logged outside of any step."""

from typing import TYPE_CHECKING, Any, Final

import orjson
import polars as pl

from sglang_instrument.analysis.ledger.deciding_paths import Paths
from sglang_instrument.analysis.ledger.loop import Loop
from sglang_instrument.analysis.ledger.loop_lanes import Lanes

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_ROLE: Final = "learner"  # it logs weight updates without a step where its trainer names none
_EVENTS: Final = (
    "weights_update",
    "generation_pause",
    "generation_continue",
    "memory_release",
    "memory_resume",
)
_OUTSIDE: Final = {"event": pl.String, "start_us": pl.Int64, "end_us": pl.Int64}


def loop_of(run: "Run", paths: Paths | None = None) -> Loop:
    """Return the loop of a run.

    Args:
        run: The run.
        paths: Of its workers, if already known.
    """
    return Loop(Lanes(Paths.of(run.digest) if paths is None else paths, run.everything, _outside(run)))


def _outside(run: "Run") -> pl.DataFrame:
    """Return the weight updates of the training process with the lowest rank, outside of any step."""
    if run.is_dataset:
        return pl.DataFrame(schema=_OUTSIDE)
    files = [one for one in run.files if one.place is not None and one.place.role == _ROLE]
    files = [one for one in files if one.place and one.place.step is None and one.pruned_us is None]
    lowest = min((one.place.worker for one in files if one.place), default=0)
    files = [one for one in files if one.place and one.place.worker == lowest]
    rows = []
    for _, chunks in run.read_marked(files, _EVENTS):
        for chunk in chunks:
            rows += [row for line in chunk.splitlines() if (row := _row(line)) is not None]
    return pl.DataFrame(rows, schema=_OUTSIDE, orient="row")


def _row(line: bytes) -> tuple[str, int, int] | None:
    """Return event, start and end of a weight update; None for another line, or one that cannot be read."""
    try:
        record: Any = orjson.loads(line)
        start_us, took = int(record["start_us"]), float(record["duration_sec"])
        event = record["event"]
    except (ValueError, TypeError, KeyError):
        return None
    return (event, start_us, start_us + round(took * 1e6)) if event in _EVENTS else None
