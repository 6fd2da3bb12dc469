"""Control records, one row each: what opened and closed logs and steps, and what was open meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.reading.files import File
    from sglang_instrument.analysis.reading.records.lines import WholeLine
    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    import polars as pl

    from sglang_instrument.analysis.run.newest_records import control_records

    rows = [row for record in control_records(run) if (row := _row(*record))]
    table = pl.DataFrame(rows, schema={**CONTROL.schema, "timestamp": pl.Int64}, orient="row")
    return table.sort("timestamp", maintain_order=True)


def _row(file: File, run_id: str | None, line: WholeLine) -> tuple[Any, ...]:
    from sglang_instrument.analysis.reading.all_fields import text_of
    from sglang_instrument.analysis.reading.times import epoch_us

    place = file.place
    if place is None:
        return ()
    return (
        run_id,
        place.step if line.step is None else line.step,
        bool(line.validate) or place.validate,
        place.role,
        place.worker if line.workid is None else line.workid,
        line.event,
        epoch_us(line.timestamp),
        file.path,
        text_of(line),
        line.others,
    )


CONTROL: Final = Table(
    name="control",
    row="a control record",
    make=_make,
    is_stored=True,
    columns=(
        Column("run_id", "launch that wrote it; null without a header"),
        Column("step", "training step; null for the engine's processes", "id"),
        Column("validate", "whether it is validation", "flag"),
        Column("role", "worker, trainer, server, scheduler ...: from the log file's name"),
        Column("worker", "rank of the process", "id"),
        Column("event", "log_opened, step_closed, log_closed, open_spans, open_now or open_block"),
        Column("timestamp", "when it was written, on the clock of its host", "timestamp"),
        Column("file", "log file that it was read from"),
        Column("extra", "all fields, as JSON, as they stand in the log; null if it has none"),
        Column("other_keys", "keys of the line without a column, as JSON; null if it has none"),
    ),
)
