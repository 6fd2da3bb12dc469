"""Compare the analysis of a GPU's trace with what `json.loads` finds in the same file, event by event."""

import gzip
import json
from collections import Counter

import pytest

GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def gpu_events(path):
    """Return the events of the GPU, as dictionaries of the file."""
    raw = path.read_bytes()
    whole = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return [event for event in whole["traceEvents"] if event.get("cat") in GPU]


def covered_us(events):
    """Return the microseconds in which at least one event ran."""
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events)
    covered, reach = 0.0, spans[0][0]
    for start, end in spans:
        covered += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return covered


def check_against_brute_force(path, trace):
    """Assert that busy time, kernels, streams and copies of an analysed `trace` are those of the file."""
    events = gpu_events(path)
    assert trace.on_gpu
    assert trace.devices
    assert trace.use["busy_sec"] * 1e6 == pytest.approx(covered_us(events), rel=1e-3)
    kernels = [event for event in events if event["cat"] == "kernel"]
    assert counted(trace.tables["kernels"]) == Counter(event["name"] for event in kernels)
    took = sum(row["total_sec"] for row in trace.tables["kernels"]) * 1e6
    assert took == pytest.approx(sum(event["dur"] for event in kernels), rel=1e-3)
    streams = Counter(str(event["args"]["stream"]) for event in events)
    assert {str(row["stream"]): row["count"] for row in trace.tables["streams"]} == streams
    copies = Counter(event["name"] for event in events if event["cat"] != "kernel")
    assert counted(trace.tables["copies"]) == copies


def counted(rows):
    return {row["name"]: row["count"] for row in rows}


def steps_by_stage(trace):
    return {row["stage"]: row["steps"] for row in trace.tables["stages"] if row["steps"]}
