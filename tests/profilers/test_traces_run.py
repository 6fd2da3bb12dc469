"""Traces are aligned with their run, and written with it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from made_traces import BASE_NS, engine_trace, run_beside, trace_of_work
from perfetto_tracks import group_of, parsed

from sglang_instrument.cli.main import main
from sglang_instrument.traces.answers import analyse, analyse_trace
from sglang_instrument.traces.run import idle_in_steps, worker_of
from sglang_instrument.traces.table import read_trace


def test_idle_time_of_an_engine_is_compared_with_the_work_of_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Busy from 1 to 4 and from 8 to 9: of the 8 s that both run, 4 are idle, all of them during a tool call.
    path = trace_of_work(tmp_path / "p-TP-0.trace.json", [(1, 4), (8, 9)])
    logs = run_beside(tmp_path / "exp")
    assert main(["trace", str(path), "--run", str(logs), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["steps"]
    assert (row["step"], row["worker"], row["rank"], row["validate"]) == (6, 0, "TP-0", False)
    assert row["overlap_sec"] == pytest.approx(8.0)
    assert row["idle_share"] == pytest.approx(0.5)
    assert row["requests"] == {"waited for a tool": pytest.approx(2.0)}
    sentence = "in step 6 the engine of worker 0 (TP-0) was idle 50% while, on average, 2 waited for a tool"
    assert row["sentence"] == sentence
    assert main(["trace", str(path), "--run", str(logs)]) == 0
    assert sentence in " ".join(capsys.readouterr().out.split())


def test_a_run_of_another_time_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace_of_work(tmp_path / "p-TP-0.trace.json", [(20, 21), (22, 23)])
    assert main(["trace", str(path), "--run", str(run_beside(tmp_path / "exp"))]) == 0
    assert "no step ran while the traces were recorded" in " ".join(capsys.readouterr().out.split())


def test_a_profile_id_that_names_a_worker_is_of_that_worker_alone(tmp_path: Path) -> None:
    analysis = analyse(trace_of_work(tmp_path / "exp-step_6-worker_2-TP-0.trace.json", [(0, 1)])).traces[0]
    assert worker_of(analysis, [0, 1, 2]) == [2]
    assert worker_of(analysis, [0, 1]) == [0, 1]


def test_a_trace_without_a_clock_is_not_aligned_with_a_run(tmp_path: Path) -> None:
    trace = engine_trace()
    path = tmp_path / "old.trace.json"
    path.write_text(json.dumps({"traceEvents": trace.events}))
    analysis = analyse_trace(read_trace(path))
    assert analysis.start_us is None
    assert idle_in_steps(analysis, pl.DataFrame(), pl.DataFrame(), [0]) == []
    logs = run_beside(tmp_path / "exp")
    out = tmp_path / "out.pftrace"
    assert main(["export", str(logs), "--perfetto", str(out), "--traces", str(path)]) == 2
    assert not out.exists()
    assert main(["export", "--perfetto", str(out), "--traces", str(path)]) == 0


def test_merged_traces_have_every_event_under_the_rollouts(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in (0, 1):
        engine_trace().write(traces / f"p-TP-{rank}.trace.json.gz")
    logs = run_beside(tmp_path / "exp")
    out = tmp_path / "out.pftrace"
    assert main(["export", str(logs), "--perfetto", str(out), "--traces", str(traces)]) == 0
    tracks = parsed(out)
    expected = Counter(
        (event["name"], round(event["ts"] * 1000), round(event["dur"] * 1000))
        for event in engine_trace().events
    )
    for rank in (0, 1):
        shown = Counter(
            (name, start - BASE_NS, end - start)
            for track in tracks.values()
            if group_of(track, tracks).name == f"engine TP-{rank}"
            for name, start, end, *_ in track.slices
        )
        assert shown == expected
    titles = {track.name for track in tracks.values() if group_of(track, tracks).name == "engine TP-0"}
    assert {"GPU 0 stream 7", "GPU 0 stream 13", "GPU marks"} <= titles
    # The kernels are within the step, on the same clock.
    (step,) = (
        piece for track in tracks.values() for piece in track.slices if piece[0] == "total_step_duration"
    )
    begins = [start for track in tracks.values() for name, start, *_ in track.slices if "gemm" in name]
    assert all(step[1] <= begin <= step[2] for begin in begins)


def test_traces_are_written_without_a_run_and_by_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        engine_trace().write(tmp_path / f"p-TP-{rank}.trace.json.gz")
    out = tmp_path / "out.pftrace"
    assert main(["export", "--perfetto", str(out), "--traces", str(tmp_path), "--rank", "1"]) == 0
    tracks = parsed(out)
    assert {group_of(track, tracks).name for track in tracks.values() if track.slices} == {"engine TP-1"}


def test_only_kernels_of_the_same_time_are_merged_into_one_step(tmp_path: Path) -> None:
    path = trace_of_work(tmp_path / "p-TP-0.trace.json", [(1, 4), (500, 501)])
    logs = run_beside(tmp_path / "exp")
    out = tmp_path / "out.pftrace"
    arguments = ["--perfetto", str(out), "--step", "6", "--traces", str(path)]
    assert main(["export", str(logs), *arguments]) == 0
    kernels = [piece for track in parsed(out).values() for piece in track.slices if piece[0] == "gemm"]
    assert len(kernels) == 1
