"""Counters for Prometheus only grow while a run lasts, also when the follower begins anew."""

import os
from dataclasses import replace

import pytest
from live_served import get, read_on, samples, served, value
from live_writer import LiveRun


@pytest.fixture
def run(tmp_path):
    return LiveRun(tmp_path / "exp")


def test_a_program_cannot_make_series_without_end(run):
    file = run.open(1, 0)
    for number in range(600):
        file.span(f"mine_{number}", 1, 0.5, phase=f"phase_{number}")
    with served(run.folder) as (server, _):
        served_samples = samples(server)
        assert len(served_samples["sglang_instrument_events_total"]) <= 257
        assert sum(served_samples["sglang_instrument_events_total"].values()) == 600
        assert value(served_samples, "phase_seconds_total", phase="other") == pytest.approx(300)


def test_counters_grow_on_when_the_follower_is_started_again(run):
    for step in range(1, 6):
        run.open(step, 0).request("a", time_sec=step, duration_sec=1, tokens=100)
        run.open(step, 0).close(step + 0.5)
    with served(run.folder) as (server, follower):
        first = samples(server)  # the two newest steps
        for step in range(6, 9):
            run.open(step, 0).request("a", time_sec=step, duration_sec=1, tokens=100)
            read_on(follower)
        before = samples(server)
        assert value(before, "tokens_total") == value(first, "tokens_total") + 300
        name = server.counters._name
    assert (run.folder / "live" / name).is_file()
    with served(run.folder) as (server, follower):
        server.counters._name = name  # the port is another one
        again = samples(server)
        counters = [series for series in before if series.endswith("_total")]
        assert all(
            again[series][labels] >= known for series in counters for labels, known in before[series].items()
        )
        assert value(again, "tokens_total") == value(before, "tokens_total")
        run.open(9, 0).request("a", time_sec=9, duration_sec=1, tokens=100)
        read_on(follower)
        assert value(samples(server), "tokens_total") == value(before, "tokens_total") + 100


def test_counters_stay_when_the_folder_vanishes_and_comes_back(run, tmp_path):
    run.open(1, 0).request("a", time_sec=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, follower):
        before = samples(server)
        run.folder.rename(tmp_path / "away")
        read_on(follower)
        assert value(samples(server), "tokens_total") == 100
        (tmp_path / "away").rename(run.folder)
        follower._next_find = 0.0
        follower.catch_up()
        run.open(1, 0).request("b", time_sec=2, duration_sec=1, tokens=11)
        read_on(follower)
        assert value(samples(server), "tokens_total") == 111
        assert value(before, "tokens_total") == 100


def test_counters_wait_until_the_run_is_read_to_its_end(run):
    run.open(1, 0).request("a", time_sec=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, follower):
        half = replace(follower.snapshot(), catching_up=True)
        assert server.counters.of(half) == {}
        whole = server.counters.of(follower.snapshot())
        assert whole["tokens", "worker", "0", ""] == 100
        fewer = replace(half, totals={})  # the follower reads it anew
        assert server.counters.of(fewer) == whole
        assert server.counters.of(follower.snapshot()) == whole


@pytest.mark.parametrize(
    "content", ["", "[]", '{"run_id": 3}', '{"run_id": "run-1", "series": [[["x"], "y"]]}']
)
def test_a_file_of_counters_that_is_none_is_no_harm(run, content):
    run.open(1, 0).request("a", time_sec=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, _):
        (run.folder / "live").mkdir()
        (run.folder / "live" / server.counters._name).write_text(content)
        assert value(samples(server), "tokens_total") == 100


def test_a_pipe_in_place_of_the_file_of_counters_stops_nothing(run):
    run.open(1, 0).request("a", time_sec=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, _):
        (run.folder / "live").mkdir()
        os.mkfifo(run.folder / "live" / server.counters._name)
        assert value(samples(server), "tokens_total") == 100


def test_a_run_that_is_new_begins_its_counters_anew(run):
    run.open(1, 0).request("a", time_sec=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, follower):
        assert value(samples(server), "tokens_total") == 100
        again = LiveRun(run.folder, run_id="run-2", begin_us=run.begin_us + 10_000_000)
        again.open(1, 0).request("a", time_sec=1, duration_sec=1, tokens=7)
        read_on(follower)
        served_samples = samples(server)
        assert value(served_samples, "tokens_total") == 7
        assert value(served_samples, "run_info", run_id="run-2") == 1


def test_a_folder_that_cannot_be_written_is_said_as_a_problem_of_the_follower(run):
    run.open(1, 0).request("a", time_sec=1, duration_sec=1, tokens=100)
    (run.folder / "live").write_text("no folder")
    with served(run.folder) as (server, _):
        assert value(samples(server), "tokens_total") == 100
        assert "counters begin anew" in get(server, "/")[2]
        assert value(samples(server), "problems", kind="follower") == 1
