"""Make the loop of a run, with the weight updates that its training processes logged outside of any step."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.deciding_paths import Paths
from sglang_instrument.analysis.ledger.loop import Loop
from sglang_instrument.analysis.ledger.loop_lanes import LoopLanes
from sglang_instrument.analysis.reading.records.fields import Fields
from sglang_instrument.analysis.run.newest_records import newest_records
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


def loop_of(run: Run, paths: Paths | None = None) -> Loop:
    """Return the loop of a run.

    Args:
        run: The run.
        paths: Of its workers, if already known.
    """
    return Loop(LoopLanes(Paths.of(run.digest) if paths is None else paths, run.everything, _outside(run)))


def _outside(run: Run) -> pl.DataFrame:
    """Return the weight updates of the training process with the lowest rank, outside of any step."""
    files = [file for file in run.files if file.place is not None and file.place.role == _ROLE]
    files = [file for file in files if file.place and file.place.step is None]
    lowest = min((file.place.worker for file in files if file.place), default=0)
    files = [file for file in files if file.place and file.place.worker == lowest]
    rows = [
        (line.event, line.start_us, line.start_us + round(line.duration_sec * 1e6))
        for _, line, _ in newest_records(run, files, Fields, events=_EVENTS)
        if line.start_us is not None and line.duration_sec is not None
    ]
    return pl.DataFrame(rows, schema=_OUTSIDE, orient="row")
