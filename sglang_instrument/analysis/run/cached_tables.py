"""Cache the tables that answers make of a run's files."""

import re
from collections.abc import Callable, Sequence
from functools import partial

import polars as pl

from sglang_instrument.analysis.digests.parquet import read_table, save_parquet
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.digest_of_run import state_of
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.store.homes import homes, is_worthwhile


def cached_table(
    run: Run, name: str, make: Callable[[], pl.DataFrame], files: Sequence[File] | None = None
) -> pl.DataFrame:
    """Return a table made from files of a run: the cached one, or a new one, which is then cached.

    Args:
        run: The run; where it is not cached, the table is made each time.
        name: The table's name in the cache.
        make: Makes the table.
        files: The files it is made from, all by default; if one of them changed, it is made again.
    """
    files = run.files if files is None else files
    if not run.cached or not is_worthwhile(files):
        return make()
    state = state_of(files)
    for home in homes(run.home):
        try:
            return read_table(home.path / f"{name}-{state}.parquet")
        except (OSError, ValueError, pl.exceptions.PolarsError):
            continue
    table = make()
    for home in homes(run.home):
        try:
            home.make()
            save_parquet(home, f"{name}-{state}.parquet", table)
            home.delete_those(partial(_is_other, name=name, state=state))
        except (OSError, pl.exceptions.PolarsError):
            continue
        break
    return table


def _is_other(file_name: str, name: str, state: str) -> bool:
    """Return whether this is the name of a table in the cache that was made of other files."""
    ours = re.fullmatch(rf"{re.escape(name)}-([0-9a-f]{{12}})\.parquet", file_name)
    return ours is not None and ours[1] != state
