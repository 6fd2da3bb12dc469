"""How full schedulers are, and what GPUs do, is on the screen, the page, `--once`, and in the metrics."""

import asyncio
import json
from functools import partial

import pytest
from live_served import get, hanging, samples, served, value
from live_writer import LiveRun
from nvml_stand_in import StandInForNvml
from screen import until_shown

from sglang_instrument.cli.main import main
from sglang_instrument.live import followed_run
from sglang_instrument.live.follower import Follower
from sglang_instrument.live.gauge_words import course
from sglang_instrument.live.outside.gpus import GpuSampler
from sglang_instrument.live.outside.nvml import Nvml
from sglang_instrument.live.terminal.app import Terminal

SCHEDULERS = "2 schedulers: 22 running, 1 waiting, KV cache to 60 %"
GPUS = "2 GPUs: 50 % busy, memory 40 %, 430 W, clocks held by bit_0x1000, power_cap"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a run with two schedulers that run, on a host with two GPUs."""
    driver = partial(GpuSampler, driver=lambda: Nvml(StandInForNvml()))
    monkeypatch.setattr(followed_run, "GpuSampler", driver)
    run = LiveRun(tmp_path / "exp")
    hanging(run, "a")
    return run


def test_once_prints_them_and_its_json_has_the_last_seconds(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["watch", str(run.folder), "--once"]) == 3
    out = capsys.readouterr().out
    assert SCHEDULERS in out
    assert GPUS in out
    assert "NVIDIA H200 (a stand-in)" in out
    main(["watch", str(run.folder), "--once", "--json"])
    snapshot = json.loads(capsys.readouterr().out)
    first, second = snapshot["schedulers"]
    assert (first["scheduler"], first["running"], second["waiting"]) == ("scheduler_0_tp0", 11, 1)
    recent = first["running_recent"][-10:]
    without = recent.count(None)  # seconds that passed since the last gauge, which counts for two
    assert recent == [*range(3 + without, 12), 11, *[None] * without]
    assert (first["kv_cache_used_share"], second["kv_cache_used_share"]) == (0.5, 0.6)
    assert [gpu["busy_share"] for gpu in snapshot["gpus"]] == [0.5, 0.51]
    assert {row["retractions"] for row in snapshot["totals"] if row["role"] == "scheduler"} == {2}


def test_the_page_and_the_metrics_have_them(run):
    with served(run.folder) as (server, _):
        page = get(server, "/")[2]
        assert SCHEDULERS in page
        assert GPUS in page
        known = samples(server)
        assert value(known, "scheduler_running_requests", scheduler="scheduler_1_tp0") == 11
        assert value(known, "scheduler_kv_cache_used_ratio", scheduler="scheduler_1_tp0") == 0.6
        assert value(known, "gpu_busy_ratio", gpu="1") == 0.51
        assert value(known, "gpu_sm_clock_hertz", gpu="0") == 1.98e9
        assert value(known, "gpu_clock_limit", gpu="0", limit="power_cap") == 1
        assert value(known, "retractions_total", role="scheduler", server="1") == 2


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_the_screen_has_a_line_of_each_and_a_key_shows_all(run, size):
    async def session():
        follower = Follower(run.folder, with_done=False)
        follower.catch_up()
        app = Terminal(follower)
        async with app.run_test(size=size) as pilot:
            await until_shown(app, pilot, SCHEDULERS, GPUS, "worker  state", "request  worker")
            await until_shown(app, pilot, "gauges", "help")
            await pilot.press("g")
            await until_shown(app, pilot, "scheduler_1_tp0", "11 running", "0.0 of 0 GiB")
        follower.stop()

    asyncio.run(session())


def test_a_scheduler_without_a_batch_for_3_s_is_idle(tmp_path):
    run = LiveRun(tmp_path / "exp")
    hanging(run, "a")
    run.open(7, 0)
    scheduler = run.scheduler(2)
    scheduler.gauges(10, running=5, waiting=0, kv_free_pages=1000)
    scheduler.control("scheduler_receive", 50, rid="z")
    with served(run.folder) as (server, follower):
        idle = follower.snapshot().schedulers[2]
        assert (idle.is_idle, idle.running) == (True, 5)
        assert set(idle.running_recent) == {None}
        assert value(samples(server), "scheduler_running_requests", scheduler="scheduler_2_tp0") == 0


def test_in_a_run_that_has_ended_no_scheduler_runs_a_batch(tmp_path, capsys):
    run = LiveRun(tmp_path / "exp")
    file, scheduler = run.open(1, 0), run.scheduler()
    file.request("a", time_sec=1, duration_sec=1)
    scheduler.gauges(1, running=5, waiting=0, kv_free_pages=500)
    file.close(1.5)
    for each in (file, scheduler):
        each.control("log_closed", 1.6)
    assert main(["watch", str(run.folder), "--once"]) == 0
    assert "1 scheduler: no batch runs" in capsys.readouterr().out


def test_the_course_of_a_share_ends_at_a_full_cache():
    assert course((None, 0.5, 1.0), top=1.0) == " ▅█"
    assert course((None, 1, 2)) == " ▅█"
    assert course(()) == ""
