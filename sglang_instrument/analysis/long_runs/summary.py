"""Summarise a run piece by piece, where it is too large for memory: by step, by day or by week.

Of each piece a few rows, numbers and sentences are kept, in the store, too: the next call reads only the
pieces whose files changed, and what did not change of them from parts. Which launch counts in a step is known
when all pieces are read: a piece that had taken another for the newest is read again.
"""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import starmap
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from sglang_instrument.analysis.executors.executor import Progress
from sglang_instrument.analysis.executors.on_ray import RayExecutor
from sglang_instrument.analysis.long_runs.periods import launches_of
from sglang_instrument.analysis.long_runs.pieces import LongRun, Piece
from sglang_instrument.analysis.long_runs.reduced import Reduced, reduce_piece, state_of, sum_of
from sglang_instrument.analysis.reading.files import (
    File,
    Newest,
    RunFiles,
    newest_runs,
)
from sglang_instrument.analysis.reading.launches import at_once
from sglang_instrument.analysis.reading.liveness import Process, gone_without_a_word, is_over, names_of
from sglang_instrument.analysis.run.health import Health
from sglang_instrument.analysis.run.logged_runs import describe_runs
from sglang_instrument.analysis.run.losses import (
    missing_in,
    used_runs,
)
from sglang_instrument.analysis.settings.recorded import Setting, settings_of
from sglang_instrument.analysis.store.homes import homes
from sglang_instrument.analysis.store.made_tables import forget_made, load_made, save_made
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import in_order_of_weight, is_drawn
from sglang_instrument.errors import LogError
from sglang_instrument.safe_files.folder import SafeFolder

_REDUCED: Final = "reduced"  # a table with one value: what was kept of a piece
_BY_STEP: Final = "reduced_with_tables"  # the same, with the tables of its steps
_TABLE: Final = {_REDUCED: pl.Binary}
_MOST_AT_ONCE: Final = 32  # pieces that nodes of a cluster work on, about 1 GB each
_HERE: Final = threading.Lock()  # of the thread that reduces a piece on this machine: it takes about 1 GB


@dataclass(frozen=True)
class LongSummary:
    """What `summary` tells of a run that is read in pieces.

    Attributes:
        folder: The run's folder.
        name: The folder and, if several runs share it, which of them is shown.
        rows: `step_rows`.
        launches: `launches_of`.
        findings: Of all pieces: hangs and deaths first, then by the time lost.
        pieces: How many pieces of steps were judged, each by itself.
        health: Of the whole run.
        lost: By node that died, the files that only it held.
        settings: Of its processes.
        tables: `step_tables`, where they are wanted.
        lengths: `length_table`, where they are wanted.
        newest: The newest run of each folder.
    """

    folder: Path
    name: str
    rows: pl.DataFrame
    launches: list[int]
    findings: list[Finding]
    pieces: int
    health: Health
    lost: dict[str, list[str]]
    settings: list[Setting]
    tables: list[pl.DataFrame]
    lengths: pl.DataFrame
    newest: Newest

    @property
    def calm(self) -> bool:
        """Whether nothing was out of the ordinary, but for replies that chance made long."""
        return self.pieces > 0 and all(is_drawn(finding) for finding in self.findings)

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
    """Read a run in pieces, and return what `summary` tells of it.

    Args:
        run: The run, prepared.
        progress: Called with the number of files read so far and the number of files to read.

    Raises:
        LogError: It has no records yet.
    """
    stores = homes(run.base.home)
    parts = _reduce_all(run, dict.fromkeys(run.pieces), stores, progress)
    states = {part.state for part in parts}
    headers = [header for part in parts for header in part.headers]
    newest = newest_runs(headers)
    end = _end_of(run.pieces, parts, newest)
    again: dict[int, Piece] = {}
    for number, (piece, part) in enumerate(zip(run.pieces, parts, strict=True)):
        folders = (*piece.folders, *piece.around)
        ends = piece is end and not piece.is_last
        if ends or any(newest.get(folder) != part.newest.get(folder) for folder in folders):
            again[number] = replace(piece, is_last=ends or piece.is_last)
    known = {piece: newest.of_folders((*piece.folders, *piece.around)) for piece in again.values()}
    for number, part in zip(again, _reduce_all(run, known, stores, None), strict=True):
        parts[number] = part
        states.add(part.state)
    forget_made(stores, _name_of(run), states)
    return _joined(run, parts, RunFiles(headers))


def _end_of(pieces: Sequence[Piece], parts: Sequence[Reduced], newest: Newest) -> Piece | None:
    """Return the piece in which the run ends: no later launch replaced all of its steps."""
    for piece, part in zip(reversed(pieces), reversed(parts), strict=True):
        begun = {file.folder for file in part.headers if file.controls}
        if piece.steps is not None and (not begun or begun & newest.keys()):
            return piece
    return None


def _reduce_all(
    run: LongRun,
    wanted: Mapping[Piece, Newest | None],
    stores: Sequence[SafeFolder],
    progress: Progress | None,
) -> list[Reduced]:
    """Return what is kept of some pieces, each with the newest run of its folders, or None if not yet known.

    Nodes of a cluster work at once, each on a piece; this machine reads one piece after the other.
    """
    stopped = threading.Event()
    work = [
        (run, piece, newest, stores, number, stopped) for number, (piece, newest) in enumerate(wanted.items())
    ]
    if not isinstance(run.base, RayExecutor):
        return _counted(wanted, starmap(_kept_of, work), progress)
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, run.base.cpus)) as threads:
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
    stores: Sequence[SafeFolder],
    number: int,
    stopped: threading.Event,
) -> Reduced:
    """Return what is kept of a piece: what was kept before, unless a file changed."""
    executor = run.where.executor_of(piece)
    state = state_of(executor, executor.list_files(), piece, newest)
    cached = None if piece.is_last else _cached(stores, _name_of(run), state)
    if cached is not None:
        cached.lost = executor.lost  # as it is now
        return cached
    packed = None
    if isinstance(executor, RayExecutor) and not piece.pruned:  # what `prune` kept is on this machine
        packed = executor.call(number, stopped, reduce_piece, run.where, piece, newest, run.by_step)
    if packed is None:
        with _HERE:
            if stopped.is_set():
                raise InterruptedError
            packed = reduce_piece(run.where, piece, newest, run.by_step)
    reduced = msgspec.msgpack.decode(packed, type=Reduced)
    reduced.lost = executor.lost | reduced.lost
    if reduced.state == state:  # else a node did not answer the task, or a file changed
        save_made(stores, _name_of(run), state, pl.DataFrame({_REDUCED: [packed]}, schema=_TABLE))
    return reduced


def _name_of(run: LongRun) -> str:
    """Return the name under which the store keeps pieces of a run."""
    return _BY_STEP if run.by_step else _REDUCED


def _cached(stores: Sequence[SafeFolder], name: str, state: str) -> Reduced | None:
    """Return what was kept of a piece in this state; None if nothing was."""
    table = load_made(stores, name, state)
    try:
        return None if table is None else msgspec.msgpack.decode(table[_REDUCED][0], type=Reduced)
    except (pl.exceptions.PolarsError, msgspec.MsgspecError, TypeError, IndexError):
        return None


def _joined(run: LongRun, parts: Sequence[Reduced], headers: RunFiles) -> LongSummary:
    """Return what the pieces tell together."""
    last: dict[Process, tuple[int, bool]] = {}
    for part in parts:
        for process, at_us, is_closed in part.last_words:
            last[process] = max((at_us, is_closed), last.get(process, (at_us, is_closed)))
    health = sum_of(part.health for part in parts)
    if not health.records and not any(file.controls for file in headers):
        raise LogError(f"{run.where.folder}: no records yet")
    health.missing = sorted(missing_in(part.attendance for part in parts))
    health.runs, health.at_once = used_runs(headers), at_once(headers.all_launches)
    health.ignored += run.others
    health.unreadable.update(run.unreadable)
    newest_ns = max(part.changed_ns for part in parts)
    over = is_over(run.base.home, [File("", 0, newest_ns)], headers.members(health.runs))
    gone = gone_without_a_word(run.base.home, last, headers.members(health.runs), over)
    health.ended_abruptly = names_of(gone)
    which = describe_runs(headers)
    lost: dict[str, dict[str, None]] = {}  # a path once, of which two pieces may tell
    for of_part in (run.base.lost, *(part.lost for part in parts)):
        for node, paths in of_part.items():
            lost.setdefault(node, {}).update(dict.fromkeys(paths))
    *tables, lengths = [
        pl.concat(map(pl.read_ipc, of_pieces)).sort("validate", "step", maintain_order=True)
        for of_pieces in zip(*(part.tables for part in parts), strict=True)
    ] or [pl.DataFrame()]
    return LongSummary(
        folder=run.where.folder,
        name=f"{run.where.folder} ({which})" if which else str(run.where.folder),
        rows=pl.concat(pl.read_ipc(part.rows) for part in parts).sort("validate", "step"),
        launches=launches_of(headers),
        findings=in_order_of_weight(_once(finding for part in parts for finding in part.findings)),
        pieces=sum(1 for piece in run.pieces if piece.steps is not None),
        health=health,
        lost={node: list(paths) for node, paths in lost.items()},
        settings=settings_of(run.base.home, headers.members(health.runs)),
        tables=tables,
        lengths=lengths,
        newest=headers.newest,
    )


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings; of those that say the same of the run in several pieces, the one that cost most."""
    once: dict[object, Finding] = {}
    for number, finding in enumerate(findings):
        same = (finding.cause, finding.worker, finding.event) if finding.scope == "run" else number
        if same not in once or finding.lost_sec > once[same].lost_sec:
            once[same] = finding
    return list(once.values())
