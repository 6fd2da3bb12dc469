"""`watch --once` prints what is known now, and its exit code says whether something hangs."""

import json
import os

import pytest
from live_writer import LiveRun

from sglang_instrument.cli.main import main
from sglang_instrument.testing import Hang, synthetic_run


def test_a_finished_run_is_shown_at_its_end(tmp_path, capsys):
    logs = synthetic_run(tmp_path / "exp", steps=3, workers=2, requests=4)
    assert main(["watch", str(logs), "--once"]) == 0
    out = capsys.readouterr().out
    assert "step 3 took" in out
    assert "8 of 8 requests done" in out
    assert "ended:" in out
    assert "the last steps" in out


def test_json_has_the_snapshot(tmp_path, capsys):
    logs = synthetic_run(tmp_path / "exp", steps=3, workers=2, requests=4)
    assert main(["watch", str(logs), "--once", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["step"]["step"] == 3
    assert [step["step"] for step in answer["done"]] == [1, 2, 3]
    assert {total["role"] for total in answer["totals"]} == {"worker"}
    assert answer["waiting"] is None


def test_a_hang_ends_with_3(tmp_path, capsys):
    logs = synthetic_run(tmp_path / "exp", steps=3, workers=2, requests=4, causes=[Hang(3, 1)])
    assert main(["watch", str(logs), "--once"]) == 3
    assert "worker 1" in capsys.readouterr().out


def test_a_run_that_is_not_there_yet_is_waited_for(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "none"), "--once"]) == 0
    assert "no such folder yet" in capsys.readouterr().out


def test_a_folder_of_runs_means_the_newest(tmp_path, capsys):
    for number, name in enumerate(("old", "new")):
        run = LiveRun(tmp_path / name)
        run.open(number + 1, 0).request("a", time_sec=1, duration_sec=1)
        os.utime(run.folder / f"step_{number + 1}", (1e9 + number, 1e9 + number))
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "step 2" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "said"), [(["--json"], "add --once"), ([], "--once prints")])
def test_what_cannot_be_done_is_said(tmp_path, capsys, arguments, said):
    assert main(["watch", str(tmp_path), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_one_of_several_runs_in_a_folder_is_shown_by_the_begin_of_its_id(tmp_path, capsys):
    first = LiveRun(tmp_path / "exp", "first-1")
    second = LiveRun(first.folder, "second-2", begin_us=first.begin_us + 100_000_000)
    for run, requests in ((first, 1), (second, 3)):
        file = run.open(1, 0)
        for number in range(requests):
            file.request(f"r{number}", time_sec=2, duration_sec=1)
        file.close(3)
    for asked, run_id, requests in (
        ("@fir", "first-1", 1),
        ("@second-2", "second-2", 3),
        ("", "second-2", 3),
    ):
        assert main(["watch", f"{first.folder}{asked}", "--once", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["run_id"], answer["step"]["requests_done"]) == (run_id, requests)
        [done] = answer["done"]
        assert (done["run_id"], done["requests"], done["scalars"]["requests"]) == (run_id, requests, requests)
    assert main(["watch", f"{first.folder}@none", "--once"]) == 0
    assert "no records of run none yet" in capsys.readouterr().out
