"""Write packets of a Perfetto trace as a stream.

Names, categories and keys are written once, and later referred to by number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

SLICE_BEGIN: Final = 1
SLICE_END: Final = 2
INSTANT: Final = 3
COUNTER: Final = 4
CHRONOLOGICAL: Final = 2  # order of the children of a track

_SEQUENCE: Final = 1
_CLEARED: Final = 1  # flag of the first packet: forget what was interned before
_NEEDED: Final = 2  # flag of the others: they need what was interned
_REALTIME: Final = 1
_BOOTTIME: Final = 6
_PACKETS: Final = 2_000  # written at once
_BEYOND: Final = 2**63  # the first number that no field holds
_BITS: Final = 2**64 - 1

Value = str | int | float | bool


class Packets:
    """A Perfetto trace that is written to a stream; times are nanoseconds since the Unix epoch."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._trace = proto.Trace()
        self._tracks = 0
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self.written = 0
        first = self._packet(_CLEARED)
        first.first_packet_on_sequence = True

    def clock(self, now_ns: int) -> None:
        """Declare that the times are wall-clock times, so that the viewer shows them as such."""
        packet = self._packet()
        packet.timestamp = min(max(0, now_ns), _BITS)  # a broken log may have a time before 1970
        for clock in (_BOOTTIME, _REALTIME):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=packet.timestamp)

    def process(self, pid: int, name: str) -> int:
        """Begin a group of tracks; return its number. `pid` only sets its place among the groups."""
        described = self._track()
        described.process.pid = pid
        described.process.process_name = _text(name)
        return self._tracks

    def track(self, parent: int, name: str, rank: int | None = None) -> int:
        """Begin a track below a group or a track; return its number.

        Args:
            parent: The number of the group or track.
            name: The track's name.
            rank: Its place among its siblings; without, they are in the order of time.
        """
        described = self._track()
        described.name, described.parent_uuid = _text(name), parent
        described.child_ordering = CHRONOLOGICAL
        if rank is not None:
            described.sibling_order_rank = rank
        return self._tracks

    def counter(self, parent: int, name: str, unit: str) -> int:
        """Begin a counter track; return the track's number."""
        described = self._track()
        described.name, described.parent_uuid = _text(name), parent
        described.counter.unit_name = _text(unit)
        return self._tracks

    def begin(
        self,
        track: int,
        at_ns: int,
        name: str,
        category: str,
        values: Mapping[str, Value] | None = None,
        flow: int | None = None,
        last: bool = False,
    ) -> None:
        """Begin a slice; arrows join the slices of one flow, up to its `last` one."""
        event = self._named(SLICE_BEGIN, track, at_ns, name, category, values)
        if flow is not None:
            (event.terminating_flow_ids if last else event.flow_ids).append(flow)

    def end(self, track: int, at_ns: int) -> None:
        """End the slice of a track that began last."""
        self._event(SLICE_END, track, at_ns)

    def instant(
        self, track: int, at_ns: int, name: str, category: str, values: Mapping[str, Value] | None = None
    ) -> None:
        """Write an instant event."""
        self._named(INSTANT, track, at_ns, name, category, values)

    def count(self, track: int, at_ns: int, value: int) -> None:
        """Set an integer counter from this time on."""
        self._event(COUNTER, track, at_ns).counter_value = value

    def amount(self, track: int, at_ns: int, value: float) -> None:
        """Set a floating-point counter from this time on."""
        self._event(COUNTER, track, at_ns).double_counter_value = value

    def flush(self) -> None:
        """Write the buffered packets."""
        written = self._trace.SerializeToString()
        self._stream.write(written)
        self.written += len(written)
        self._trace = proto.Trace()

    def _track(self) -> Any:
        self._tracks += 1
        described = self._packet().track_descriptor
        described.uuid = self._tracks
        return described

    def _event(self, kind: int, track: int, at_ns: int) -> Any:
        packet = self._packet(_NEEDED)
        packet.timestamp = at_ns & _BITS  # a broken log may have a time before 1970
        event = packet.track_event
        event.type, event.track_uuid = kind, track
        return event

    def _named(
        self,
        kind: int,
        track: int,
        at_ns: int,
        name: str,
        category: str,
        values: Mapping[str, Value] | None,
    ) -> Any:
        event = self._event(kind, track, at_ns)
        packet = self._trace.packet[-1]
        event.name_iid = self._number_of(self._names, packet, "event_names", name)
        event.category_iids.append(self._number_of(self._categories, packet, "event_categories", category))
        for key, value in (values or {}).items():
            number = self._number_of(self._keys, packet, "debug_annotation_names", key)
            annotation = event.debug_annotations.add(name_iid=number)
            if isinstance(value, float):
                annotation.double_value = value
            elif isinstance(value, int) and -_BEYOND <= value < _BEYOND:
                annotation.int_value = int(value)  # true and false, too
            else:
                annotation.string_value = _text(str(value))
        return event

    def _number_of(self, known: dict[str, int], packet: TracePacket, kind: str, word: str) -> int:
        """Return the number that stands for a word; the packet that has it first writes the word."""
        number = known.get(word)
        if number is None:
            number = known[word] = len(known) + 1
            getattr(packet.interned_data, kind).add(iid=number, name=_text(word))
        return number

    def _packet(self, flags: int = 0) -> TracePacket:
        """Begin a packet; write those before it, if they are many."""
        if len(self._trace.packet) >= _PACKETS:
            self.flush()
        packet = self._trace.packet.add(trusted_packet_sequence_id=_SEQUENCE)
        if flags:
            packet.sequence_flags = flags
        return packet


def _text(words: str) -> str:
    """Return words without lone surrogates, which UTF-8 does not have."""
    return words.encode(errors="replace").decode()
