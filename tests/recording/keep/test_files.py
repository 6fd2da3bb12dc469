"""Whatever the disk does, training continues, one notice names the problem, and lost records are counted."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import hanging_open
import pytest
import small_disks
from awaited import wait_for
from logged import read_records, recorded_events

import sglang_instrument
from sglang_instrument import bind, event, flush, span, step
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.recording.keep import files
from sglang_instrument.recording.safety import notices


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of 64 KiB."""
    with small_disks.small_disk(tmp_path / "small", "64k") as folder:
        yield folder
        sglang_instrument.uninstall()


@pytest.fixture
def hanging_file(monkeypatch):
    """Opening the file of step 1 blocks until the test is over."""
    monkeypatch.setattr(os, "open", os.open)  # restored afterwards
    answers = hanging_open.until_it_answers()
    yield
    answers.set()


def rollout(steps, events=3):
    for number in steps:
        with step(number), span("total_step_duration"):
            for index in range(events):
                event("did", index=index)


def noticed():
    return [notice["notice"] for notice in notices.noticed()]


def test_each_step_of_each_worker_has_its_file_with_a_beginning_and_an_end(install):
    folder = install()
    for worker in (0, 3):
        with bind(worker=worker):
            rollout([1, 2])
    with bind(validate=True):
        rollout([2])
    event("nowhere")
    sglang_instrument.uninstall()
    files = read_records(folder)
    assert sorted(files) == [
        "step_0/worker_0.jsonl",
        "step_1/worker_0.jsonl",
        "step_1/worker_3.jsonl",
        "step_2/worker_0.jsonl",
        "step_2/worker_3.jsonl",
        "validate_2/worker_0.jsonl",
    ]
    for path, records in files.items():
        assert records[0]["event"] == "log_opened"
        if path != "step_0/worker_0.jsonl":  # without a bound step
            (closed,) = [record for record in records if record["event"] == "step_closed"]
            assert closed["extra"] == {"written": 4, "dropped": 0, "sampled_out": 0}
    assert all(record["validate"] for record in recorded_events(files["validate_2/worker_0.jsonl"]))
    assert noticed() == [notice for notice in noticed() if "without a bound step" in notice]


def test_a_missing_log_folder_is_made_when_the_first_record_is_written(install, log_dir):
    folder = install()
    time.sleep(0.12)
    assert not log_dir.exists()
    rollout([1])
    sglang_instrument.uninstall()
    assert len(recorded_events(read_records(folder)["step_1/worker_0.jsonl"])) == 4


def test_a_log_folder_that_is_a_file_costs_the_records_and_one_notice(install, log_dir):
    log_dir.write_text("I am a file")
    install()
    rollout(range(5))
    assert sglang_instrument.flush(600)
    assert sglang_instrument.status()["records"]["dropped"] == 20
    assert len(noticed()) == 1
    assert "they are dropped and counted, training goes on" in noticed()[0]
    sglang_instrument.uninstall()


def test_a_read_only_disk_costs_the_records_and_one_notice(small_disk, install):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    install(log_dir=str(small_disk))
    rollout(range(5))
    assert sglang_instrument.flush(600)
    assert sglang_instrument.status()["records"]["dropped"] == 20
    assert len(noticed()) == 1
    assert "Read-only file system" in noticed()[0]


def test_a_disk_that_becomes_writable_again_gets_what_comes_from_then_on(small_disk, install):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    folder = install(log_dir=str(small_disk))
    rollout([1])
    assert sglang_instrument.flush(600)
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    rollout([1])
    sglang_instrument.uninstall()
    records = read_records(folder)["step_1/worker_0.jsonl"]
    assert len(recorded_events(records)) == 4
    (closed,) = [record for record in records if record["event"] == "step_closed"]
    assert closed["extra"]["dropped"] == 4


def test_a_full_disk_keeps_what_fits_and_loses_no_file_descriptor(small_disk, install):
    folder = install(log_dir=str(small_disk))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        rollout([1], events=49)
        assert sglang_instrument.flush(600)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
    counts = sglang_instrument.status()["records"]
    assert counts["recorded"] == 20 * 50
    assert counts["waiting"] == 0
    lines = (folder / "step_1" / "worker_0.jsonl").read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n") and line.startswith(b"{") and line[-2:-1] == b"}"]
    written = [line for line in whole if b'"did"' in line or b'"total_step_duration"' in line]
    assert len(written) == counts["recorded"] - counts["dropped"] > 50
    assert len([text for text in noticed() if "No space left on device" in text]) == 1


def test_a_disk_that_has_room_again_goes_on_in_the_same_file_on_a_line_of_its_own(small_disk, install):
    folder = install(log_dir=str(small_disk))
    rollout([1], events=50)
    assert sglang_instrument.flush(600)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096) == 4096:
                pass
        except OSError:
            pass
    rollout([1], events=500)  # more than fits into the file's last page
    assert sglang_instrument.flush(600)
    dropped = sglang_instrument.status()["records"]["dropped"]
    assert 0 < dropped <= 501
    filler.unlink()
    rollout([1], events=20)
    sglang_instrument.uninstall()
    text = (folder / "step_1" / "worker_0.jsonl").read_bytes()
    assert text.endswith(b"\n")
    torn = [line for line in text.splitlines() if not line.endswith(b"}")]
    assert len(torn) <= 1
    assert (
        text.count(b'"event":"did"')
        + text.count(b'"event":"total_step_duration"')
        - (1 if torn and (b'"event":"did"' in torn[0] or b'"event":"total' in torn[0]) else 0)
        == 51 + 501 + 21 - dropped
    )


@pytest.mark.parametrize("deleted", ["step_1/worker_0.jsonl", "step_1", "."])
def test_a_file_deleted_while_it_is_written_is_made_again(install, deleted):
    folder = install()
    with step(1):
        event("before")
        assert sglang_instrument.flush(600)
        target = folder / deleted
        target.unlink() if target.is_file() else shutil.rmtree(target)
        event("after")
    sglang_instrument.uninstall()
    records = read_records(folder)["step_1/worker_0.jsonl"]
    assert [record["event"] for record in records] == ["log_opened", "after", "step_closed", "log_closed"]
    assert len(noticed()) == 1
    assert "was deleted while it was open" in noticed()[0]


def test_a_hanging_disk_blocks_flush_and_uninstall_for_two_seconds_at_most(install, hanging_file):
    install()
    rollout([1], events=5_000)
    assert not sglang_instrument.flush(0.3)
    rollout([2])
    sglang_instrument.uninstall()  # returns, although the disk never answers
    (notice,) = noticed()
    assert notice.startswith("5005 records were not written within 2 s")


def test_a_process_whose_disk_hangs_ends(start_script):
    script = start_script(
        """
        import hanging_open
        import sglang_instrument as si
        hanging_open.until_it_answers()
        si.install()
        with si.step(1):
            for index in range(5_000):
                si.event("did", index=index)
        print("done")
    """,
        PYTHONPATH=str(Path(__file__).parents[2] / "support"),
    )
    script.wait(timeout=600)
    assert "records were not written within 2 s" in script.stderr


def test_the_end_of_a_line_that_a_kill_tore_is_not_joined_with_the_next(install, log_dir):
    path = log_dir / "run" / "step_1" / "worker_0.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"event":"whole"}\n{"event":"to')
    folder = install()
    rollout([1])
    sglang_instrument.uninstall()
    first, torn, opened, *rest = path.read_text().splitlines()
    assert (first, torn) == ('{"event":"whole"}', '{"event":"to')
    assert '"event":"log_opened"' in opened
    assert '"reopened":true' in opened
    assert len(rest) == 4 + 2
    assert folder == log_dir / "run"


def test_a_run_resumed_at_an_earlier_step_appends_with_an_id_of_its_own(install):
    for steps in ([1, 2], [2, 3]):
        folder = install()
        rollout(steps)
        sglang_instrument.uninstall()
    files = read_records(folder)
    opened = {
        path: [record["extra"] for record in records if record["event"] == "log_opened"]
        for path, records in files.items()
    }
    first, second = opened["step_2/worker_0.jsonl"]
    assert "reopened" not in first
    assert second["reopened"] is True
    assert first["run_id"] == opened["step_1/worker_0.jsonl"][0]["run_id"]
    assert second["run_id"] == opened["step_3/worker_0.jsonl"][0]["run_id"] != first["run_id"]


def test_files_of_overlapping_steps_are_never_more_than_16_and_late_records_reopen_them(install):
    folder = install()
    blocks = [step(number) for number in range(40)]
    for block in blocks:
        with block:
            event("early")
    assert sglang_instrument.flush(600)
    assert len(_open_logs(folder)) <= 16
    for number in range(40):
        with step(number):
            event("late")
    sglang_instrument.uninstall()
    assert _open_logs(folder) == []
    for records in read_records(folder).values():
        assert [record["event"] for record in recorded_events(records)] == ["early", "late"]


def test_the_file_of_an_ended_step_is_closed_when_two_newer_ones_were_seen(install):
    folder = install()
    for number in range(1, 8):
        rollout([number])
        assert sglang_instrument.flush(600)
        assert len(_open_logs(folder)) <= 3
    assert folder / "step_7" / "worker_0.jsonl" in _open_logs(folder)


def test_a_step_in_which_something_still_runs_stays_open_and_is_closed_once(install):
    folder = install()
    with step(1):
        with step(2), step(1):
            event("inner")
        rollout([3, 4, 5])
        assert sglang_instrument.flush(600)
        assert [record["event"] for record in read_records(folder)["step_1/worker_0.jsonl"]][1:] == ["inner"]
        event("outer")
    sglang_instrument.uninstall()
    events = [record["event"] for record in read_records(folder)["step_1/worker_0.jsonl"]]
    assert events == ["log_opened", "inner", "outer", "step_closed"]


def test_a_step_that_ends_several_times_says_its_counts_so_far_and_is_read_as_one(install):
    folder = install(sample_requests=0.5)
    for request in range(40):  # one after another, as requests of one step of an asynchronous trainer
        with step(1), bind(request_id=f"r{request}"), span("async_rollout_request_complete"):
            event("did")
        assert sglang_instrument.flush(600)
    sglang_instrument.uninstall()
    records = read_records(folder)["step_1/worker_0.jsonl"]
    counts = [record["extra"] for record in records if record["event"] == "step_closed"]
    assert len(counts) > 1
    assert [said["written"] for said in counts] == sorted(said["written"] for said in counts)
    # Of the 16 requests that are not drawn, those slower than all before are kept: all of them once in 16!.
    assert 0 < counts[-1]["sampled_out"] < 80
    assert counts[-1]["written"] == len(recorded_events(records))
    run = Run.open(folder, cached=False)
    assert (run.health.records, run.health.sampled_out) == (
        len(recorded_events(records)),
        counts[-1]["sampled_out"],
    )
    assert run.health.unclosed == []
    assert run.steps == [1]


@pytest.mark.parametrize("setting", ["NEWS_EVERY_SEC", "QUIET_SEC"])
def test_a_process_without_steps_says_anew_how_much_it_recorded(install, monkeypatch, setting):
    monkeypatch.setattr(files, setting, 0.05)
    folder = install(role="server")
    for _ in range(3):
        event("engine_request")
        assert sglang_instrument.flush(600)
    path = folder / "processes/server_0.json"
    wait_for(lambda: _recorded(path) == 3, "its file says nothing of what came after the first record", 0.02)


def _recorded(path):
    return json.loads(path.read_text())["records"]["recorded"]


def test_a_role_that_is_no_file_name_never_leaves_the_folder(install, log_dir):
    install()
    with bind(role="../../../elsewhere", step=1):
        event("did")
    sglang_instrument.uninstall()
    (path,) = log_dir.rglob("*.jsonl")
    assert path.parent == log_dir / "run" / "step_1"


def test_the_self_description_of_the_process_is_in_its_own_file(install):
    folder = install(role="trainer")
    with bind(worker=5, step=1):
        event("did")
    sglang_instrument.uninstall()
    (path,) = (folder / "processes").iterdir()
    assert path.name == "trainer_5.json"
    described = json.loads(path.read_text())
    assert (described["role"], described["rank"], described["pid"]) == ("trainer", 5, os.getpid())
    assert described["records"] == {"recorded": 1, "waiting": 0, "changed": 0, "sampled_out": 0, "dropped": 0}


def _open_logs(folder):
    logs = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = link.readlink()
        except OSError:  # the descriptor that lists the folder
            continue
        if target.suffix == ".jsonl" and folder in target.parents:
            logs.append(target)
    return sorted(logs)


def test_a_file_that_reuses_our_closed_descriptor_gets_no_records(install, tmp_path, records_below):
    folder = install()
    with step(1), span("first"):
        pass
    assert flush(600)
    path = folder / "step_1/worker_0.jsonl"
    descriptors = Path("/proc/self/fd")
    [ours] = [int(link.name) for link in descriptors.iterdir() if link.exists() and link.samefile(path)]
    os.close(ours)
    theirs = os.open(tmp_path / "checkpoint", os.O_WRONLY | os.O_CREAT)
    if theirs != ours:  # another thread got the number first: take it over
        os.dup2(theirs, ours)
        os.close(theirs)
    try:
        with step(1), span("second"):
            pass
        assert flush(600)
        os.write(ours, b"whole")
    finally:
        os.close(ours)
    assert (tmp_path / "checkpoint").read_bytes() == b"whole"
    written = [record["event"] for record in records_below(folder)["step_1/worker_0.jsonl"]]
    assert [event for event in written if event in ("first", "second")] == ["first", "second"]
