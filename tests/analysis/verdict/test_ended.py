"""After a run that ended in the middle of a step, the worker that stopped logging first is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_instrument.analysis import Finding, findings_of, open_run
from sglang_instrument.analysis.verdict.verdict import Verdict, judge, verdict_of
from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run
from sglang_instrument.testing.causes.kill import kill_worker

LAST = 5  # step


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return synthetic_run(tmp_path / "exp", steps=LAST, workers=3, requests=8)


def kill(folder: Path, lines_of: dict[int, int]) -> None:
    """Keep only the first lines of each worker of the last step, as after a kill."""
    for worker, lines in lines_of.items():
        path = folder / f"step_{LAST}" / f"worker_{worker}.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


def describe(folder: Path, worker: int, pid: int) -> None:
    """Write the self-description of a process of a synthetic run."""
    (folder / "processes").mkdir(exist_ok=True)
    facts = {"run_id": "synthetic-0", "host": os.uname().nodename, "pid": pid}
    (folder / "processes" / f"worker_{worker}.json").write_text(json.dumps(facts))


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def deaths(folder: Path, over: bool) -> list[tuple[int, int]]:
    run = open_run(folder)
    return [(finding.step, finding.worker) for finding in findings_of(run, over) if finding.cause == "death"]


def not_drawn(findings: list[Finding]) -> list[Finding]:
    """Return the findings without replies that were long by chance."""
    return [finding for finding in findings if not finding.evidence.get("drawn")]


def test_the_worker_that_fell_silent_first_is_named(folder: Path) -> None:
    kill(folder, {0: 160, 1: 60, 2: 200})
    (finding,) = not_drawn(findings_of(open_run(folder), over=True))
    assert (finding.cause, finding.step, finding.worker) == ("death", LAST, 1)
    assert "worker 1 was the first to stop logging" in finding.sentence
    assert [row["worker"] for row in finding.evidence["workers"]] == [0, 1, 2]


def test_of_a_run_that_goes_on_nobody_is_said_to_have_died(folder: Path) -> None:
    kill(folder, {0: 160, 1: 60, 2: 200})
    assert deaths(folder, over=False) == []


def judged_after(folder: Path, share: float, ahead_sec: float, over: bool = True) -> Verdict:
    """Return the verdict after worker 2 of 4 dies in step 3, and the others some seconds later."""
    synthetic_run(folder, steps=4, workers=4, requests=16)
    kill_worker(folder, 3, 2, share, ahead_sec)
    return judge(open_run(folder), over)


def found_after(folder: Path, share: float, ahead_sec: float, over: bool = True) -> list[Finding]:
    return not_drawn(judged_after(folder, share, ahead_sec, over).findings)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.95])
def test_the_one_that_is_dead_is_told_from_those_that_wait_for_it(tmp_path: Path, share: float) -> None:
    (finding,) = found_after(tmp_path, share, 80.0)
    assert (finding.cause, finding.step, finding.worker) == ("death", 3, 2)
    assert finding.evidence["ahead_sec"] > 20


def test_where_all_others_were_done_the_one_at_work_is_named(tmp_path: Path) -> None:
    (finding,) = found_after(tmp_path, 0.95, 0.0)
    assert (finding.cause, finding.step, finding.worker) == ("death", 3, 2)
    assert "had completed 15 requests, the others 16; silent after request 3-2-" in finding.sentence


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_where_all_are_killed_at_once_nobody_is_accused(tmp_path: Path, share: float) -> None:
    verdict = judged_after(tmp_path, share, 0.0)
    assert not_drawn(verdict.findings) == []
    assert verdict.sentence.startswith("the run ended in step 3, and the log does not")


def test_a_worker_that_was_killed_before_its_first_record_is_missed(folder: Path) -> None:
    """It looks like a worker whose first reply takes long: it is mentioned, but gets no blame."""
    kill(folder, {0: 60, 2: 60})
    (folder / f"step_{LAST}" / "worker_1.jsonl").unlink()
    verdict = judge(open_run(folder), over=True)
    assert "death" not in {finding.cause for finding in verdict.findings}
    assert "the others; worker 1 wrote nothing in it" in verdict.sentence


def test_a_step_that_goes_on_for_long_is_no_hang(tmp_path: Path) -> None:
    """Its step and requests were reported as open after 30 s, which such requests take."""
    assert found_after(tmp_path, 0.8, 0.0, over=False) == []


def test_in_a_run_that_goes_on_the_one_that_others_wait_for_is_named(tmp_path: Path) -> None:
    (finding,) = found_after(tmp_path, 0.8, 40.0, over=False)
    assert (finding.cause, finding.step, finding.worker) == ("hang", 3, 2)
    assert "worker 2 kept 3 other workers waiting" in finding.sentence


def test_a_run_that_ended_as_it_should_has_no_deaths(folder: Path) -> None:
    assert deaths(folder, over=True) == []


def test_a_torn_file_in_the_middle_of_a_run_is_no_death(folder: Path) -> None:
    path = folder / "step_2" / "worker_1.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:60]))
    assert deaths(folder, over=True) == []


def test_of_those_whose_barrier_ended_with_an_exception_nobody_had_met(folder: Path) -> None:
    """As on Ray: the survivor's wait raises, and it closes the step on its way out."""
    kill(folder, {1: 60})
    for worker in (0, 2):
        path = folder / f"step_{LAST}" / f"worker_{worker}.jsonl"
        path.write_text("".join(map(failed_at_the_barrier, path.read_text().splitlines(keepends=True))))
    (finding,) = not_drawn(findings_of(open_run(folder), over=True))
    assert (finding.cause, finding.step, finding.worker) == ("death", LAST, 1)


def failed_at_the_barrier(line: str) -> str:
    record = json.loads(line)
    if record["event"] == "barrier_wait_duration":
        record["error"] = "RayActorError"
    return json.dumps(record) + "\n"


def test_a_clock_that_is_ahead_hides_nobody(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=LAST, workers=3, requests=8, clock_skew={1: 500.0})
    kill(folder, {0: 160, 1: 60, 2: 200})
    assert deaths(folder, over=True) == [(LAST, 1)]


def test_a_run_is_over_when_its_workers_are_gone(folder: Path) -> None:
    describe(folder, 0, dead_pid())
    assert open_run(folder).is_over


def test_a_worker_that_has_ended_and_that_nobody_asked_about_is_gone(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        describe(folder, 0, child.pid)
        assert open_run(folder).is_over


def test_a_run_is_not_over_while_a_worker_lives(folder: Path) -> None:
    describe(folder, 0, dead_pid())
    describe(folder, 1, os.getpid())
    assert not open_run(folder).is_over


def test_a_run_of_other_hosts_is_over_after_two_silent_minutes(folder: Path) -> None:
    assert not open_run(folder).is_over
    for path in folder.rglob("*.jsonl"):
        os.utime(path, (1, 1))
    assert open_run(folder).is_over


def test_check_names_the_worker_that_stopped_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kill(folder, {0: 160, 1: 60, 2: 200})
    describe(folder, 0, dead_pid())
    assert main(["check", str(folder)]) == 1
    assert "worker 1 was the first to stop logging" in " ".join(capsys.readouterr().out.split())
    assert main(["check", str(folder), "--json"]) == 1
    (death,) = json.loads(capsys.readouterr().out)["deaths"]
    assert (death["step"], death["worker"]) == (LAST, 1)


def test_a_run_without_plateaus_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gaps", str(folder)]) == 0
    assert "exp: no plateau" in " ".join(capsys.readouterr().out.split())


def test_a_torn_closing_line_is_no_end_of_the_run_where_others_closed_the_step(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=3, workers=3, requests=8)
    path = folder / "step_3" / "worker_1.jsonl"
    path.write_bytes(path.read_bytes().rpartition(b'"event":"step_closed"')[0])
    assert not verdict_of(open_run(folder), over=True).startswith("the run ended")
