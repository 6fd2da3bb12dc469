"""Make the tables of a dataset that the digest answers: all of them but `spans`."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.tables.registry import stored_tables

#: The names of these tables.
MADE: Final = tuple(name for name, table in stored_tables().items() if table.make is not None)


def make_table(run: Run, name: str) -> pl.DataFrame:
    """Return one of the tables in `MADE`, with its documented columns."""
    return stored_tables()[name].frame(run)
