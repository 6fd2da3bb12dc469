"""Cache the tables that answers make of a run's files."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import polars as pl

from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.digest_of_run import state_of
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.store.homes import homes, is_worthwhile
from sglang_instrument.analysis.store.made_tables import forget_made, load_made, save_made

_Answer = TypeVar("_Answer")


def cached_table(
    run: Run, name: str, make: Callable[[], pl.DataFrame], files: Sequence[File] | None = None
) -> pl.DataFrame:
    """Return a table made from files of a run: the cached one, or a new one, which is then cached.

    A run that is not cached, or too small for it, keeps the table in memory, as several answers ask for it.

    Args:
        run: The run.
        name: The table's name in the cache.
        make: Makes the table.
        files: The files it is made from, all by default; if one of them changed, it is made again.
    """
    files = run.files if files is None else files
    if not run.cached or not is_worthwhile(files):
        return made_once(run, name if files is run.files else (name, state_of(files)), make)
    state, stores = state_of(files), homes(run.home)
    cached = load_made(stores, name, state)
    if cached is not None:
        return cached
    unfit_before = _unfit(files)
    table = make()
    if _unfit(files) != unfit_before:
        return table  # made again each time, so that what was left out of it is counted each time
    save_made(stores, name, state, table)
    forget_made(stores, name, {state})
    return table


def made_once(run: Run, name: Hashable, make: Callable[[], _Answer]) -> _Answer:
    """Return what was made of a run under this name; the first time, make it."""
    if name not in run.answers:
        run.answers[name] = make()
    answer: _Answer = run.answers[name]
    return answer


def _unfit(files: Sequence[File]) -> int:
    return sum(of_field.count for file in files for of_field in file.unfit.values())
