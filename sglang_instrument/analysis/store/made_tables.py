"""Keep tables that were made of files of a run in its store, each under the state of these files."""

import re
from collections.abc import Collection, Sequence

import polars as pl

from sglang_instrument.analysis.digests.parquet import read_table, save_parquet
from sglang_instrument.safe_files.folder import SafeFolder


def load_made(homes: Sequence[SafeFolder], name: str, state: str) -> pl.DataFrame | None:
    """Return a table as it was made of files in this state; None if no store has it.

    Args:
        homes: Where the store may lie.
        name: Of the table.
        state: `state_of` the files.
    """
    for home in homes:
        try:
            return read_table(home.path / _file_name(name, state))
        except (OSError, ValueError, pl.exceptions.PolarsError):
            continue
    return None


def save_made(homes: Sequence[SafeFolder], name: str, state: str, table: pl.DataFrame) -> None:
    """Keep a table in the first store that can be written, if there is one."""
    for home in homes:
        try:
            home.make()
            save_parquet(home, _file_name(name, state), table)
        except (OSError, pl.exceptions.PolarsError):
            continue
        return


def forget_made(homes: Sequence[SafeFolder], name: str, states: Collection[str]) -> None:
    """Delete the tables of this name that were made of files in other states."""
    pattern = re.compile(rf"{re.escape(name)}-([0-9a-f]{{12}})\.parquet")
    for home in homes:
        home.delete_those(
            lambda file_name: (ours := pattern.fullmatch(file_name)) is not None and ours[1] not in states
        )


def _file_name(name: str, state: str) -> str:
    return f"{name}-{state}.parquet"
