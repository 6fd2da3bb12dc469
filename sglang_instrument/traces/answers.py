"""Analyse the traces of engines' profilers: per rank, and which rank the others wait for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import polars as pl

from sglang_instrument.errors import LogError
from sglang_instrument.traces.cpu import cpu_ops, top_gaps
from sglang_instrument.traces.gpu import (
    by_stage,
    categories,
    copies,
    gap_sizes,
    graph_launches,
    kernels,
    streams,
    use_of_gpu,
)
from sglang_instrument.traces.intervals import covered_ns, gaps
from sglang_instrument.traces.kernels import engine_steps, gpu_work, stage_of_file
from sglang_instrument.traces.table import Trace, read_trace

Row = dict[str, Any]

_SUFFIXES: Final = (".json", ".json.gz")
_RANK: Final = re.compile(
    r"(?:^|[-_.])((?:TP|DP|PP|EP|rank)[-_]?\d+(?:[-_](?:TP|DP|PP|EP)[-_]?\d+)*)", re.IGNORECASE
)
_ALONE: Final = "one rank per engine: nothing to compare"
_STANDS_OUT: Final = 1.05  # times the median of the ranks


@dataclass(frozen=True)
class TraceAnalysis:
    """What one trace shows. Times are seconds, shares from 0 to 1; each table is a list of rows.

    Attributes:
        file: Its path.
        rank: As in the file's name, such as TP-0; else the rank that the trace names.
        stage: prefill or decode, if the file holds only one of them.
        profile_id: The part of the name that the files of one capture share.
        start_us: Of the first event that counts, since the Unix epoch; None without a clock.
        window_sec: From the first work on the GPU to the end of the last; without a GPU, of all events.
        events: The number of events read.
        truncated: Whether the file ends early; broken: events that could not be decoded.
        host: Its name, if the trace tells it.
        devices: Names of the GPUs.
        on_gpu: Whether it has work of a GPU; other_kinds: events of kinds that do not count, by category.
        is_missing_gpu: Whether it has no work of a GPU, though it has GPUs, or calls to them, or nothing.
        use: As `use_of_gpu` returns it; without a GPU, busy_sec, idle_sec and busy_share: busy is the time in
            forward steps of the engine, or, if it marked none, in operators.
        tables: kernels, categories, stages, gaps, gap_sizes, streams, copies, graphs, cpu_ops.
    """

    file: str
    rank: str
    stage: str | None
    profile_id: str
    start_us: int | None
    window_sec: float
    events: int
    truncated: bool
    broken: int
    host: str | None
    devices: list[str]
    on_gpu: bool
    is_missing_gpu: bool
    other_kinds: dict[str, int]
    use: dict[str, float]
    tables: dict[str, list[Row]]
    idle: pl.DataFrame = field(repr=False)

    def as_json(self) -> Row:
        """Return the analysis for `--json`."""
        hidden = ("tables", "idle")
        return {key: value for key, value in vars(self).items() if key not in hidden} | self.tables


@dataclass(frozen=True)
class Analysis:
    """What the traces of a folder show together.

    Attributes:
        folder: The folder, or the file.
        traces: In the order of ranks.
        ranks: One row per trace: engine (its profile id), rank, stage, window_sec, and the columns of `use`.
        slow: The rank that the others wait for, or None.
        sentence: Why this rank is slow, or why no rank is named.
        unreadable: Files that are no traces, or end before the first event, with the reason.
    """

    folder: str
    traces: list[TraceAnalysis]
    ranks: list[Row]
    slow: str | None
    sentence: str
    unreadable: dict[str, str]


def find_traces(path: str | Path) -> list[Path]:
    """Return the trace files in a folder, at any depth, or the file itself.

    Files that a tool merged from others are left out, as they would count twice.

    Raises:
        LogError: There is none.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    if not path.exists():
        raise LogError(f"{path}: no such file or folder")
    files = sorted(
        file
        for file in path.rglob("*")
        if file.name.endswith(_SUFFIXES) and file.is_file() and not file.name.startswith("merged-")
    )
    traces = [file for file in files if "trace" in file.name] or files
    if not traces:
        raise LogError(
            f"{path}: no *.trace.json or *.trace.json.gz in it; is the profiler still running? "
            "`sglang-instrument profile status` tells, and `profile stop` makes it write its trace"
        )
    return traces


def analyse(
    path: str | Path,
    top: int = 20,
    rank: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Analysis:
    """Analyse the traces of a folder, with one in memory at a time.

    Args:
        path: A folder, or a file.
        top: Rows of the tables of kernels, gaps and operators.
        rank: Only the traces of this rank, such as TP-0 or 0.
        progress: Called with the bytes read so far, and the size of all files.

    Raises:
        LogError: There is no trace, none of that rank, or none that can be read.
    """
    files = of_rank(find_traces(path), rank)
    sizes = [file.stat().st_size for file in files]
    analyses: list[TraceAnalysis] = []
    unreadable: dict[str, str] = {}
    for number, file in enumerate(files):
        done = sum(sizes[:number])

        def step(read: int, _: int, done: int = done) -> None:
            if progress is not None:
                progress(done + read, sum(sizes))

        try:
            analyses.append(analyse_trace(read_trace(file, step), top))
        except LogError as error:
            if len(files) == 1:
                raise
            unreadable[str(file)] = str(error)
    if not analyses:
        raise LogError(next(iter(unreadable.values())))
    analyses.sort(key=_order)
    slow, sentence = compare_ranks(analyses)
    ranks = list(map(_rank_row, analyses))
    return Analysis(str(path), analyses, ranks, slow, sentence, unreadable)


def analyse_trace(trace: Trace, top: int = 20) -> TraceAnalysis:
    """Analyse one trace; see `TraceAnalysis`."""
    work = gpu_work(trace)
    on_gpu = not work.is_empty()
    steps = engine_steps(trace)
    relevant = work if on_gpu else trace.events.filter(pl.col("kind") != "python")
    start, end = _extent(relevant)
    busy = work if on_gpu else steps if len(steps) else trace.events.filter(pl.col("kind") == "cpu_op")
    idle = gaps(busy, start, end)
    tables = {
        "kernels": kernels(work).head(top),
        "categories": categories(work),
        "stages": by_stage(work, steps),
        "gaps": top_gaps(trace, idle, start, top),
        "gap_sizes": gap_sizes(idle),
        "streams": streams(work),
        "copies": copies(work),
        "graphs": graph_launches(trace, work),
        "cpu_ops": cpu_ops(trace).head(top),
    }
    return TraceAnalysis(
        file=str(trace.path),
        rank=rank_of(trace),
        stage=stage_of_file(trace),
        profile_id=_profile_id(trace.path),
        start_us=start // 1000 if trace.has_clock else None,
        window_sec=(end - start) / 1e9,
        events=len(trace.events),
        truncated=trace.header.truncated,
        broken=trace.header.broken,
        host=trace.header.host,
        devices=trace.header.devices if on_gpu else [],
        on_gpu=on_gpu,
        is_missing_gpu=not on_gpu
        and (bool(trace.header.devices) or relevant.is_empty() or _has_calls(trace)),
        other_kinds=trace.other_kinds,
        use=use_of_gpu(work, start, end) if on_gpu else _use_of_cpu(busy, start, end),
        tables={name: table.to_dicts() for name, table in tables.items()},
        idle=idle,
    )


def compare_ranks(analyses: Sequence[TraceAnalysis]) -> tuple[str | None, str]:
    """Name the rank that the other ranks of its engine wait for, and say why, or why none is named.

    Ranks leave a collective together: the slow one computes longest and waits least in communication. Ranks
    of different engines do not wait for each other here.
    """
    engines: dict[tuple[str, str], list[TraceAnalysis]] = {}
    for analysis in analyses:
        engines.setdefault((str(Path(analysis.file).parent), analysis.profile_id), []).append(analysis)
    verdicts = [_slow_rank(ranks) for ranks in engines.values()]
    named = [(rank, sentence) for rank, sentence in verdicts if rank is not None]
    if named:
        return named[0][0], "; ".join(sentence for _, sentence in named)
    several = [sentence for _, sentence in verdicts if sentence != _ALONE]
    return None, several[0] if several else _ALONE


def _slow_rank(analyses: Sequence[TraceAnalysis]) -> tuple[str | None, str]:
    """Name the slow rank of one engine."""
    if len({analysis.rank for analysis in analyses}) < 2:
        return None, _ALONE
    totals: dict[str, list[float]] = {}
    for analysis in analyses:
        if analysis.on_gpu:
            total = totals.setdefault(analysis.rank, [0.0, 0.0])
            total[0] += analysis.use["compute_sec"]
            total[1] += analysis.use["communication_sec"]
    if len(totals) < 2:
        return None, "no work on GPUs: ranks are compared by the compute and communication time of their GPUs"
    if not any(waited for _, waited in totals.values()):
        return None, "the ranks do not communicate, so none waits for another"
    longest = max(totals, key=lambda rank: totals[rank][0])
    least = min(totals, key=lambda rank: totals[rank][1])
    usual = median(work for rank, (work, _) in totals.items() if rank != longest)
    if longest != least or totals[longest][0] <= _STANDS_OUT * usual:
        return None, "no rank stands out: none clearly computes longest and also waits least"
    more = totals[longest][0] / usual - 1 if usual else float("inf")
    waits = max(waited for _, waited in totals.values()) - totals[longest][1]
    return longest, (
        f"{longest} is slow: it computes {more:.0%} longer than the others, which wait for it in "
        f"communication for up to {waits:.3g} s"
    )


def rank_of(trace: Trace) -> str:
    """Return the rank in the file's name, else that of the process group, else the file's name."""
    match = _RANK.search(_stem(trace.path))
    if match:
        return match[1]
    return trace.path.name if trace.header.rank is None else f"rank-{trace.header.rank}"


def of_rank(files: list[Path], rank: str | None) -> list[Path]:
    """Return the files of a rank, such as TP-0 or 0; all files if it is None.

    Raises:
        LogError: There is none; the message names the ranks that exist.
    """
    if rank is None:
        return files
    matches = {file: _RANK.search(_stem(file)) for file in files}
    names = {file: match[1] if match else "" for file, match in matches.items()}
    chosen = [
        file
        for file, name in names.items()
        if name.lower() == rank.lower() or (rank.isdigit() and _numbers(name)[:1] == (int(rank),))
    ]
    if not chosen:
        ranks_of_files = ", ".join(sorted(set(filter(None, names.values())))) or "none in the names of files"
        raise LogError(f"no trace of rank {rank}; there are: {ranks_of_files}")
    return chosen


def _numbers(rank: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", rank)))


def _stem(path: Path) -> str:
    return re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", path.name)


def _profile_id(path: Path) -> str:
    """Return the part of a file's name before the rank."""
    stem = _stem(path)
    match = _RANK.search(stem)
    return stem[: match.start()] if match else stem


def _extent(events: pl.DataFrame) -> tuple[int, int]:
    start, end = events["start_ns"].min(), events["end_ns"].max()
    return (start, end) if isinstance(start, int) and isinstance(end, int) else (0, 0)


def _has_calls(trace: Trace) -> bool:
    """Return whether a trace has calls of a GPU's runtime."""
    return bool((trace.events["kind"] == "runtime").any())


def _use_of_cpu(busy: pl.DataFrame, start: int, end: int) -> dict[str, float]:
    took, whole = covered_ns(busy) / 1e9, (end - start) / 1e9
    return {"busy_sec": took, "idle_sec": whole - took, "busy_share": took / whole if whole else 0.0}


def _rank_row(analysis: TraceAnalysis) -> Row:
    return {
        "engine": analysis.profile_id,
        "rank": analysis.rank,
        "stage": analysis.stage,
        "window_sec": analysis.window_sec,
        **analysis.use,
    }


def _order(analysis: TraceAnalysis) -> tuple[str, str, tuple[int, ...], str]:
    """Sort by engine, stage and rank."""
    return analysis.profile_id, analysis.stage or "", _numbers(analysis.rank), analysis.file
