"""What a run's log lacks: spans that never ended, processes that died, what followers saw of them."""

from __future__ import annotations

from typing import Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import VALIDATE
from sglang_instrument.analysis.tables.table import Table

_STEP: Final = Column("step", "the training step", "id")
_WORKER: Final = Column("worker", "its rank", "id")
UNENDED: Final = Table(
    name="unended_spans",
    row="a span that was open in the last report of a file; a terminal prints a sentence",
    commands=("check",),
    columns=(
        Column("file", "the log file"),
        Column("pid", "of a child of the program that was killed; null of others", "id"),
        Column("event", "its event"),
        Column("tool", "the tool that it ran; null where none was named"),
        Column("request_id", "its request; null where none was bound"),
        Column("turn", "its turn", "ordinal"),
        Column("age_sec", "for how long it was open when it was reported", "time"),
        Column("place", "the innermost frame of the program in it"),
        Column("stack", "the frames in which it stood, the innermost last", "list"),
    ),
)
DEATHS: Final = Table(
    name="deaths",
    row="a worker that died; a terminal prints a sentence",
    commands=("check",),
    columns=(
        _STEP,
        VALIDATE,
        _WORKER,
        Column("sentence", "what happened, in words"),
        Column("advice", "what to look at next"),
        Column("evidence", "the numbers behind it", "object"),
    ),
)
SIGHTINGS: Final = Table(
    name="sightings",
    row="what a follower saw of a process that could not say it itself; a terminal prints a sentence",
    commands=("check",),
    columns=(
        Column("kind", "what was seen"),
        Column("role", "of the process"),
        _WORKER,
        _STEP,
        Column("since_us", "its last line", "moment"),
        Column("seen_us", "when it was seen", "moment"),
        Column("sentence", "what was seen, in words"),
        Column("run_id", "the launch"),
    ),
)
