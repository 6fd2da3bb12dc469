"""Summarise a run by day or week: as a whole, or piece by piece where it is too large for memory.

Of each piece a few rows, numbers and sentences are kept, in a cache, too: the next call reads only the pieces
whose files changed. Which launch counts in a step is known when all pieces are read: a piece that had taken
another for the newest is read again.
"""

import contextlib
import hashlib
import io
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument import __version__
from sglang_instrument.analysis.answers.call_times import paths_of
from sglang_instrument.analysis.digests.file_sources import key_of, only_files
from sglang_instrument.analysis.digests.stored_digest import VERSION
from sglang_instrument.analysis.executors.executor import Executor, Progress
from sglang_instrument.analysis.long_runs.periods import launches_of, step_rows
from sglang_instrument.analysis.long_runs.pieces import LongRun, Piece
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
from sglang_instrument.analysis.run.losses import health_of, missing_files, used_runs
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.run.outside import paths_outside_steps
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import findings_of, in_order_of_weight
from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import read_regular

_FOLDER: Final = "pieces"  # in that of the cache
_MOST_BYTES: Final = 2**28  # of a piece in the cache


class Reduced(msgspec.Struct):
    """What is kept of a piece.

    Attributes:
        rows: `step_rows` of its own steps, as Arrow.
        newest: The newest run of each of its folders, as far as this piece shows it.
        headers: `headers_of` all of its files, before older runs were left out.
        last_words: Of `last_words`.
        health: Of its own files.
        findings: Those of its own steps, and of the run as the piece shows it.
        changed_ns: When one of its files was last written to.
        lost: By node that died, the files that only it held.
    """

    rows: bytes
    newest: dict[str, str | None]
    headers: list[File]
    last_words: list[tuple[Process, int, bool]]
    health: Health
    findings: list[Finding]
    changed_ns: int
    lost: dict[str, list[str]]


@dataclass(frozen=True)
class LongSummary:
    """What `summary --by` tells of a run that is read in pieces.

    Attributes:
        name: The folder and, if several runs share it, which of them is shown.
        rows: `step_rows`.
        launches: `launches_of`.
        findings: Of all pieces: hangs and deaths first, then by the time lost.
        pieces: How many pieces of steps were judged, each by itself.
        health: Of the whole run.
        lost: By node that died, the files that only it held.
    """

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
        parts = f"judged in {self.pieces} parts, each by itself"
        if not self.findings:
            return f"nothing out of the ordinary in {len(self.rows):,} steps, {parts}"
        others = len(self.findings) - 1
        more = f"{others:,} other finding{'' if others == 1 else 's'}; " if others else ""
        return f"{self.findings[0].sentence} ({more}{parts})"


def summarise(run: LongRun, progress: Progress | None = None) -> LongSummary:
    """Read a run in pieces, and return what `summary --by` tells of it.

    Args:
        run: The run.
        progress: Called with the number of files read so far and the number of files to read.

    Raises:
        InstrumentError: The nodes of the cluster lack this package.
        LogError: It has no records yet.
    """
    run.prepare()
    cache = _Cache(homes(run.base.home))
    total = sum(piece.files for piece in run.pieces)
    done = 0
    parts = []
    for piece in run.pieces:
        parts.append(_reduced(run, piece, None, cache, _after(progress, done, total)))
        done += piece.files
    headers = [header for part in parts for header in part.headers]
    newest = newest_runs(headers)
    for number, piece in enumerate(run.pieces):
        assumed = parts[number].newest
        if any(newest.get(folder) != assumed.get(folder) for folder in piece.folders):
            parts[number] = _reduced(run, piece, newest, cache, None)
    cache.forget_others()
    return _joined(run, parts, RunFiles(headers))


def _after(progress: Progress | None, done: int, total: int) -> Progress | None:
    """Return what tells the progress within a piece as that within the run."""
    return None if progress is None else lambda of_piece, _: progress(min(total, done + of_piece), total)


def _reduced(
    run: LongRun,
    piece: Piece,
    newest: dict[str, str | None] | None,
    cache: "_Cache",
    progress: Progress | None,
) -> Reduced:
    """Return what is kept of a piece.

    Args:
        run: The run.
        piece: A piece of it.
        newest: The newest run of each folder, as all pieces tell it; None if not yet known.
        cache: Holds what was kept before.
        progress: As in `summarise`, within the piece.
    """
    executor = run.executor_of(piece)
    files = executor.list_files()
    if newest is not None:
        newest = {folder: newest.get(folder) for folder in (*piece.folders, *piece.around)}
    pruned = [home.name for home in run.pruned_of(piece)]
    state = _state(piece.folders, sorted(map(key_of, files)), pruned, sorted((newest or {}).items()))
    found = cache.load(state)
    if found is None:
        found = _reduce(run, piece, executor, files, newest, progress)
        # How the run ended depends on the time at which it is asked.
        if not piece.is_last and not found.health.unreadable:
            cache.save(state, found)
    return found


def _state(*parts: Any) -> str:
    return hashlib.sha256(repr((__version__, VERSION, *parts)).encode()).hexdigest()[:24]


def _reduce(
    run: LongRun,
    piece: Piece,
    executor: Executor,
    listed: Sequence[File],
    newest: dict[str, str | None] | None,
    progress: Progress | None,
) -> Reduced:
    files, digest = run.read(piece, executor, listed, progress)
    kept = files
    older: dict[str, int] = {}
    if newest is not None:
        kept = only_newest(files, newest)
        digest = only_files(digest, files, kept)
        older = _left_out(files, kept, piece.folders)
        kept = [now for now, file in zip(kept, files, strict=True) if now.controls or not file.controls]
    known = RunFiles(kept)
    opened = Run(executor, known, only_newest_runs(known, digest), cached=False)
    return Reduced(
        rows=_as_bytes(_rows_of(opened, piece)),
        newest=newest_runs(files) if newest is None else newest,
        headers=headers_of([file for file in files if file.folder in piece.folders]),
        last_words=[(process, *said) for process, said in last_words(kept).items()],
        health=_health_of(opened, piece, older),
        findings=_findings_of(opened, piece),
        changed_ns=max((file.mtime_ns for file in files), default=0),
        lost=executor.lost,
    )


def _left_out(files: Sequence[File], kept: Sequence[File], folders: Collection[str]) -> dict[str, int]:
    """Return how many records of own files other runs than the newest wrote, by run."""
    older: dict[str, int] = {}
    for file, now in zip(files, kept, strict=True):
        if file.folder in folders:
            for run_id, records in zip(file.runs, file.records, strict=True):
                if run_id not in now.runs and records:
                    older[str(run_id)] = older.get(str(run_id), 0) + records
    return older


def _rows_of(run: Run, piece: Piece) -> pl.DataFrame | None:
    """Return `step_rows` of a piece's own steps; None if it has none."""
    if piece.steps is None or run.digest.steps.is_empty():
        return None
    rows = step_rows(run, paths_of(run))
    return rows.filter(pl.col("step").is_between(piece.steps[0], piece.steps[-1]))


def _health_of(run: Run, piece: Piece, older: dict[str, int]) -> Health:
    health = health_of([file for file in run.files if file.folder in piece.folders])
    health.ignored += [name for name in run.executor.list_others() if name.partition("/")[0] in piece.folders]
    for run_id, records in older.items():
        health.older[run_id] = health.older.get(run_id, 0) + records
    if piece.steps is not None:
        gaps = missing_files(run.files, paths_outside_steps(run.files))
        health.missing = sorted(gap for gap in gaps if gap[0] in piece.steps)
    return health


def _findings_of(run: Run, piece: Piece) -> list[Finding]:
    """Return findings of a piece's own steps, and of the run as the piece shows it.

    Only the last piece tells how the run ended.
    """
    found = findings_of(run, None if piece.is_last else False)
    own = {
        (one.place.step, one.place.validate) for one in run.files if one.folder in piece.folders and one.place
    }
    return [one for one in found if one.step is None or (one.step, one.validate) in own]


def _as_bytes(table: pl.DataFrame | None) -> bytes:
    if table is None:
        return b""
    target = io.BytesIO()
    table.write_ipc(target, compression="zstd")
    return target.getvalue()


def _joined(run: LongRun, parts: Sequence[Reduced], headers: RunFiles) -> LongSummary:
    """Return what the pieces tell together."""
    rows = [pl.read_ipc(part.rows) for part in parts if part.rows]
    if not rows:
        raise LogError(f"{run.folder}: no records yet")
    last: dict[Process, tuple[int, bool]] = {}
    for part in parts:
        for process, at_us, is_closed in part.last_words:
            last[process] = max((at_us, is_closed), last.get(process, (at_us, is_closed)))
    health = _sum_of(part.health for part in parts)
    health.runs = used_runs(headers)
    health.ignored += run.others
    health.unreadable.update(run.unreadable)
    newest_ns = max(part.changed_ns for part in parts)
    over = is_over(run.base.home, [File("", 0, newest_ns)], health.runs)
    health.ended_abruptly = gone_without_a_word(run.base.home, last, health.runs, over)
    which = describe_runs(headers)
    lost: dict[str, list[str]] = {}
    for one in (run.base.lost, *(part.lost for part in parts)):
        for node, paths in one.items():
            lost.setdefault(node, []).extend(paths)
    return LongSummary(
        name=f"{run.folder} ({which})" if which else str(run.folder),
        rows=pl.concat(rows).sort("validate", "step"),
        launches=launches_of(headers),
        findings=in_order_of_weight(finding for part in parts for finding in part.findings),
        pieces=sum(1 for piece in run.pieces if piece.steps is not None),
        health=health,
        lost=lost,
    )


def _sum_of(parts: Iterable[Health]) -> Health:
    """Return the health of files, from that of some of them each."""
    total = Health()
    for part in parts:
        for one in fields(Health):
            mine, more = getattr(total, one.name), getattr(part, one.name)
            if isinstance(mine, dict):
                mine.update({key: mine[key] + value if key in mine else value for key, value in more.items()})
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

    def save(self, state: str, kept: Reduced) -> None:
        """Keep it for the next time, where that is possible."""
        for home in self._homes:
            draft = home / f"draft-{os.urandom(6).hex()}"
            try:
                home.mkdir(parents=True, exist_ok=True)
                draft.write_bytes(msgspec.msgpack.encode(kept))
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
