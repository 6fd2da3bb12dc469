"""Open a folder of ours, or the log of another project, and say what such a log lacks."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.executors.earlier_dataset import EarlierDataset
from sglang_instrument.analysis.executors.executor import Executor
from sglang_instrument.analysis.executors.local import LocalExecutor
from sglang_instrument.analysis.foreign.executor import ForeignExecutor, foreign_executor
from sglang_instrument.analysis.reading.all_fields import field_columns
from sglang_instrument.analysis.reading.folders import entries
from sglang_instrument.analysis.run.experiments import find_run
from sglang_instrument.analysis.run.health import Health
from sglang_instrument.analysis.store.earlier_datasets import is_earlier_dataset
from sglang_instrument.analysis.store.parts import DAMAGED, OtherLog, index_of, is_dataset
from sglang_instrument.errors import LogError
from sglang_instrument.safe_files.folder import SafeFolder

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
        raise LogError(f"{error}; `sglang-instrument help logs` lists what else can be read") from None
    return EarlierDataset(folder) if is_earlier_dataset(folder) else LocalExecutor(folder)


def other_log(executor: Executor) -> OtherLog | None:
    """Return what is to be known of another project's log, or of a dataset of it; None for a run of ours."""
    if isinstance(executor, ForeignExecutor):
        log = executor.log
        cannot_show = [*log.misread, *log.cannot_show]
        return OtherLog(executor.format.name, cannot_show, log.tells_requests, log.workers_are_servers)
    if not is_dataset(executor.home):
        return None
    try:
        return index_of(SafeFolder(executor.home)).other
    except DAMAGED:  # its parts cannot be read, either: `with_pruned` says so
        return None


def rows_of_other(executor: Executor, read: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """Return all rows of another project's log, with the fields that only it has.

    Args:
        executor: Of the log, or of a dataset of it.
        read: Returns the records of the dataset, with `TEXT_COLUMNS`.
    """
    if isinstance(executor, ForeignExecutor):
        return executor.log.rows
    records = read()
    fields = field_columns(records["extra"])
    return records.hstack(fields.select(name for name in fields.columns if name not in records.columns))


def tell_other(health: Health, executor: Executor, other: OtherLog) -> None:
    """Note what was read of another project's log, and what such logs cannot show."""
    health.read_as, health.cannot_show = other.read_as, other.cannot_show
    if isinstance(executor, ForeignExecutor):
        health.files = len(executor.log.files)
        health.unreadable.update(executor.log.unreadable)


def why_nothing(executor: Executor) -> str:
    """Return why another project's log may hold no records; "" for a folder of ours."""
    if not isinstance(executor, ForeignExecutor):
        return ""
    lost = [f"{name}: {reason}" for name, reason in executor.log.unreadable.items()] + executor.log.misread
    shown = lost[:_NAMED] + ([f"{len(lost) - _NAMED} more"] if len(lost) > _NAMED else [])
    why = "; ".join(shown) if lost else f"it cannot show {'; '.join(executor.log.cannot_show)}"
    return f", read as {executor.format.name}: {why}"
