"""Reduce a piece of a long run to what `summary --by` needs of it: a few rows, numbers and sentences."""

import hashlib
import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields

import msgspec
import polars as pl

from sglang_instrument import __version__
from sglang_instrument.analysis.answers.engine.call_times import paths_of
from sglang_instrument.analysis.answers.lengths import length_table
from sglang_instrument.analysis.answers.summary import step_tables
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.digests.file_sources import key_of, only_files
from sglang_instrument.analysis.executors.executor import Executor
from sglang_instrument.analysis.ledger.ledger import Paths
from sglang_instrument.analysis.long_runs.headers import headers_of
from sglang_instrument.analysis.long_runs.periods import step_rows
from sglang_instrument.analysis.long_runs.pieces import Piece, Where, read_piece
from sglang_instrument.analysis.reading.files import (
    File,
    Newest,
    RunFiles,
    newest_runs,
    only_newest,
)
from sglang_instrument.analysis.reading.folders import PRUNED
from sglang_instrument.analysis.reading.liveness import Process, last_words
from sglang_instrument.analysis.run.digest_of_run import only_newest_runs
from sglang_instrument.analysis.run.health import Health
from sglang_instrument.analysis.run.losses import Attendance, attendance, count_file, health_of
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.run.outside import paths_outside_steps
from sglang_instrument.analysis.store.parts import VERSION
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import findings_of


class Reduced(msgspec.Struct):
    """What is kept of a piece.

    Attributes:
        state: `state_of` what was read; "" if a file could not be read, or the run may still go on.
        rows: `step_rows` of its own steps, as Arrow.
        newest: The newest run of each of its folders, as far as this piece shows it; None where another run
            replaced its steps.
        headers: `headers_of` all of its files, before older runs were left out.
        last_words: Of `last_words`.
        attendance: Of its own files.
        health: Of its own files, but for those that are missing.
        findings: Those of its own steps, and of the run as the piece shows it.
        changed_ns: When one of its files was last written to.
        lost: By node that died, the files that only it held.
        tables: `step_tables` and `length_table` of its own steps, as Arrow, where they are wanted.
    """

    state: str
    rows: bytes
    newest: dict[str, str | None]
    headers: list[File]
    last_words: list[tuple[Process, int, bool]]
    attendance: list[Attendance]
    health: Health
    findings: list[Finding]
    changed_ns: int
    lost: dict[str, list[str]]
    tables: list[bytes] = []


def state_of(executor: Executor, files: Sequence[File], piece: Piece, newest: Newest | None) -> str:
    """Return a name for all that decides what is kept of a piece."""
    listed, others = sorted(map(key_of, files)), executor.list_others()
    parts = (piece.folders, listed, others, piece.pruned, sorted((newest or {}).items()))
    return hashlib.sha256(repr((__version__, VERSION, *parts)).encode()).hexdigest()[:12]


def reduce_piece(where: Where, piece: Piece, newest: Newest | None, by_step: bool = False) -> bytes:
    """Return what is kept of a piece, a `Reduced` as msgpack.

    Args:
        where: Where its logs lie.
        piece: The piece.
        newest: The newest run of each of its folders, as all pieces tell it; None if not yet known.
        by_step: Whether the tables of its steps are wanted.
    """
    executor = where.executor_of(piece)
    listed = executor.list_files()
    state = state_of(executor, listed, piece, newest)
    files, digest = read_piece(piece, executor, listed)
    # How the run ended depends on the time at which it is asked.
    is_final = not piece.is_last and all(file.unreadable is None for file in files)
    newest = newest_runs(files) if newest is None else newest
    run = opened_part(executor, files, digest, newest)
    of_piece = RunFiles.part([file for file in run.files if file.folder in piece.folders], newest)
    paths = paths_of(run) if piece.steps is not None else Paths(run.digest)
    tables = [*step_tables(run.digest, paths), length_table(run.digest)] if by_step else []
    reduced = Reduced(
        state=state if is_final else "",
        rows=_as_bytes(_own_steps(step_rows(run, paths), piece)),
        newest=dict(newest),
        headers=headers_of([file for file in files if file.folder in piece.folders]),
        last_words=[(process, *said) for process, said in last_words(run.files).items()],
        attendance=attendance(of_piece, paths_outside_steps(of_piece)),
        health=_health_of(run, piece, of_piece, _left_out(files, only_newest(files, newest), piece.folders)),
        findings=_findings_of(run, piece),
        changed_ns=max((file.mtime_ns for file in files), default=0),
        lost=executor.lost,
        tables=[_as_bytes(_own_steps(table, piece)) for table in tables],
    )
    return msgspec.msgpack.encode(reduced)


def opened_part(executor: Executor, files: Sequence[File], digest: Digest, newest: Newest) -> Run:
    """Return a run that has only these files, of which the newest run of each folder counts."""
    of_newest = only_newest(files, newest)
    of_runs = only_files(digest, files, of_newest)
    counting = [now for now, file in zip(of_newest, files, strict=True) if now.controls or not file.controls]
    known = RunFiles.part(counting, newest)
    return Run(executor, known, only_newest_runs(known, of_runs), cached=False)


def _left_out(files: Sequence[File], of_newest: Sequence[File], folders: Collection[str]) -> Health:
    """Return the health of what is left out of own files because a later launch replaced it."""
    left_out = Health()
    for file, now in zip(files, of_newest, strict=True):
        if file.folder not in folders:
            continue
        if file.controls and not now.controls:
            count_file(left_out, file)
        for run_id, records in zip(file.runs, file.records, strict=True):
            if run_id not in now.runs and records:
                left_out.older[str(run_id)] = left_out.older.get(str(run_id), 0) + records
    return left_out


def _own_steps(table: pl.DataFrame, piece: Piece) -> pl.DataFrame:
    """Return the rows of a piece's own steps."""
    if piece.steps is None:
        return table.clear()
    return table.filter(pl.col("step").is_between(piece.steps[0], piece.steps[-1]))


def _health_of(run: Run, piece: Piece, of_piece: RunFiles, left_out: Health) -> Health:
    health = health_of(of_piece)
    health.missing = []  # needs the steps of all pieces
    others = [name for name in run.executor.list_others() if name.partition("/")[0] in piece.folders]
    # msgpack holds UTF-8 only, as JSON does: see `list_files`.
    lost = [file for file in run.files if file.folder == PRUNED]
    health.unreadable.update({file.path: str(file.unreadable) for file in lost})
    health.ignored += [name.encode(errors="backslashreplace").decode() for name in others]
    return sum_of([health, left_out])


def _findings_of(run: Run, piece: Piece) -> list[Finding]:
    """Return findings of a piece's own steps, and of the run as the piece shows it.

    Only the last piece tells how the run ended.
    """
    findings = findings_of(run, None if piece.is_last else False)
    steps = {
        (file.place.step, file.place.validate)
        for file in run.files
        if file.folder in piece.folders and file.place
    }
    return [
        finding for finding in findings if finding.step is None or (finding.step, finding.validate) in steps
    ]


def _as_bytes(table: pl.DataFrame) -> bytes:
    target = io.BytesIO()
    table.write_ipc(target, compression="zstd")
    return target.getvalue()


def sum_of(parts: Iterable[Health]) -> Health:
    """Return the health of files, from that of some of them each."""
    total = Health()
    for part in parts:
        for count in fields(Health):
            mine, more = getattr(total, count.name), getattr(part, count.name)
            if isinstance(mine, dict):
                for key, value in more.items():  # counts, or what several parts say of one file
                    mine[key] = mine.get(key, 0) + value if isinstance(value, int) else value
            elif not isinstance(mine, str):
                setattr(total, count.name, mine + more)
    return total
