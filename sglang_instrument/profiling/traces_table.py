"""Put the events of a torch profiler's trace into one table of typed columns."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from sglang_instrument.errors import LogError
from sglang_instrument.profiling.traces_file import Event, Header, read_events

#: What a category of the profiler is, by the names of old and new versions, CUDA's and ROCm's.
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
#: Columns. Times are nanoseconds: since the Unix epoch where the trace says when it began (`Header.base_ns`),
#: else since anything. `lane` is an index of `Trace.lanes`. `stream` and `device` are those of work on a GPU;
#: `correlation` leads from it to the call that launched it.
COLUMNS: Final[dict[str, Any]] = {
    "kind": pl.Enum(sorted(set(KINDS.values()))),
    "name": pl.Categorical,
    "lane": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "device": pl.Int32,
    "stream": pl.Int32,
    "correlation": pl.Int64,
    "bytes": pl.Int64,
}
_STRETCH: Final = 60_000  # events that become columns at once; bounds the memory of Python's objects
_WITH_ARGS: Final = {
    spelled
    for name, kind in KINDS.items()
    if kind in (*ON_GPU, "runtime")
    for spelled in (name, name.capitalize())
}


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace as its file tells it.

    Attributes:
        path: The file.
        header: What it says of itself, and what is wrong with it.
        events: A row an event that has a duration, with `COLUMNS`, in the order of the file.
        lanes: Process and thread of each lane, as the trace calls them.
        left_out: Events of other kinds, or without a duration.
    """

    path: Path
    header: Header
    events: pl.DataFrame
    lanes: list[tuple[str, str]]
    left_out: int

    @property
    def has_clock(self) -> bool:
        """Whether the times are those of a clock, so that they can be laid beside a run's."""
        first = self.events["start_ns"].min()
        return isinstance(first, int) and first > 10**18  # 2001 in nanoseconds; up-times stay below


def read_trace(
    path: str | Path, progress: Callable[[int, int], object] | None = None, python: bool = True
) -> Trace:
    """Read a trace file, JSON or gzip, whole or cut short.

    Args:
        path: The file.
        progress: Called with the bytes read and the size of the file.
        python: Whether the frames of Python are wanted, which profilers with stacks write by the million.

    Raises:
        LogError: It cannot be read, or holds no trace.
    """
    path = Path(path)
    header = Header()
    rows = _Rows(python)
    seen = 0
    try:
        with _uncollected():
            for events in read_events(path, header, progress):
                seen += len(events)
                rows.add(events)
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from error
    table = rows.table()
    if header.base_ns:  # may be said at the end of the file
        table = table.with_columns(pl.col("start_ns", "end_ns") + header.base_ns)
    return Trace(
        path,
        header,
        table,
        [(str(process), str(thread)) for process, thread in rows.lanes],
        seen - len(table),
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the collection of cycles: events have none, and looking for them costs half of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _Rows:
    """Events on their way into columns."""

    def __init__(self, python: bool) -> None:
        self._kinds = {name: kind for name, kind in KINDS.items() if python or kind != "python"}
        self._kinds |= {name.capitalize(): kind for name, kind in self._kinds.items()}  # of old versions
        self._waiting: list[Event] = []
        self._tables: list[pl.DataFrame] = []
        self.lanes: dict[tuple[int | str, int | str], int] = {}

    def add(self, events: Sequence[Event]) -> None:
        """Take those that are of a kind that is asked for, and have a duration."""
        kinds = self._kinds
        self._waiting += [event for event in events if event.cat in kinds and event.dur is not None]
        if len(self._waiting) >= _STRETCH:
            self._turn()

    def table(self) -> pl.DataFrame:
        """Return all that was added."""
        self._turn()
        return pl.concat(self._tables)

    def _turn(self) -> None:
        """Turn what waits into columns."""
        events, lanes, kinds = self._waiting, self.lanes, self._kinds
        self._waiting = []
        args = [event.args if event.cat in _WITH_ARGS else None for event in events]
        numbered = [lanes.setdefault((event.pid, event.tid), len(lanes)) for event in events]
        own = pl.DataFrame(
            {
                "kind": [kinds[event.cat] for event in events],
                "name": [event.name for event in events],
                "lane": numbered,
                "start_ns": [event.ts for event in events],
                "end_ns": [event.dur for event in events],
                "device": [one and one.device for one in args],
                "stream": [one and one.stream for one in args],
                "correlation": [one and one.correlation for one in args],
                "bytes": [one and one.size_bytes for one in args],
            },
            schema={**COLUMNS, "start_ns": pl.Float64, "end_ns": pl.Float64},
            strict=False,
        )
        start, took = (pl.col(name) * 1e3 for name in ("start_ns", "end_ns"))
        times = own.with_columns(start_ns=start.round().cast(pl.Int64), end_ns=took.round().cast(pl.Int64))
        self._tables.append(times.with_columns(pl.col("end_ns") + pl.col("start_ns")))
