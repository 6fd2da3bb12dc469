"""Write a run as a dataset of Parquet files, and write only what changed the next time."""

import errno
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from sglang_instrument.analysis.dataset.columns import PARTITIONS, TABLES, schema_of
from sglang_instrument.analysis.dataset.stored_run import store_run
from sglang_instrument.analysis.dataset.tables import MADE, make_table
from sglang_instrument.analysis.digests.parquet import save_parquet, write_parquet
from sglang_instrument.analysis.executors.executor import Progress
from sglang_instrument.analysis.reading.files import File, Newest, newest_runs, run_begins
from sglang_instrument.analysis.run.batch_job import BatchJob
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.run.span_files import SPANS, output_name
from sglang_instrument.errors import InstrumentError, LogError
from sglang_instrument.regular_files import read_regular
from sglang_instrument.safe_files.folder import SafeFolder, is_draft
from sglang_instrument.safe_files.output import writing_output
from sglang_instrument.schema import LOG_VERSION

_LAYOUT: Final = 6  # of a dataset; raise it when columns or their meaning change
_VERSION: Final = f"log {LOG_VERSION}, layout {_LAYOUT}"
_MANIFEST: Final = "_manifest.json"  # Spark, Ray and pyarrow skip names that begin with an underscore
_LOCK: Final = "_lock"
_OLD_DRAFT: Final = re.compile(r"\.draft-\d+")  # of earlier versions
_MOST_BYTES: Final = 2**30

#: A log file as it was when its spans were written: path, size, mtime_ns, and the newest run of its folder.
_State = tuple[str, int, int, str | None]


class _Output(msgspec.Struct):
    """A Parquet file of spans: the log files that it was made from, and its rows."""

    files: list[str]
    rows: int


class _ExportManifest(msgspec.Struct):
    """What a dataset was made from; `begun` are the log files of an export that has not ended."""

    version: str
    runs: list[str]
    files: list[_State]
    spans: dict[str, _Output]
    begun: list[str] = []


class Written(msgspec.Struct):
    """What an export did: how many Parquet files of spans it wrote, how many there are, and their rows."""

    written: int
    files: int
    rows: int


def export_dataset(run: Run, target: Path, progress: Progress | None = None) -> Written:
    """Write a run to a new folder, or bring the dataset in it up to date.

    Args:
        run: The run.
        target: A new or empty folder outside of the run's, or one with a dataset of this run.
        progress: Called with the number of log files read so far and the number of files to read.

    Raises:
        InstrumentError: The folder holds something else, or cannot be written.
    """
    run.demand_log()
    with writing(target):
        _demand_ours(run, target)
        target.mkdir(parents=True, exist_ok=True)
        folder = SafeFolder(target.absolute())
        with folder.locked(_LOCK):
            written = _write_tables(run, folder, progress)
            store_run(run, target)
    return written


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Raise InstrumentError if the disk is full or the folder is not ours: polars has its own errors."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InstrumentError(f"{target} cannot be written as a whole: {error}") from error


def _write_tables(run: Run, target: SafeFolder, progress: Progress | None) -> Written:
    """Write the tables of a run into a folder of ours; of the spans, those that changed."""
    loaded = _load(target)
    old = _known(run, loaded)
    if loaded is None:
        _save(target, old)  # so that a killed export can go on
    target.delete_drafts(at_once=True)
    ours = _our_outputs(run, old)
    _demand_only_ours(target, ours)
    if loaded is not None and loaded.version != _VERSION:
        _add_columns(target, old.spans)
    new, fresh = _with_spans(run, target, old, progress)
    for name in MADE:
        save_parquet(target, f"{name}.parquet", make_table(run, name))
    _delete_others(target, new.spans, ours)  # before the manifest that forgets them
    _save(target, new)
    return Written(fresh, len(new.spans), sum(output.rows for output in new.spans.values()))


def _demand_ours(run: Run, target: Path) -> None:
    """Raise InstrumentError unless a folder is new, empty, or a dataset of this run, and not inside it."""
    if target.resolve().is_relative_to(run.folder.resolve()):
        raise InstrumentError(f"{target} is inside the run; give a folder beside {run.folder}")
    if not target.exists() or (target.is_dir() and all(_is_begun(path.name) for path in target.iterdir())):
        return
    if not (target / _MANIFEST).is_file():
        raise InstrumentError(
            f"{target} exists and is neither an empty folder nor a dataset; nothing is overwritten"
        )
    known = _load(SafeFolder(target))
    if known is not None and known.runs and set(known.runs).isdisjoint(run_begins(run.files)):
        raise InstrumentError(
            f"{target} is a dataset of another run ({', '.join(known.runs)}); nothing is overwritten"
        )


def _is_begun(name: str) -> bool:
    """Return whether this is the name of what an export writes before its manifest."""
    return name == _LOCK or is_draft(name)


def _known(run: Run, known: _ExportManifest | None) -> _ExportManifest:
    """Return the manifest of a dataset as it was; an empty one if there is none of this version."""
    runs = list(run_begins(run.files))
    if known is None:
        return _ExportManifest(_VERSION, runs, [], {})
    if known.version != _VERSION:
        known = _of_pruned(run, known)
    return msgspec.structs.replace(known, version=_VERSION, runs=runs)


def _of_pruned(run: Run, known: _ExportManifest) -> _ExportManifest:
    """Return what an earlier version wrote of files that `prune` deleted: it cannot be written again."""
    gone = {file.path for file in run.files if not file.has_records}
    spans = {name: output for name, output in known.spans.items() if not gone.isdisjoint(output.files)}
    written = {path for output in spans.values() for path in output.files}
    files = [state for state in known.files if state[0] in written]
    return msgspec.structs.replace(known, files=files, spans=spans, begun=sorted(_logs_of(known)))


def _add_columns(target: SafeFolder, outputs: Collection[str]) -> None:
    """Add to Parquet files of spans the columns that an earlier version did not have: null."""
    kinds = schema_of(SPANS)
    for folder, name in [target.split(output) for output in outputs if _is_here(target, output)]:
        spans = pl.read_parquet(folder.path / name, glob=False, hive_partitioning=False)
        missing = [column for column in kinds if column not in (*PARTITIONS, *spans.columns)]
        if missing:
            added = (pl.lit(None, kinds[column]).alias(column) for column in missing)
            save_parquet(folder, name, spans.with_columns(added))


def _load(target: SafeFolder) -> _ExportManifest | None:
    try:
        return msgspec.json.decode(read_regular(target.path / _MANIFEST, _MOST_BYTES), type=_ExportManifest)
    except (OSError, msgspec.MsgspecError):
        return None


def _save(target: SafeFolder, manifest: _ExportManifest) -> None:
    target.write(_MANIFEST, msgspec.json.encode(manifest))


def _with_spans(
    run: Run, target: SafeFolder, old: _ExportManifest, progress: Progress | None
) -> tuple[_ExportManifest, int]:
    """Write the spans of the log files that changed; return the new manifest, and how many files it wrote."""
    if run.executor.is_far:
        raise LogError(f"{run.folder}: the nodes cannot write a dataset here; `collect` the run first")
    newest = newest_runs(run.files)
    states = {file.path: _state(file, newest) for file in run.files}
    unchanged = {state[0] for state in old.files if states.get(state[0]) == state}
    untouched = _untouched(old.spans, unchanged, target)
    redone = _redone(run.files, old.spans, untouched, unchanged)
    if redone:
        begun = {*old.begun, *(file.path for file in redone)}
        _save(target, msgspec.structs.replace(old, begun=sorted(begun)))
    columns = tuple(name for name in TABLES[SPANS] if name not in PARTITIONS)
    job = BatchJob("spans", columns, target, newest)
    read, tables = run.executor.read(redone, job, progress)
    fresh = _outputs(read, tables.values())
    gone = {file.path for file in run.files if not file.has_records} - unchanged
    known = {path: state for path, state in states.items() if path not in gone}
    now = {**known, **{file.path: _state(file, newest) for file in read}}
    return _ExportManifest(_VERSION, old.runs, list(now.values()), {**untouched, **fresh}), len(fresh)


def _state(file: File, newest: Newest) -> _State:
    return (file.path, file.size, file.mtime_ns, newest.get(file.folder))


def _untouched(outputs: dict[str, _Output], unchanged: set[str], target: SafeFolder) -> dict[str, _Output]:
    """Return the Parquet files whose log files are as they were; a log file goes with all of its outputs."""
    untouched = {name: output for name, output in outputs.items() if _is_here(target, name)}
    lost = {path for name, output in outputs.items() if name not in untouched for path in output.files}
    sound = unchanged - lost
    while True:
        touched = {name for name, output in untouched.items() if not sound.issuperset(output.files)}
        if not touched:
            return untouched
        sound = sound - {path for name in touched for path in untouched[name].files}
        untouched = {name: output for name, output in untouched.items() if name not in touched}


def _redone(
    files: Sequence[File], outputs: dict[str, _Output], untouched: dict[str, _Output], unchanged: set[str]
) -> list[File]:
    """Return the log files that changed, and those that share a Parquet file with them.

    Files that `prune` deleted are left out: their spans stay where an earlier export wrote them.
    """
    again = {path for name, output in outputs.items() if name not in untouched for path in output.files}
    with_records = [file for file in files if file.has_records]
    return [file for file in with_records if file.path in again or file.path not in unchanged]


def _outputs(read: Sequence[File], parts: Iterable[pl.DataFrame]) -> dict[str, _Output]:
    paths = [file.path for file in read for _ in file.runs]
    outputs: dict[str, _Output] = {}
    for part in parts:
        for source, name, rows in part.select("source", "output", "rows").iter_rows():
            output = outputs.setdefault(name, _Output([], 0))
            output.files.append(paths[source])
            output.rows += rows
    return outputs


def _is_here(target: SafeFolder, output: str) -> bool:
    folder, name = target.split(output)
    return folder.has_file(name)


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a Parquet file, or replace it once the new one is whole."""
    with writing_output(path) as file:
        write_parquet(table, file)


def _our_outputs(run: Run, known: _ExportManifest) -> set[str]:
    """Return the names of files of spans that this export or an earlier one may have written."""
    return set(map(output_name, _logs_of(known) | {file.path for file in run.files}))


def _logs_of(known: _ExportManifest) -> set[str]:
    """Return the paths of the log files that a dataset was made from, or that an export began to write."""
    of_spans = (path for output in known.spans.values() for path in output.files)
    return {*known.begun, *(state[0] for state in known.files), *of_spans}


def _demand_only_ours(target: SafeFolder, ours: Collection[str]) -> None:
    """Raise OSError if readers would take something else for spans: a Parquet file, a link to a folder."""
    for folder in _step_folders(target):
        for name in folder.names():
            if name.endswith(".parquet") and name not in ours:
                raise OSError(errno.EEXIST, "it is no file of this dataset", str(folder.path / name))


def _delete_others(target: SafeFolder, outputs: Collection[str], ours: Collection[str]) -> None:
    """Delete our files of spans that no log file stands behind any more, and drafts of killed exports."""
    for folder in _step_folders(target):
        below = "/".join(folder.inside[len(target.inside) :])
        our_names = {name for name in folder.names() if name in ours or _OLD_DRAFT.fullmatch(name)}
        stale = {name for name in our_names if f"{below}/{name}" not in outputs}
        folder.delete_those(stale.__contains__)
        folder.delete_drafts(at_once=True)


def _step_folders(target: SafeFolder) -> Iterator[SafeFolder]:
    """Yield the folders with spans; raise OSError if a link is in place of one."""
    spans = target / SPANS
    for run_id in spans.folder_names():
        for step in (spans / run_id).folder_names():
            yield spans / run_id / step
