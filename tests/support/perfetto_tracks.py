"""Read a Perfetto trace with Perfetto's own protobuf classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

EVENT = protos.TrackEvent


@dataclass
class Track:
    """A track as it was parsed: slices are (name, start, end, depth, values), counters (time, value)."""

    name: str
    parent: int
    pid: int = 0
    slices: list[tuple[str, int, int, int, dict[str, Any]]] = field(default_factory=list)
    moments: list[tuple[str, int]] = field(default_factory=list)
    counts: list[tuple[int, float]] = field(default_factory=list)
    flows: list[tuple[int, bool]] = field(default_factory=list)


def parsed(path: Path) -> dict[int, Track]:
    """Read a trace as the trace processor does: names are numbers, an end closes the last open slice."""
    trace = protos.Trace()
    trace.ParseFromString(path.read_bytes())
    tracks: dict[int, Track] = {}
    words: dict[str, dict[int, str]] = {
        "event_names": {},
        "event_categories": {},
        "debug_annotation_names": {},
    }
    stacks: dict[int, list[Any]] = {}
    assert trace.packet[0].sequence_flags == protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        for kind, known in words.items():
            known.update({name.iid: name.name for name in getattr(packet.interned_data, kind)})
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            name = described.process.process_name or described.name
            tracks[described.uuid] = Track(name, described.parent_uuid, described.process.pid)
        elif packet.HasField("track_event"):
            _take(packet, tracks, words, stacks.setdefault(packet.track_event.track_uuid, []))
    assert not any(stacks.values())
    return tracks


def _take(packet: Any, tracks: dict[int, Track], words: dict[str, dict[int, str]], stack: list[Any]) -> None:
    event, now = packet.track_event, packet.timestamp
    track = tracks[event.track_uuid]  # a track is described before its first event
    if event.type == EVENT.TYPE_COUNTER:
        track.counts.append((now, event.counter_value or event.double_counter_value))
        return
    if event.type == EVENT.TYPE_SLICE_END:
        name, begun, values = stack.pop()
        track.slices.append((name, begun, now, len(stack), values))
        return
    name = words["event_names"][event.name_iid]
    assert [words["event_categories"][iid] for iid in event.category_iids]
    if event.type == EVENT.TYPE_INSTANT:
        track.moments.append((name, now))
        return
    assert event.type == EVENT.TYPE_SLICE_BEGIN
    values = {
        words["debug_annotation_names"][annotation.name_iid]: _value(annotation)
        for annotation in event.debug_annotations
    }
    track.flows += [(flow, False) for flow in event.flow_ids]
    track.flows += [(flow, True) for flow in event.terminating_flow_ids]
    stack.append((name, now, values))


def _value(annotation: Any) -> Any:
    return getattr(annotation, annotation.WhichOneof("value"))


def group_of(track: Track, tracks: dict[int, Track]) -> Track:
    while track.parent:
        track = tracks[track.parent]
    return track
