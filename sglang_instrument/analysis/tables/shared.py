"""Declare columns that several tables share."""

from __future__ import annotations

from typing import Final

from sglang_instrument.analysis.tables.column import Column, Styled

STEP: Final = Column("step", "the training step; null where it is not known", "id", gives_way=6)
VALIDATE: Final = Column("validate", "whether it is validation", "flag", terminal=False)
ATTEMPT: Final = Column(
    "attempt",
    "which of the requests of this id in the step: a retry uses an id again",
    "ordinal",
    if_any=True,
)
OF_ATTEMPT: Final = Column(
    "attempt", "which of the requests of this id in the step", "ordinal", terminal=False
)
WORKER: Final = Column("worker", "the rank of its worker", "id", gives_way=5)
UNENDED: Final = Column(
    "unended",
    "whether it did not end as far as the log goes: it goes on, hangs, or its process was killed; its time "
    "is that until then; null where the log does not tell",
    "flag",
    cell=lambda row: Styled("unended", "red") if row["unended"] else None,
    shown_as="words",
    if_any=True,
)
UNENDED_COUNT: Final = Column(
    "unended",
    "of requests, how many did not end as far as the log goes: they count with their time until then",
    "count",
    if_any=True,
)
START: Final = Column("start_us", "its start, on the clock of its host", "moment", terminal=False)
END: Final = Column("end_us", "its end, on the clock of its host", "moment", terminal=False)
FIELDS: Final = Column(
    "fields",
    "of the fields that --fields asks for, by what was asked: the sum, maximum or mean of numbers, the last "
    "text",
    "object",
    terminal=False,
    frame=False,
    optional=True,
)
