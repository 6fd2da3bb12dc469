"""Read records of the newest runs, with the fields of `extra` that an answer names."""

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from sglang_instrument.analysis.digests.file_sources import Key, key_of
from sglang_instrument.analysis.reading.files import File, newest_run_filter
from sglang_instrument.analysis.reading.records.fields import (
    ControlFields,
    Fields,
    all_typed,
    records_in,
    typed,
)
from sglang_instrument.analysis.reading.records.lines import Line, Rejects, WholeLine, decode_whole
from sglang_instrument.analysis.reading.records.unfit import UnfitFields, add_seen
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.run.pruned import CALLS, kept_table
from sglang_instrument.analysis.store.part_records import KeptRecords
from sglang_instrument.schema import CONTROL_EVENTS, LOG_OPENED

_Kind = TypeVar("_Kind", bound=Fields)


def newest_records(
    run: Run,
    files: Sequence[File],
    kind: type[_Kind],
    *,
    events: Collection[str] = (),
    keys: Collection[str] = (),
    with_kept: bool = False,
) -> Iterator[tuple[File, Line, _Kind]]:
    """Yield records, each with its file and its fields; without headers, torn and foreign lines.

    Args:
        run: The run.
        files: Files of it. Those of which `prune` kept no records are left out.
        kind: The fields. One that is missing in a record, or of another type, has its default; the file's
            `unfit` counts the latter.
        events: Only records of these events. Other lines are not decoded.
        keys: Beside those, records that hold one of these keys, and perhaps some that hold them as a word.
            Without events and keys, all records.
        with_kept: Whether to yield the engine calls that `prune` kept of the files that it deleted.
    """
    counts = newest_run_filter(run.files)
    names = (*events, *keys)
    files = [file for file in files if file.place is not None and (not names or file.may_hold(names))]
    in_log = [file for file in files if file.has_records and file.part is None]
    logged = run.read_marked(in_log, (LOG_OPENED, *names) if names else ())
    stored = KeptRecords(run.home, files, events, keys)
    calls = _kept_calls(run) if with_kept and not all(file.has_records for file in files) else {}
    for file in files:
        seen: UnfitFields = {}
        if file.part is not None:
            records = _of_part(stored, file, kind, () if keys else events, seen)
        elif file.has_records:
            records = records_in(next(logged)[1], kind, () if keys else events, unfit=seen)
        else:
            records = _of_calls(calls.get(key_of(file), ()), kind)
        for run_id, line, fields in records:
            if counts(file, run_id):
                yield file, line, fields
        add_seen(file.unfit, seen)


def _of_part(
    stored: KeptRecords,
    file: File,
    kind: type[_Kind],
    events: Collection[str],
    seen: UnfitFields,
) -> Iterator[tuple[str | None, Line, _Kind]]:
    records = list(stored.records_of(file))
    fields = all_typed([line.extra for _, line in records], kind, seen)
    for (run_id, line), fields_of_line in zip(records, fields, strict=True):
        yield run_id, line, fields_of_line
    yield from records_in([stored.lines_of(file)], kind, events, unfit=seen)


def _kept_calls(run: Run) -> dict[Key, list[tuple[str | None, str]]]:
    """Return the engine calls of files that earlier versions pruned: the run, and the record as JSON."""
    table = kept_table(run.home, run.files, CALLS)
    runs = [(key_of(file), run_id) for file in run.files for run_id in file.runs]
    calls: dict[Key, list[tuple[str | None, str]]] = {}
    for source, record in () if table is None else table.select("source", "record").iter_rows():
        key, run_id = runs[source]
        calls.setdefault(key, []).append((run_id, record))
    return calls


def _of_calls(
    calls: Sequence[tuple[str | None, str]], kind: type[_Kind]
) -> Iterator[tuple[str | None, Line, _Kind]]:
    for run_id, record in calls:
        # Earlier versions kept no timestamp.
        line = record if record.startswith('{"timestamp"') else f'{{"timestamp":"",{record[1:]}'
        yield from records_in([line.encode()], kind, run_id=run_id)


def control_records(run: Run) -> Iterator[tuple[File, str | None, WholeLine]]:
    """Yield the control records of newest runs, each with its file and the run that wrote it.

    Files of which `prune` kept no records are left out.
    """
    counts = newest_run_filter(run.files)
    files = [file for file in run.files if file.place is not None and file.has_records]
    stored = KeptRecords(run.home, files, sorted(CONTROL_EVENTS))
    logged = run.read_marked([file for file in files if file.part is None], sorted(CONTROL_EVENTS))
    for file in files:
        chunks = next(logged)[1] if file.part is None else [stored.lines_of(file)]
        run_id = None
        for chunk in chunks:
            for line in decode_whole(chunk, Rejects()):
                if line.event == LOG_OPENED:
                    run_id = typed(line.extra, ControlFields).run_id
                if line.event in CONTROL_EVENTS and counts(file, run_id):
                    yield file, run_id, line
