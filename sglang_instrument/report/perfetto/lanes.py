"""Distribute slices over tracks, so that a slice is drawn inside another only if it ran inside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sglang_instrument.report.perfetto.packets import Packets, Value


@dataclass(slots=True)
class Slice:
    """A drawn span. `parent` is the `number` of the slice that it ran inside."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    values: Mapping[str, Value]
    number: int
    parent: int | None
    flow: int | None = None
    last: bool = False
    slack_ns: int = 0  # how far its times may be off
    depth: int = 0  # in its lane


def assign_lanes(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Return lanes; within each, slices are disjoint or inside their parent, and sorted by start.

    A slice concurrent with its siblings goes to the next lane: drawn in theirs, it would look as if it ran
    inside them. A slice that ends after its parent by a rounding error is clipped to it.
    """
    ordered = sorted(slices, key=lambda piece: (piece.start_ns, -piece.end_ns, piece.number))
    lanes: list[list[Slice]] = []
    stacks: list[list[Slice]] = []
    for piece in ordered:
        for lane, stack in zip(lanes, stacks, strict=True):
            while stack and stack[-1].end_ns <= piece.start_ns:
                if stack[-1].number == piece.parent and piece.start_ns == stack[-1].end_ns == piece.end_ns:
                    break  # of zero length, at the end of its parent
                stack.pop()
            if not stack or _fits(piece, stack[-1]):
                if stack:
                    piece.end_ns = max(piece.start_ns, min(piece.end_ns, stack[-1].end_ns))
                piece.depth = len(stack)
                lane.append(piece)
                stack.append(piece)
                break
        else:
            lanes.append([piece])
            stacks.append([piece])
    return lanes


def _fits(piece: Slice, above: Slice) -> bool:
    """Return whether a slice ran inside another; a task may outlast the span that spawned it."""
    return above.number == piece.parent and piece.end_ns <= above.end_ns + piece.slack_ns


def write_lanes(packets: Packets, track: int, lanes: Sequence[Sequence[Slice]]) -> None:
    """Write the first lane on a track, the others on tracks below it."""
    for number, lane in enumerate(lanes):
        mine = track if number == 0 else packets.track(track, f"at the same time {number}", number)
        open_ends: list[int] = []
        for piece in lane:
            while len(open_ends) > piece.depth:
                packets.end(mine, open_ends.pop())
            packets.begin(
                mine, piece.start_ns, piece.name, piece.category, piece.values, piece.flow, piece.last
            )
            open_ends.append(piece.end_ns)
        while open_ends:
            packets.end(mine, open_ends.pop())
