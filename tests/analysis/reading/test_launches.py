"""Ranks of one launch are one run, whatever ids they made; two launches are two runs, whatever they share."""

import os
from datetime import datetime, timezone

import msgspec
import pytest

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.reading.launches import at_once, launches_in
from sglang_instrument.analysis.run.logged_runs import describe_runs, find_run_id, runs_of_trainers
from sglang_instrument.cli.main import main

MASTER = "master 10.0.0.1:29500"


def control(name, time_us, **extra):
    return {"timestamp": stamp(time_us), "event": name, "extra": extra}


def stamp(time_us):
    moment = datetime.fromtimestamp(1_767_322_800 + time_us / 1e6, timezone.utc)
    return moment.isoformat(timespec="microseconds")


def write(folder, run_id, rank, begin_sec, *, steps=(1, 2), key=MASTER, launcher=None, ended=True):
    """Write what one rank of a launch records: steps of ten seconds."""
    step_sec = 10
    facts = {"launch": key, "launcher": launcher or f"{run_id}:1:2", "rank": rank} if key else {}
    for number, step in enumerate(steps):
        at_us = int((begin_sec + number * step_sec) * 1e6)
        path = folder / f"step_{step}" / f"worker_{rank}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        end_us = at_us + int(step_sec * 1e6) - 1
        span = {
            "timestamp": stamp(end_us),
            "event": "total_step_duration",
            "duration_sec": step_sec - 1,
            "workid": rank,
            "step": step,
            "start_us": at_us,
            "task": 0,
        }
        records = [
            control("log_opened", at_us, log_version=1, run_id=run_id, pid=100 + rank, host="h", **facts),
            span,
            control("step_closed", end_us, written=1, dropped=0, sampled_out=0),
        ]
        if ended and number == len(steps) - 1:
            records.append(control("log_closed", end_us))
        with path.open("ab") as file:
            file.write(msgspec.json.Encoder().encode_lines(records))
        os.utime(path, (1_767_323_000, 1_767_323_000))  # before all of them: only control records count


def workers_of(run):
    return sorted(set(run.digest.steps["worker"].to_list()))


def test_ranks_with_ids_of_their_own_and_one_launcher_are_one_run(tmp_path):
    for rank in range(4):
        write(tmp_path, f"run-{rank}", rank, rank * 0.1, launcher="h:7:1")
    run = open_run(tmp_path)
    assert workers_of(run) == [0, 1, 2, 3]
    assert run.health.runs == ["run-0"]
    assert (run.health.older, run.health.at_once) == ({}, [])
    assert run.name == str(tmp_path)
    assert workers_of(open_run(f"{tmp_path}@run-2")) == [0, 1, 2, 3]


def test_two_nodes_with_one_master_that_run_at_the_same_time_are_one_run(tmp_path):
    for rank in range(4):
        write(tmp_path, f"node-{rank // 2}", rank, rank * 0.5)
    run = open_run(tmp_path)
    assert workers_of(run) == [0, 1, 2, 3]
    assert (run.health.records, run.health.older) == (8, {})


def test_the_same_rank_twice_is_a_restart(tmp_path):
    for rank in (0, 1):
        write(tmp_path, f"first-{rank}", rank, 0, steps=(1, 2, 3), launcher="h:7:1", ended=False)
        write(tmp_path, f"again-{rank}", rank, 30, steps=(3, 4), launcher="h:7:1")
    run = open_run(tmp_path)
    assert runs_of_trainers(run.files) == ["first-0", "again-0"]
    assert sorted(run.digest.steps.select("step", "worker").rows()) == [
        (step, worker) for step in (1, 2, 3, 4) for worker in (0, 1)
    ]
    assert run.health.older == {"first-0": 1, "first-1": 1}
    assert "older runs" in run.health.sentence()


def test_two_launches_with_one_key_that_do_not_overlap_are_two_runs(tmp_path):
    write(tmp_path, "first", 0, 0)
    write(tmp_path, "second", 1, 100)
    assert [launch.runs for launch in launches_in(open_run(tmp_path).files)] == [["first"], ["second"]]
    assert describe_runs(open_run(tmp_path).files) == "run second, the newest of 2"


@pytest.mark.parametrize("keys", [(MASTER, "master other:29500"), (None, None)])
def test_launches_of_different_keys_that_overlap_are_named_as_that_and_never_older(tmp_path, keys, capsys):
    write(tmp_path, "mine", 0, 0, key=keys[0])
    write(tmp_path, "theirs", 0, 5, key=keys[1])
    run = open_run(tmp_path)
    assert at_once(run.files.all_launches) == run.health.at_once == ["mine", "theirs"]
    assert "2 launches wrote here at the same time (mine, theirs), so 2 records" in run.health.sentence()
    assert "EXPERIMENT_NAME" in run.health.sentence()
    assert "one of 2 launches that write here at the same time" in run.name
    main(["check", str(tmp_path)])
    assert "older" not in capsys.readouterr().out


def test_a_run_that_follows_another_one_does_not_overlap_it(tmp_path):
    write(tmp_path, "mine", 0, 0, key=None, ended=False)
    write(tmp_path, "theirs", 0, 100, key=None)
    run = open_run(tmp_path)
    assert run.health.at_once == []
    assert find_run_id(tmp_path, run.files, "mi") == "mine"
