"""Gauges of a scheduler become rows of a table and counters of a trace; what was not logged is null.

The records have the form of those that SGLang 0.5.21 leaves on a CPU, whose cache does not say what can go.
"""

import json
from datetime import datetime, timezone

import polars as pl
import pytest
from perfetto_tracks import parsed

from sglang_instrument.analysis.answers.engine.requests import with_later_columns
from sglang_instrument.analysis.answers.routing.schedulers import courses
from sglang_instrument.analysis.reading.records.gpu_records import Gpu, GpuGauges, GpusOpened, record_line
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.cli.main import main
from sglang_instrument.report.html.chosen import Chosen
from sglang_instrument.report.html.servers import _line, gauge_facts
from sglang_instrument.testing import synthetic_run

FULL = {
    "running": 3,
    "waiting": 2,
    "batch_size": 4,
    "kv_tokens": 1000,
    "kv_free_pages": 250,
    "kv_page_size": 1,
}
#: Fields of the gauges, second by second.
LOGGED = (
    FULL,
    {**FULL, "running": 5, "kv_evictable": 150},
    {**FULL, "kv_free_pages": 10, "kv_page_size": 16, "waiting": "many"},
    {"running": -1},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = synthetic_run(
        tmp_path_factory.mktemp("run") / "exp", steps=2, workers=1, requests=2, engine_clocks={0: 0.0}
    )
    path = folder / "engine" / "scheduler_0_tp0.jsonl"
    with path.open("a") as log:
        for second, extra in enumerate(LOGGED):
            stamp = f"2026-06-01T00:00:0{second}.500000+00:00"
            log.write(json.dumps({"timestamp": stamp, "event": "scheduler_gauges", "extra": extra}) + "\n")
    add_request_of_a_host_cache(folder)
    return folder


def add_request_of_a_host_cache(folder):
    """Add a request of which HiCache had a part, and which lost its place in the batch and was aborted."""
    scheduler = folder / "engine" / "scheduler_0_tp0.jsonl"
    records = [json.loads(line) for line in (folder / "step_1" / "worker_0.jsonl").read_text().splitlines()]
    span = next(record for record in reversed(records) if "start_us" in record)
    begun = {key: span[key] for key in ("timestamp", "start_us")}
    received = {**begun, "event": "scheduler_receive", "extra": {"rid": "of-hicache", "prompt_tokens": 100}}
    preempted = {**received, "event": "scheduler_preempt", "extra": {"rid": "of-hicache"}}
    with scheduler.open("a") as log:
        log.writelines(json.dumps(record) + "\n" for record in (received, preempted, preempted))
    tiers = {"cached_tokens": 90, "cached_host_tokens": 30, "cached_storage_tokens": 20}
    ended = {"rid": "of-hicache", "finish_reason": "abort", "prompt_tokens": 100, **tiers}
    answered = {**received, "event": "engine_request", "duration_sec": 1.0, "extra": ended}
    with (folder / "engine" / "server_0.jsonl").open("a") as log:
        log.write(json.dumps(answered) + "\n")


def test_sql_has_a_row_a_second(run, capsys):
    main(
        [
            "sql",
            str(run),
            "select * exclude at_us, at_us % 1000000 as micros from gauges order by at_us",
            "--json",
        ]
    )
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["scheduler"] for row in rows} == {"scheduler_0_tp0"}
    assert {row["micros"] for row in rows} == {500000}
    shown = [
        (
            row["running"],
            row["waiting"],
            row["batch_size"],
            row["kv_cache_running_share"],
            row["kv_cache_used_share"],
        )
        for row in rows
    ]
    assert shown == [
        (3, 2, 4, None, 0.75),
        (5, 2, 4, 0.6, 0.75),
        (3, None, 4, None, 0.84),
        (None, None, None, None, None),
    ]


def test_a_trace_has_counters_beside_the_scheduler_s_events(run, tmp_path):
    out = tmp_path / "out.pftrace"
    assert main(["export", str(run), "--perfetto", str(out)]) == 0
    tracks = parsed(out)
    counters = {
        track.name: [value for _, value in track.counts]
        for track in tracks.values()
        if track.counts and tracks[track.parent].name.startswith("scheduler")
    }
    assert counters == {"running": [3, 5, 3], "waiting": [2, 2], "KV cache used": [75, 75, 84]}


def test_servers_shows_what_each_scheduler_held_and_did(run, capsys):
    assert main(["servers", str(run), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["schedulers"]
    assert {row["scheduler"]: row["seconds"] for row in rows} == {"scheduler_0": None, "scheduler_0_tp0": 4}
    scheduler = rows[1]
    assert (scheduler["running_mean"], scheduler["running_max"]) == (pytest.approx(11 / 3), 5)
    assert (scheduler["waiting_mean"], scheduler["waiting_max"]) == (2, 2)
    assert scheduler["kv_cache_used_share_max"] == pytest.approx(0.84)
    assert (scheduler["cached_host_tokens"], scheduler["cached_storage_tokens"]) == (30, 20)
    assert (scheduler["preemptions"], scheduler["aborts"]) == (2, 1)
    assert scheduler["cached_tokens"] >= 90


def test_servers_draws_the_course_of_each_gauge(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    assert main(["servers", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = [line for line in lines if line.startswith("scheduler_0_tp0")][-1]
    assert "█▇" in row
    (header,) = [line for line in lines if "running over time" in line]
    assert "preemptions" in header


def test_the_report_and_a_trace_have_gauges_and_gpus_beside_what_the_step_was_spent_on(run, tmp_path, capsys):
    opened = Run.open(run)
    step = opened.digest.of_workers().steps.sort("step").row(0, named=True)
    times = [datetime.fromtimestamp(step["start_us"] / 1e6 + second, timezone.utc) for second in (0.2, 1.2)]
    opened_gpus = GpusOpened("host", None, "570", [Gpu("stand-in", 100)])
    doing = GpuGauges([0.5], [50], [400.0], [1980], [3201], [[]])
    (run / "live").mkdir(exist_ok=True)
    (run / "live" / "gpus_host.jsonl").write_bytes(
        record_line("gpus_opened", times[0], opened_gpus)
        + b"".join(record_line("gpu_gauges", time, doing) for time in times)
    )
    with (run / "engine" / "scheduler_0_tp0.jsonl").open("a") as log:
        for time in times:
            gauge = {"timestamp": time.isoformat(), "event": "scheduler_gauges", "extra": FULL}
            log.write(json.dumps(gauge) + "\n")
    facts = gauge_facts(Run.open(run), [Chosen(False, 1), Chosen(False, 2)])
    lines = facts["1"]["lines"]
    assert lines["running"] == {"at_sec": [0.5, 1.5], "values": [3.0, 3.0]}
    assert lines["kv_cache"]["values"] == [0.75, 0.75]
    assert lines["gpus_busy"]["values"] == [0.5, 0.5]
    assert all(first < last for _, first, last in facts["1"]["path"])
    assert {"engine", "generate"} & {phase for phase, _, _ in facts["1"]["path"]}
    trace = tmp_path / "of_gpus.pftrace"
    assert main(["export", str(run), "--perfetto", str(trace)]) == 0
    tracks = parsed(trace)
    counters = {
        track.name: [value for _, value in track.counts]
        for track in tracks.values()
        if track.counts and tracks[track.parent].name == "GPU of host 0"
    }
    assert counters == {
        "busy": [50, 50],
        "memory": [50 / 2**30] * 2,
        "power": [400, 400],
        "clock": [1980, 1980],
    }
    page = tmp_path / "page.html"
    assert main(["report", str(run), "-o", str(page)]) == 0
    assert 'id="chart-gauges"' in page.read_text()


def test_a_line_has_a_gap_where_no_batch_ran():
    table = pl.DataFrame({"number": [0, 1, 3, 9], "running": [1.0, 2.0, 3.0, 4.0]})
    assert _line(table, "running", 1_000_000) == {
        "at_sec": [0.5, 1.5, 3.5, 4.0, 9.5],
        "values": [1.0, 2.0, 3.0, None, 4.0],
    }


def test_the_course_of_a_gauge_has_no_slice_shorter_than_a_second():
    gauges = pl.DataFrame(
        {
            "scheduler": ["a", "a", "b"],
            "at_us": [0, 1_000_000, 2_000_000],
            "running": [4, None, 8],
        }
    )
    assert courses(gauges, "running", 16) == {"a": "▅ ", "b": " █"}
    assert courses(gauges.clear(), "running", 16) == {}


def test_an_engine_table_that_an_earlier_version_kept_has_no_tiers():
    earlier = pl.DataFrame({"rid": ["r1"], "cached_tokens": [5]})
    whole = with_later_columns(earlier)
    assert whole["cached_host_tokens"].to_list() == [None]
    assert whole["cached_tokens"].to_list() == [5]
