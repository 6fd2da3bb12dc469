"""A profiled step of the real engine leaves its trace beside its records, and the trace is read right."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from logged import read_records

from sglang_instrument.traces.answers import analyse
from sglang_instrument.traces.table import KINDS

pytestmark = pytest.mark.engine


@pytest.fixture
def trace(engine_run) -> Path:
    """The trace that SGLang's scheduler wrote of a prefill and some decode steps on the CPU."""
    [trace] = (engine_run.folder / "profiles").rglob("*.trace.json.gz")
    return trace


def test_a_profiled_step_leaves_its_trace_beside_its_records(engine_run, trace: Path) -> None:
    assert trace.name == "run-step_3-worker_0-TP-0.trace.json.gz"
    starts = {
        path: record["extra"]["profile_id"]
        for path, records in read_records(engine_run.folder).items()
        for record in records
        if record["event"] == "profile_start"
    }
    assert starts == {"step_3/worker_0.jsonl": "run-step_3-worker_0"}


def test_a_real_engines_steps_equal_a_brute_force_read(trace: Path) -> None:
    analysis = analyse(trace.parent, top=10_000).traces[0]
    whole = json.loads(gzip.decompress(trace.read_bytes()))
    events = [event for event in whole["traceEvents"] if event.get("cat") in KINDS and "dur" in event]
    assert analysis.events == len(events)
    assert (analysis.rank, analysis.on_gpu, analysis.truncated) == ("TP-0", False, False)
    marked: dict[str, list[float]] = {}
    for event in events:
        if event["name"].startswith("step["):
            stage = {"E": "prefill", "D": "decode"}[event["name"][5]]
            marked.setdefault(stage, []).append(event["dur"])
    assert set(marked) == {"prefill", "decode"}
    rows = {row["stage"]: row for row in analysis.tables["stages"]}
    for stage, times in marked.items():
        assert rows[stage]["steps"] == len(times)
        assert rows[stage]["step_sec"] == pytest.approx(sum(times) / 1e6)
    assert analysis.use["busy_sec"] == pytest.approx(sum(map(sum, marked.values())) / 1e6)
    begins = [event["ts"] for event in events]
    assert analysis.window_sec * 1e6 == pytest.approx(
        max(event["ts"] + event["dur"] for event in events) - min(begins), abs=1.0
    )
    counts = Counter(event["name"] for event in events)
    assert {row["name"]: row["count"] for row in analysis.tables["cpu_ops"]} == counts
