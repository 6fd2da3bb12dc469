"""Turn the events of a torch profiler's trace into one table of typed columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from sglang_instrument.errors import LogError
from sglang_instrument.gc_pause import uncollected
from sglang_instrument.traces.event_numbers import all_nanoseconds, all_whole, whole
from sglang_instrument.traces.events import TraceEvent
from sglang_instrument.traces.file import Header, read_events

#: Kinds by the profiler's categories, as old and new versions for CUDA and ROCm name them.
KINDS: Final = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "gpu_user_annotation": "gpu_annotation",
    "cpu_op": "cpu_op",
    "operator": "cpu_op",
    "user_annotation": "annotation",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "runtime": "runtime",
    "driver": "runtime",
    "python_function": "python",
}
ON_GPU: Final = ("kernel", "memcpy", "memset")
#: Columns. Times are nanoseconds since the Unix epoch if the trace has a `Header.base_ns`, else since any
#: time. `lane` is an index of `Trace.lanes`. Only work on a GPU has `stream` and `device`; `correlation`
#: joins it with the call that launched it.
COLUMNS: Final[dict[str, Any]] = {
    "kind": pl.Enum(sorted(set(KINDS.values()))),
    "name": pl.Categorical,
    "lane": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "device": pl.Int64,
    "stream": pl.Int64,
    "correlation": pl.Int64,
    "bytes": pl.Int64,
}
_BUFFERED_EVENTS: Final = 200_000  # turned into columns at once; bounds the memory of Python's objects


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace, as read from its file.

    Attributes:
        path: The file.
        header: What it says about itself, and what is wrong with it.
        events: One row per event that has a duration, with `COLUMNS`, in the order of the file.
        lanes: Process and thread of each lane, as the trace names them.
        left_out: The number of events of other kinds, or without a duration.
        other_kinds: How many of these have a duration, by the profiler's category.
    """

    path: Path
    header: Header
    events: pl.DataFrame
    lanes: list[tuple[str, str]]
    left_out: int
    other_kinds: dict[str, int]

    @property
    def has_clock(self) -> bool:
        """Whether the times are wall-clock times, so that they can be compared with a run's."""
        first = self.events["start_ns"].min()
        return isinstance(first, int) and first > 10**18  # 2001 in nanoseconds; up-times stay below


def read_trace(
    path: str | Path, progress: Callable[[int, int], object] | None = None, python: bool = True
) -> Trace:
    """Read a trace file, JSON or gzip, complete or truncated.

    Args:
        path: The file.
        progress: Called with the bytes read so far, and the size of the file.
        python: Whether to keep Python frames, which profilers with stacks write by the million.

    Raises:
        LogError: The file cannot be read, or holds no trace.
    """
    path = Path(path)
    header = Header()
    rows = _Rows(python)
    seen = 0
    try:
        with uncollected():
            for events in read_events(path, header, progress):
                seen += len(events)
                rows.add(events)
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from error
    table, lanes = rows.table()
    if header.base_ns:  # may be at the end of the file
        table = table.with_columns(pl.col("start_ns", "end_ns") + header.base_ns)
    return Trace(path, header, table, lanes, seen - len(table), rows.other_kinds)


class _Rows:
    """Events on their way into columns.

    Values that many events share are stored once: an event is the number of its `_SharedKey`, and four more
    values.
    """

    def __init__(self, python: bool) -> None:
        self._kinds = {name: kind for name, kind in KINDS.items() if python or kind != "python"}
        self._kinds |= {name.capitalize(): kind for name, kind in self._kinds.items()}  # of old versions
        self._shared_keys: dict[_SharedKey, int] = {}
        self._columns: tuple[list[Any], ...] = ([], [], [], [], [])
        self._tables: list[pl.DataFrame] = []
        self.other_kinds: dict[str, int] = {}

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Add events; they are converted at once, while they are in the processor's cache."""
        shared_keys = self._shared_keys
        codes, starts, lengths, correlations, sizes = self._columns
        codes += [
            shared_keys.setdefault(
                (
                    event.cat or _of_task(event),
                    event.name,
                    event.pid,
                    event.tid,
                    (args := event.args).device,
                    args.stream,
                ),
                len(shared_keys),
            )
            for event in events
        ]
        starts += [event.ts for event in events]
        lengths += [event.dur for event in events]
        correlations += [event.args.correlation for event in events]
        sizes += [event.args.size_bytes for event in events]
        if len(codes) >= _BUFFERED_EVENTS:
            self._flush()

    def table(self) -> tuple[pl.DataFrame, list[tuple[str, str]]]:
        """Return the events of the wanted kinds that have a duration, and the lanes."""
        self._flush()
        lanes: dict[tuple[int | str, int | str], int] = {}
        rows = [
            (
                self._kinds.get(cat),
                str(name),
                lanes.setdefault((process, thread), len(lanes)) if cat in self._kinds else None,
                whole(device),
                whole(stream),
            )
            for cat, name, process, thread, device, stream in self._shared_keys
        ]
        shared = pl.DataFrame(rows, schema=_OF_SHARED_KEYS, orient="row")
        names = [key[0] for key in self._shared_keys]
        tables = []
        while self._tables:  # one by one, so that memory never holds everything twice
            table = self._tables.pop(0)
            self._count_others(table["shared_key"], shared["kind"], names)
            known = pl.concat([table.drop("shared_key"), shared[table["shared_key"]]], how="horizontal")
            tables.append(known.filter(pl.col("kind").is_not_null()).select(list(COLUMNS)))
        named = [(str(process), str(thread)) for process, thread in lanes]
        return pl.concat(tables), named

    def _count_others(self, keys: pl.Series, kinds: pl.Series, names: Sequence[str]) -> None:
        """Count the events whose category is none of `KINDS`, by the category."""
        for key, count in keys.filter(kinds.gather(keys).is_null()).value_counts().iter_rows():
            name = names[key] or "without a category"
            if name.lower() not in KINDS:
                self.other_kinds[name] = self.other_kinds.get(name, 0) + count

    def _flush(self) -> None:
        """Turn the buffered events into columns."""
        codes, *values = self._columns
        convert = (all_nanoseconds, all_nanoseconds, all_whole, all_whole)
        columns = [function(column) for function, column in zip(convert, values, strict=True)]
        table = pl.DataFrame(dict(zip(_OWN, [codes, *columns], strict=True)), schema=_OWN)
        self._columns = ([], [], [], [], [])
        table = table.drop_nulls(["start_ns", "end_ns"]).with_columns(
            end_ns=pl.col("start_ns") + pl.col("end_ns")
        )
        self._tables.append(table)


def _of_task(event: TraceEvent) -> str:
    """Return the category of an event of Ascend's profiler, which names the core of a kernel instead."""
    task = event.args.task_type or ""
    return "kernel" if task.startswith(("AI_", "MIX_")) else ""


_Value = int | float | str | None
#: Category, name, process, thread, device and stream: the values that many events share.
_SharedKey = tuple[str, str | int, int | str, int | str, _Value, _Value]
_OF_SHARED_KEYS: Final = {name: COLUMNS[name] for name in ("kind", "name", "lane", "device", "stream")}
_OWN: Final[dict[str, Any]] = {
    "shared_key": pl.UInt32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "correlation": pl.Int64,
    "bytes": pl.Int64,
}
