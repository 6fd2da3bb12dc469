"""Gauges of a scheduler become rows of a table and counters of a trace; what was not logged is null.

The records have the form of those that SGLang 0.5.21 leaves on a CPU, whose cache does not say what can go.
"""

import json

import pytest
from perfetto_tracks import parsed

from sglang_instrument.cli.main import main
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
    return folder


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
