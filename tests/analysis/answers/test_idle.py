"""`servers --idle` says when servers had no call, and why; the parts add up to the time of the steps."""

from datetime import datetime, timezone

import polars as pl
import pytest
from set_worlds import play_set, well_set_world, wrong_world

from sglang_instrument.analysis import gpu_shares, idle_table, open_run, server_calls
from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.analysis.reading.records.gpu_records import Gpu, GpuGauges, GpusOpened, record_line
from sglang_instrument.cli.main import main
from sglang_instrument.testing.world.play import write_world


def run_of(tmp_path, world):
    return open_run(write_world(tmp_path / "world", play_set(world)), cached=False)


def shares_of(table, server=None):
    of_server = table.filter(pl.col("server").eq_missing(pl.lit(server, pl.String)))
    return dict(of_server.select("part", "share").iter_rows())


@pytest.mark.parametrize(
    ("kind", "seed", "reason"),
    [
        ("time-out of a tool", 0, "tools"),
        ("pool of tools or rewards", 2, "tools"),
        ("rewards off the critical path", 0, "trainer"),
        ("response cap", 4, "trainer"),
    ],
)
def test_parts_add_up_and_the_planted_reason_is_the_largest(tmp_path, kind, seed, reason):
    table = idle_table(run_of(tmp_path, wrong_world(kind, seed)))
    sums = table.group_by("server").agg(pl.col("share").sum())["share"]
    assert sums.to_list() == pytest.approx([1.0] * len(sums))
    idle = shares_of(table.filter("is_idle"))
    assert max(idle, key=idle.get) == reason


def test_the_time_with_calls_is_that_of_a_count_moment_by_moment(tmp_path):
    run = run_of(tmp_path, wrong_world("turn cap", 0))
    calls = server_calls(run).drop_nulls(["server", "start_us", "end_us"])
    windows = loop_of(run).lanes.windows.select("from_us", "to_us").rows()
    table, width = idle_table(run), 20_000
    for (server,), of_server in calls.group_by("server"):
        spans = of_server.select("start_us", "end_us").rows()
        moments = [moment for begin, end in windows for moment in range(begin, end, width)]
        served = sum(any(begin <= moment < end for begin, end in spans) for moment in moments)
        assert shares_of(table, server)["serving calls"] == pytest.approx(served / len(moments), abs=0.005)


def test_a_slow_tail_on_one_server_leaves_the_others_idle(tmp_path):
    table = idle_table(run_of(tmp_path, wrong_world("response cap", 5)))
    assert shares_of(table)["tail"] > shares_of(table).get("requests on other servers", 0.0)


def test_gauges_of_gpus_say_how_busy_they_were_while_calls_were_in_flight(tmp_path):
    run = run_of(tmp_path, well_set_world(0))
    assert gpu_shares(run) is None
    calls = server_calls(run).drop_nulls(["start_us", "end_us"])
    windows = loop_of(run).lanes.windows
    lines = []
    for at_us in range(windows["from_us"].min(), windows["to_us"].max(), 250_000):
        moment = datetime.fromtimestamp(at_us / 1e6, timezone.utc)
        serves = len(calls.filter(pl.col("start_us") <= at_us, pl.col("end_us") > at_us)) > 0
        doing = GpuGauges([0.6 if serves else 0.1], [50], [400.0], [1980], [3201], [[]])
        if not lines:
            lines.append(
                record_line("gpus_opened", moment, GpusOpened("gpus", None, "570", [Gpu("made", 100)]))
            )
        lines.append(record_line("gpu_gauges", moment, doing))
    (run.folder / "live").mkdir(exist_ok=True)
    (run.folder / "live" / "gpus_gpus.jsonl").write_bytes(b"".join(lines))
    shares = gpu_shares(open_run(run.folder, cached=False))
    assert shares == pytest.approx({"serving_busy_share": 0.6, "idle_busy_share": 0.1}, abs=0.03)


def test_the_command_prints_the_reasons_in_a_sentence(tmp_path, capsys):
    folder = write_world(tmp_path / "world", play_set(wrong_world("time-out of a tool", 0)))
    assert main(["servers", str(folder), "--idle"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "the servers had no call in " in printed
    assert " % tools" in printed


def test_every_reading_gives_the_same_numbers_to_the_last_digit(tmp_path):
    run = run_of(tmp_path, wrong_world("servers", 0))
    tables = [idle_table(run) for _ in range(10)]
    assert all(table.equals(tables[0]) for table in tables)
