"""Fill the columns that a table declares as fields of the log: `field="tool_calls"` or `"tokens:max"`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run

REQUEST: tuple[str, ...] = ("step", "validate", "worker", "request_id", "attempt")


def with_logged_fields(
    table: Table,
    run: Run,
    rows: pl.DataFrame,
    key: Sequence[str],
    *,
    steps: Sequence[int] | None = None,
    worker: int | None = None,
    validate: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pl.DataFrame:
    """Add to rows the columns of a table that declare a field; without such a column, nothing is read.

    Args:
        table: What declares the columns.
        run: The run.
        rows: With the columns of `key`.
        key: What the values are grouped by: `REQUEST`, or `["event"]`.
        steps: Only records of these steps.
        worker: Only records of this worker.
        validate: Only records of validations, or only of training.
        progress: Called with the number of files read and the number of files to read.
    """
    columns = [column for column in table.columns if column.field]
    if not columns:
        return rows
    import polars as pl

    from sglang_instrument.analysis.tables.asked_fields import asked_fields, field_values, of_workers

    fields = asked_fields([column.field for column in columns])
    names = tuple(field.name for field in fields)
    sums = run.read_tables("fields", names, steps, worker, validate, progress)
    values = field_values(of_workers(sums), fields, key) if len(sums) else {}
    schema = table.schema
    groups = [tuple(group) for group in rows.select(key).iter_rows()]
    return rows.with_columns(
        pl.Series(
            column.name,
            [values.get(group, {}).get(column.field) for group in groups],
            schema[column.name],
            strict=False,
        )
        for column in columns
    )
