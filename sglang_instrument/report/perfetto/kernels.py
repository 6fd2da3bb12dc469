"""Write what a profiler recorded of an engine beside the run: kernels by stream, calls by thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from sglang_instrument.report.perfetto.packets import Packets

#: Number of the engines' first group, so that engines are shown below the workers.
_PID: Final = 200_000
_ON_GPU: Final = ("kernel", "memcpy", "memset", "gpu_annotation")


def write_events(
    packets: Packets,
    name: str,
    number: int,
    events: pl.DataFrame,
    lanes: Sequence[tuple[str, str]],
    window_ns: tuple[int, int] | None = None,
) -> int:
    """Write the events of one trace; return how many.

    Args:
        packets: Where to write.
        name: The group's name, such as "engine TP-0".
        number: Of the trace, from 0: its place.
        events: kind, name, lane, start_ns, end_ns, device, stream; on the wall clock.
        lanes: Process and thread of each lane.
        window_ns: Only events that run between these times.
    """
    if window_ns is not None:
        events = events.filter((pl.col("start_ns") < window_ns[1]) & (pl.col("end_ns") > window_ns[0]))
    if events.is_empty():
        return 0
    group = packets.process(_PID + number, name)
    for place, (title, mine) in enumerate(_tracks(events, lanes)):
        _write_track(packets, packets.track(group, title, place), mine)
    packets.flush()
    return len(events)


def _tracks(events: pl.DataFrame, lanes: Sequence[tuple[str, str]]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the events of each stream of a GPU and of each thread, in the order of time."""
    ordered = events.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    on_gpu = pl.col("kind").cast(pl.String).is_in(_ON_GPU)
    marks = pl.col("kind") == "gpu_annotation"  # marks of engine steps, which span several streams
    for (device, stream), mine in ordered.filter(on_gpu & ~marks).group_by(
        "device", "stream", maintain_order=True
    ):
        yield f"GPU {device} stream {stream}", mine
    if ordered.select((on_gpu & marks).any()).item():
        yield "GPU marks", ordered.filter(on_gpu & marks)
    for (lane,), mine in ordered.filter(~on_gpu).group_by("lane", maintain_order=True):
        process, thread = lanes[int(str(lane))]
        yield f"thread {thread}" if thread != process else f"main thread {thread}", mine


def _write_track(packets: Packets, track: int, events: pl.DataFrame) -> None:
    """Write events that nest, in order; an event that overlaps without nesting goes to a track below."""
    stacks: list[list[int]] = [[]]
    tracks = [track]
    rows = events.select(pl.col("name", "kind").cast(pl.String), "start_ns", "end_ns").iter_rows()
    for name, kind, start, end in rows:
        for number, stack in enumerate(stacks):
            while stack and stack[-1] <= start:
                packets.end(tracks[number], stack.pop())
            if not stack or end <= stack[-1]:
                break
        else:
            number = len(stacks)
            stacks.append([])
            tracks.append(packets.track(track, f"at the same time {number}", number))
        packets.begin(tracks[number], start, name, kind)
        stacks[number].append(end)
    for open_track, stack in zip(tracks, stacks, strict=True):
        while stack:
            packets.end(open_track, stack.pop())
