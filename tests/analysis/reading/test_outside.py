"""Records outside of any step are in the folder of step 0 or -1: they are read, but not as a step."""

import json

import polars as pl
import pytest

import sglang_instrument
from sglang_instrument import bind, event, span, step
from sglang_instrument.analysis import open_run, step_table
from sglang_instrument.cli.main import main


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")


@pytest.fixture
def printed(capsys):
    def call(*arguments, code=0):
        assert main([str(argument) for argument in arguments]) == code
        return capsys.readouterr().out

    return call


def rollout(*steps):
    for number in steps:
        with step(number), span("total_step_duration"):
            request(f"r{number}")


def request(name):
    with bind(request_id=name), span("async_rollout_request_complete"):
        event("did")


def ranked(folder):
    return step_table(open_run(folder, cached=False).digest)["step"].to_list()


def test_records_outside_of_any_step_are_no_step(install, printed):
    folder = install()
    request("before")
    rollout(1, 2, 3)
    request("after")
    sglang_instrument.uninstall()
    assert ranked(folder) == [1, 2, 3]
    shown = printed("summary", folder)
    assert "3 steps, 1 worker, 3 requests" in shown
    assert "nothing dropped, torn or left open; 4 records outside of any step" in shown
    assert "nothing is wrong" in printed("check", folder)


def test_records_outside_of_any_step_can_be_listed(install, printed):
    folder = install()
    request("before")
    rollout(1)
    sglang_instrument.uninstall()
    listed = json.loads(printed("requests", folder, "--json"))["requests"]
    assert {row["request_id"]: row["step"] for row in listed} == {"before": 0, "r1": 1}
    assert "before" in printed("requests", folder, "--step", 0)
    assert "did" in printed("events", folder, "--step", 0)
    assert main(["summary", str(folder), "--step", "0"]) == 2


def test_records_outside_of_any_step_are_exported(install, printed, tmp_path):
    folder, out = install(), tmp_path / "out"
    request("before")
    rollout(1)
    sglang_instrument.uninstall()
    printed("export", folder, "--parquet", out)
    assert pl.read_parquet(out / "steps.parquet")["step"].to_list() == [1]
    assert pl.read_parquet(out / "requests.parquet")["request_id"].to_list() == ["before", "r1"]
    spans = pl.read_parquet(out / "parts/*/records.parquet").filter(
        pl.col("duration_sec").is_not_null(), step=0
    )
    assert spans["request_id"].to_list() == ["before"]
    printed("export", folder, "--perfetto", tmp_path / "step0.pftrace", "--step", 0)


def test_step_0_is_ranked_where_a_trainer_counts_from_0(install, printed):
    folder = install()
    rollout(0, 1, 2)
    event("outside")  # in the same file
    sglang_instrument.uninstall()
    assert ranked(folder) == [0, 1, 2]
    assert open_run(folder).health.outside == 0
    assert "nothing is wrong" in printed("check", folder)


def test_a_step_0_that_was_killed_is_a_step_whatever_was_recorded_before_it(run_script):
    folder = run_script(
        """
        import os
        import sglang_instrument as si
        si.install()
        si.event("outside")
        si.flush(60)
        with si.step(0), si.span("total_step_duration"):
            si.event("did")
            si.flush(60)
            os._exit(0)
        """
    ).folder
    assert open_run(folder).health.unclosed == [(0, False, 0)]


def test_of_workers_of_one_run_each_is_judged_by_its_own_file(install):
    folder = install()
    with bind(worker=0):
        rollout(0, 1)
    with bind(worker=1):
        request("outside")
        rollout(1)
    sglang_instrument.uninstall()
    run = open_run(folder)
    assert run.digest.steps.sort("step", "worker").select("step", "worker").rows() == [(0, 0), (1, 0), (1, 1)]


def test_a_program_that_binds_no_step_is_shown_as_step_0(install, printed):
    folder = install()
    request("r")
    sglang_instrument.uninstall()
    assert ranked(folder) == [0]
    assert "1 step, 1 worker, 1 request" in printed("summary", folder)


def test_a_step_minus_1_is_read_and_is_no_step(install, printed):
    folder = install()
    rollout(-1, 1, 2)
    sglang_instrument.uninstall()
    assert (folder / "step_-1/worker_0.jsonl").exists()
    assert ranked(folder) == [1, 2]
    run = open_run(folder)
    assert (run.health.files, run.health.records, run.health.outside) == (3, 9, 3)
    assert "r-1" in printed("requests", folder, "--step", -1)


def test_a_step_minus_1_is_ranked_where_the_workers_have_no_other(install):
    folder = install()
    rollout(-1)
    with bind(role="trainer"), step(1), span("trainer_step"):
        pass
    sglang_instrument.uninstall()
    assert ranked(folder) == [-1]


def without_step_bound(folder):
    """Make logs such as versions before `step_bound` wrote."""
    for path in folder.glob("step_0/*.jsonl"):
        text = path.read_text()
        path.write_text(text.replace(',"step_bound":false', "").replace(',"step_bound":true', ""))
        assert "step_bound" in text


@pytest.mark.parametrize(("bound", "steps"), [(True, [0, 1]), (False, [1])])
def test_in_logs_of_earlier_versions_step_0_counts_if_it_was_closed(install, printed, bound, steps):
    folder = install()
    rollout(0) if bound else request("outside")
    rollout(1)
    sglang_instrument.uninstall()
    without_step_bound(folder)
    assert ranked(folder) == steps
    assert "nothing is wrong" in printed("check", folder)


def test_logs_of_the_reference_are_told_their_step(tmp_path):
    line = {"timestamp": "2026-01-05T08:00:01.500000", "event": "total_step_duration", "duration_sec": 0.5}
    for number in (0, 1):
        (tmp_path / f"step_{number}").mkdir()
        text = json.dumps({**line, "workid": 0, "step": number}) + "\n"
        (tmp_path / f"step_{number}/worker_0.jsonl").write_text(text)
    assert ranked(tmp_path) == [0, 1]
