"""Summarise a run by day or week: as a whole, or piece by piece where it is too large for memory.

Of each piece a few rows, numbers and sentences are kept, in a cache, too: the next call reads only the pieces
whose files changed. Which launch counts in a step is known when all pieces are read: a piece that had taken
another for the newest is read again.
"""

import contextlib
import hashlib
import io
import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import starmap
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from sglang_instrument import __version__
from sglang_instrument.analysis.answers.call_times import paths_of
from sglang_instrument.analysis.digests.file_sources import key_of, only_files
from sglang_instrument.analysis.digests.stored_digest import VERSION
from sglang_instrument.analysis.executors.executor import Executor, Progress
from sglang_instrument.analysis.executors.on_ray import RayExecutor
from sglang_instrument.analysis.ledger.ledger import Paths
from sglang_instrument.analysis.long_runs.periods import launches_of, step_rows
from sglang_instrument.analysis.long_runs.pieces import LongRun, Piece, Where, read_piece
from sglang_instrument.analysis.reading.files import (
    File,
    RunFiles,
    headers_of,
    newest_runs,
    only_newest,
)
from sglang_instrument.analysis.reading.liveness import Process, gone_without_a_word, is_over, last_words
from sglang_instrument.analysis.run.cache import homes, only_newest_runs
from sglang_instrument.analysis.run.health import Health
from sglang_instrument.analysis.run.logged_runs import describe_runs
from sglang_instrument.analysis.run.losses import (
    Attendance,
    attendance,
    count_file,
    health_of,
    missing_in,
    used_runs,
)
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.run.outside import paths_outside_steps
from sglang_instrument.analysis.run.pruned import PRUNED
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import findings_of, in_order_of_weight
from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import read_regular

#: By folder, the id of its newest run; None where another run replaced its steps.
Newest = dict[str, str | None]

_MOST_AT_ONCE: Final = 32  # pieces that nodes of a cluster work on
_HERE: Final = threading.Lock()  # of the thread that reduces a piece on this machine: it takes about 1 GB
_FOLDER: Final = "pieces"  # in that of the cache
_MOST_BYTES: Final = 2**28  # of a piece in the cache


class Reduced(msgspec.Struct):
    """What is kept of a piece.

    Attributes:
        state: `_state_of` what was read; "" if a file could not be read, or the run may still go on.
        rows: `step_rows` of its own steps, as Arrow.
        newest: The newest run of each of its folders, as far as this piece shows it.
        headers: `headers_of` all of its files, before older runs were left out.
        last_words: Of `last_words`.
        attendance: Of its own files.
        health: Of its own files, but for those that are missing.
        findings: Those of its own steps, and of the run as the piece shows it.
        changed_ns: When one of its files was last written to.
        lost: By node that died, the files that only it held.
    """

    state: str
    rows: bytes
    newest: Newest
    headers: list[File]
    last_words: list[tuple[Process, int, bool]]
    attendance: list[Attendance]
    health: Health
    findings: list[Finding]
    changed_ns: int
    lost: dict[str, list[str]]


@dataclass(frozen=True)
class LongSummary:
    """What `summary --by` tells of a run that is read in pieces.

    Attributes:
        folder: The run's folder.
        name: The folder and, if several runs share it, which of them is shown.
        rows: `step_rows`.
        launches: `launches_of`.
        findings: Of all pieces: hangs and deaths first, then by the time lost.
        pieces: How many pieces of steps were judged, each by itself.
        health: Of the whole run.
        lost: By node that died, the files that only it held.
    """

    folder: Path
    name: str
    rows: pl.DataFrame
    launches: list[int]
    findings: list[Finding]
    pieces: int
    health: Health
    lost: dict[str, list[str]]

    @property
    def sentence(self) -> str:
        """The verdict: the first finding, and how many others there are."""
        if self.pieces == 0:
            return "none, for only the engine's processes logged, and they know no steps"
        parts = f"judged in {self.pieces} parts, each by itself"
        if not self.findings:
            return f"nothing out of the ordinary in {len(self.rows):,} steps, {parts}"
        others = len(self.findings) - 1
        more = f"{others:,} other finding{'' if others == 1 else 's'}; " if others else ""
        return f"{self.findings[0].sentence} ({more}{parts})"


def summarise(run: LongRun, progress: Progress | None = None) -> LongSummary:
    """Read a run in pieces, and return what `summary --by` tells of it.

    Args:
        run: The run, prepared.
        progress: Called with the number of files read so far and the number of files to read.

    Raises:
        LogError: It has no records yet.
    """
    cache = _Cache(homes(run.base.home))
    parts = _reduce_all(run, dict.fromkeys(run.pieces), cache, progress)
    headers = [header for part in parts for header in part.headers]
    newest = newest_runs(headers)
    end = _end_of(run.pieces, parts, newest)
    again: dict[int, Piece] = {}
    for at, (piece, part) in enumerate(zip(run.pieces, parts, strict=True)):
        folders = (*piece.folders, *piece.around)
        ends = piece is end and not piece.is_last
        if ends or any(newest.get(folder) != part.newest.get(folder) for folder in folders):
            again[at] = replace(piece, is_last=ends or piece.is_last)
    known = {
        piece: {folder: newest.get(folder) for folder in (*piece.folders, *piece.around)}
        for piece in again.values()
    }
    for at, part in zip(again, _reduce_all(run, known, cache, None), strict=True):
        parts[at] = part
    cache.forget_others()
    return _joined(run, parts, RunFiles(headers))


def _end_of(pieces: Sequence[Piece], parts: Sequence[Reduced], newest: Newest) -> Piece | None:
    """Return the piece in which the run ends: no later launch replaced all of its steps."""
    for piece, part in zip(reversed(pieces), reversed(parts), strict=True):
        begun = {file.folder for file in part.headers if file.controls}
        if piece.steps is not None and (not begun or begun & newest.keys()):
            return piece
    return None


def _reduce_all(
    run: LongRun, wanted: Mapping[Piece, Newest | None], cache: "_Cache", progress: Progress | None
) -> list[Reduced]:
    """Return what is kept of some pieces, each with the newest run of its folders, or None if not yet known.

    Nodes of a cluster work at once, each on a piece; this machine reads one piece after the other.
    """
    stopped = threading.Event()
    work = [
        (run, piece, newest, cache, number, stopped) for number, (piece, newest) in enumerate(wanted.items())
    ]
    if run.where.on is None:
        return _counted(wanted, starmap(_kept_of, work), progress)
    with ThreadPoolExecutor(_MOST_AT_ONCE) as threads:
        try:
            return _counted(wanted, threads.map(_kept_of, *zip(*work, strict=True)), progress)
        except BaseException:  # Ctrl-C: the threads end soon
            stopped.set()
            threads.shutdown(cancel_futures=True)
            raise


def _counted(
    pieces: Collection[Piece], coming: Iterable[Reduced], progress: Progress | None
) -> list[Reduced]:
    """Return what comes of pieces, and tell the progress."""
    total = sum(piece.files for piece in pieces)
    done = 0
    parts = []
    for piece, part in zip(pieces, coming, strict=True):
        parts.append(part)
        done += piece.files
        if progress is not None:
            progress(done, total)
    return parts


def _kept_of(
    run: LongRun,
    piece: Piece,
    newest: Newest | None,
    cache: "_Cache",
    number: int,
    stopped: threading.Event,
) -> Reduced:
    """Return what is kept of a piece: what was kept before, unless a file changed."""
    executor = run.where.executor_of(piece)
    state = _state_of(executor, executor.list_files(), piece, newest)
    found = None if piece.is_last else cache.load(state)
    if found is not None:
        found.lost = executor.lost  # as it is now
        return found
    packed = None
    if isinstance(executor, RayExecutor) and not piece.pruned:  # what `prune` kept is on this machine
        packed = executor.call(number, stopped, reduce_piece, run.where, piece, newest)
    if packed is None:
        with _HERE:
            if stopped.is_set():
                raise InterruptedError
            packed = reduce_piece(run.where, piece, newest)
    kept = msgspec.msgpack.decode(packed, type=Reduced)
    kept.lost = executor.lost | kept.lost
    if kept.state == state:  # else a node did not answer the task, or a file changed
        cache.save(state, packed)
    return kept


def _state_of(executor: Executor, files: Sequence[File], piece: Piece, newest: Newest | None) -> str:
    """Return a name for all that decides what is kept of a piece."""
    listed, others = sorted(map(key_of, files)), executor.list_others()
    parts = (piece.folders, listed, others, piece.pruned, sorted((newest or {}).items()))
    return hashlib.sha256(repr((__version__, VERSION, *parts)).encode()).hexdigest()[:24]


def reduce_piece(where: Where, piece: Piece, newest: Newest | None) -> bytes:
    """Return what is kept of a piece, a `Reduced` as msgpack.

    Args:
        where: Where its logs lie.
        piece: The piece.
        newest: The newest run of each of its folders, as all pieces tell it; None if not yet known.
    """
    executor = where.executor_of(piece)
    listed = executor.list_files()
    state = _state_of(executor, listed, piece, newest)
    files, digest = read_piece(piece, executor, listed)
    # How the run ended depends on the time at which it is asked.
    is_final = not piece.is_last and all(file.unreadable is None for file in files)
    newest = newest_runs(files) if newest is None else newest
    kept = only_newest(files, newest)
    digest = only_files(digest, files, kept)
    left_out = _left_out(files, kept, piece.folders)
    kept = [now for now, file in zip(kept, files, strict=True) if now.controls or not file.controls]
    known = RunFiles.part(kept, newest)
    run = Run(executor, known, only_newest_runs(known, digest), cached=False)
    own = RunFiles.part([file for file in known if file.folder in piece.folders], newest)
    reduced = Reduced(
        state=state if is_final else "",
        rows=_as_bytes(_rows_of(run, piece)),
        newest=newest,
        headers=headers_of([file for file in files if file.folder in piece.folders]),
        last_words=[(process, *said) for process, said in last_words(known).items()],
        attendance=attendance(own, paths_outside_steps(own)),
        health=_health_of(run, piece, own, left_out),
        findings=_findings_of(run, piece),
        changed_ns=max((file.mtime_ns for file in files), default=0),
        lost=executor.lost,
    )
    return msgspec.msgpack.encode(reduced)


def _left_out(files: Sequence[File], kept: Sequence[File], folders: Collection[str]) -> Health:
    """Return the health of what is left out of own files because a later launch replaced it."""
    left_out = Health()
    for file, now in zip(files, kept, strict=True):
        if file.folder not in folders:
            continue
        if file.controls and not now.controls:
            count_file(left_out, file)
        for run_id, records in zip(file.runs, file.records, strict=True):
            if run_id not in now.runs and records:
                left_out.older[str(run_id)] = left_out.older.get(str(run_id), 0) + records
    return left_out


def _rows_of(run: Run, piece: Piece) -> pl.DataFrame:
    """Return `step_rows` of a piece's own steps."""
    if piece.steps is None:
        return step_rows(run, Paths(run.digest)).clear()
    rows = step_rows(run, paths_of(run))
    return rows.filter(pl.col("step").is_between(piece.steps[0], piece.steps[-1]))


def _health_of(run: Run, piece: Piece, own: RunFiles, left_out: Health) -> Health:
    health = health_of(own)
    health.missing = []  # needs the steps of all pieces
    others = [name for name in run.executor.list_others() if name.partition("/")[0] in piece.folders]
    # msgpack holds UTF-8 only, as JSON does: see `list_files`.
    lost = [file for file in run.files if file.folder == PRUNED]
    health.unreadable.update({file.path: str(file.unreadable) for file in lost})
    health.ignored += [name.encode(errors="backslashreplace").decode() for name in others]
    return _sum_of([health, left_out])


def _findings_of(run: Run, piece: Piece) -> list[Finding]:
    """Return findings of a piece's own steps, and of the run as the piece shows it.

    Only the last piece tells how the run ended.
    """
    found = findings_of(run, None if piece.is_last else False)
    own = {
        (one.place.step, one.place.validate) for one in run.files if one.folder in piece.folders and one.place
    }
    return [one for one in found if one.step is None or (one.step, one.validate) in own]


def _as_bytes(table: pl.DataFrame) -> bytes:
    target = io.BytesIO()
    table.write_ipc(target, compression="zstd")
    return target.getvalue()


def _joined(run: LongRun, parts: Sequence[Reduced], headers: RunFiles) -> LongSummary:
    """Return what the pieces tell together."""
    last: dict[Process, tuple[int, bool]] = {}
    for part in parts:
        for process, at_us, is_closed in part.last_words:
            last[process] = max((at_us, is_closed), last.get(process, (at_us, is_closed)))
    health = _sum_of(part.health for part in parts)
    if not health.records and not any(file.controls for file in headers):
        raise LogError(f"{run.where.folder}: no records yet")
    health.missing = sorted(missing_in(part.attendance for part in parts))
    health.runs = used_runs(headers)
    health.ignored += run.others
    health.unreadable.update(run.unreadable)
    newest_ns = max(part.changed_ns for part in parts)
    over = is_over(run.base.home, [File("", 0, newest_ns)], health.runs)
    health.ended_abruptly = gone_without_a_word(run.base.home, last, health.runs, over)
    which = describe_runs(headers)
    lost: dict[str, dict[str, None]] = {}  # a path once, of which two pieces may tell
    for one in (run.base.lost, *(part.lost for part in parts)):
        for node, paths in one.items():
            lost.setdefault(node, {}).update(dict.fromkeys(paths))
    return LongSummary(
        folder=run.where.folder,
        name=f"{run.where.folder} ({which})" if which else str(run.where.folder),
        rows=pl.concat(pl.read_ipc(part.rows) for part in parts).sort("validate", "step"),
        launches=launches_of(headers),
        findings=in_order_of_weight(finding for part in parts for finding in part.findings),
        pieces=sum(1 for piece in run.pieces if piece.steps is not None),
        health=health,
        lost={node: list(paths) for node, paths in lost.items()},
    )


def _sum_of(parts: Iterable[Health]) -> Health:
    """Return the health of files, from that of some of them each."""
    total = Health()
    for part in parts:
        for one in fields(Health):
            mine, more = getattr(total, one.name), getattr(part, one.name)
            if isinstance(mine, dict):
                for key, value in more.items():  # counts, or what several parts say of one file
                    mine[key] = mine.get(key, 0) + value if isinstance(value, int) else value
            elif not isinstance(mine, str):
                setattr(total, one.name, mine + more)
    return total


class _Cache:
    """What was kept of pieces, in a folder of the run's cache.

    Args:
        homes: Where the cache may lie; the first that can be written is used.
    """

    def __init__(self, homes: Sequence[Path]) -> None:
        self._homes = [home / _FOLDER for home in homes]
        self._used: set[str] = set()

    def load(self, state: str) -> Reduced | None:
        """Return what was kept of a piece in this state; None if nothing was."""
        for home in self._homes:
            try:
                found = msgspec.msgpack.decode(read_regular(home / state, _MOST_BYTES), type=Reduced)
            except (OSError, msgspec.MsgspecError):
                continue
            self._used.add(state)
            return found
        return None

    def save(self, state: str, packed: bytes) -> None:
        """Keep it for the next time, where that is possible."""
        for home in self._homes:
            draft = home / f"draft-{os.urandom(6).hex()}"
            try:
                home.mkdir(parents=True, exist_ok=True)
                draft.write_bytes(packed)
                draft.replace(home / state)
            except OSError:
                continue
            self._used.add(state)
            return

    def forget_others(self) -> None:
        """Delete what was kept of pieces in other states than those of this time."""
        for home in self._homes:
            for path in home.glob("*"):
                if path.name not in self._used:
                    with contextlib.suppress(OSError):  # it wastes space, but changes no answer
                        path.unlink()
