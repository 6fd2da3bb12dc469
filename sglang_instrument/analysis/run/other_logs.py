"""Open a folder of ours, or the log of another project, and say what such a log lacks."""

from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.executors.earlier_dataset import EarlierDataset
from sglang_instrument.analysis.executors.executor import Executor
from sglang_instrument.analysis.executors.local import LocalExecutor
from sglang_instrument.analysis.foreign.executor import ForeignExecutor, foreign_executor
from sglang_instrument.analysis.foreign.registry import known_formats
from sglang_instrument.analysis.reading.folders import entries
from sglang_instrument.analysis.run.experiments import find_run
from sglang_instrument.analysis.run.health import Health
from sglang_instrument.analysis.store.earlier_datasets import is_earlier_dataset
from sglang_instrument.errors import LogError

_NAMED: Final = 3  # files that could not be read are named, with the reason


def local_executor(path: Path) -> Executor:
    """Return what reads the run at a path, or the log of another project.

    Raises:
        LogError: There is neither.
    """
    try:
        folder = find_run(path)
    except LogError as error:
        foreign = foreign_executor(path)
        if foreign is not None:
            return foreign
        if not path.exists() or (path.is_dir() and not entries(path)):
            raise
        raise LogError(f"{error}. Nor is it a log of another project; known are {known_formats()}") from None
    return EarlierDataset(folder) if is_earlier_dataset(folder) else LocalExecutor(folder)


def rows_of_foreign(executor: Executor) -> pl.DataFrame | None:
    """Return all rows of another project's log, with the fields that only it has; None for a run of ours."""
    return executor.log.rows if isinstance(executor, ForeignExecutor) else None


def rows_of_servers(executor: Executor) -> pl.DataFrame | None:
    """Return all rows of another project's log if its workers are servers; else None."""
    if isinstance(executor, ForeignExecutor) and executor.log.workers_are_servers:
        return executor.log.rows
    return None


def tell_foreign(health: Health, executor: ForeignExecutor) -> None:
    """Note what was read of another project's log, and what such logs cannot show."""
    log = executor.log
    health.files = len(log.files)
    health.read_as = executor.format.name
    health.cannot_show = [*log.misread, *log.cannot_show]
    health.unreadable.update(log.unreadable)


def why_nothing(executor: Executor) -> str:
    """Return why another project's log may hold no records; "" for a folder of ours."""
    if not isinstance(executor, ForeignExecutor):
        return ""
    lost = [f"{name}: {reason}" for name, reason in executor.log.unreadable.items()] + executor.log.misread
    shown = lost[:_NAMED] + ([f"{len(lost) - _NAMED} more"] if len(lost) > _NAMED else [])
    why = "; ".join(shown) if lost else f"it cannot show {'; '.join(executor.log.cannot_show)}"
    return f", read as {executor.format.name}: {why}"
