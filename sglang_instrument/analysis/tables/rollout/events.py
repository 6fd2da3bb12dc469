"""Events by name: how often each happened, how long it took, its share of the steps' time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.from_fields import with_logged_fields
from sglang_instrument.analysis.tables.shared import FIELDS
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def events_of(
    run: Run, step: int | None = None, worker: int | None = None, validate: bool = False
) -> pl.DataFrame:
    """Return the rows of `EVENTS` for one step or all, one worker or all, of training or of validations."""
    import polars as pl

    from sglang_instrument.analysis.answers.events import event_table

    of_step = pl.col("step").is_not_null() if step is None else pl.col("step") == step
    of_worker = pl.lit(True) if worker is None else pl.col("worker") == worker
    events = run.read_events(step, worker, validate).filter(of_step, of_worker, validate=validate)
    timed = pl.col("duration_sec").is_not_null()
    rows = event_table(events.filter(timed), events.filter(~timed))
    steps = None if step is None else [step]
    return with_logged_fields(EVENTS, run, rows, ["event"], steps=steps, worker=worker, validate=validate)


EVENTS: Final = Table(
    name="events",
    row="an event by its name, the largest share of the steps first",
    commands=("events",),
    make=events_of,
    columns=(
        Column("event", "its name in the log"),
        Column("phase", "its phase", terminal=False),
        Column(
            "steps_share",
            "share of the steps' wall time: each instant is split equally among the innermost spans open at "
            "it, so that the shares add up to 100; null where only the engine's processes logged",
            "share",
            title="workers' time",
            formerly="share",
        ),
        Column("count", "how often it happened", "count"),
        Column("total_sec", "sum of the durations; nested and concurrent spans count again", "time"),
        Column(
            "without_nested_sec",
            "the same without the time of the spans nested in them",
            "time",
            gives_way=1,
            formerly="self_sec",
            former_title="self",
        ),
        Column("p50_sec", "half of them took at most this long", "fine time", gives_way=2),
        Column("p99_sec", "99 % of them took at most this long", "fine time"),
        Column("max_sec", "the longest one; null of instant events", "fine time"),
        FIELDS,
    ),
)
