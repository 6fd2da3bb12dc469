"""`status` and `doctor` explain a missing file, and a file with too few records."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from sglang_instrument import flush, span, step, uninstall
from sglang_instrument.cli.main import main
from sglang_instrument.recording.safety.notices import notice


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def printed(capsys):
    def call(*arguments, code=0):
        assert main([str(argument) for argument in arguments]) == code
        return capsys.readouterr().out

    return call


@pytest.fixture
def tables(tmp_path):
    """A folder with a table, of whose two events one is found."""
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "mine.toml").write_text(
        """
        trainer = "mine"
        package = "pytest"
        module = "textwrap"

        [[patch]]
        target = "dedent"
        region = [{ event = "dedenting" }]

        [[patch]]
        target = "no_such_function"
        region = [{ event = "nothing" }]
        """
    )
    return folder


def record(*events):
    with step(1):
        for event in events:
            with span(event):
                pass
    assert flush(60)


def test_status_shows_a_row_a_process_with_what_it_recorded(install, printed):
    folder = install()
    record("parse", "parse")
    uninstall()
    out = printed("status", folder)
    assert str(folder) in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("worker_0")]
    assert row[:4] == ["worker_0", os.uname().nodename, str(os.getpid()), "running"]
    assert row[-3:] == ["2", "0", "0"]


def test_status_names_what_is_missing_and_why(install, printed, tables):
    folder = install(patches=str(tables), trainers="mine")
    record("parse")
    out = re.sub(r"\s+", " ", printed("status", folder))
    assert "1 of 2" in out
    assert (
        "nothing is missing in textwrap:no_such_function: textwrap has no no_such_function (worker_0)" in out
    )


def test_status_prints_the_notices_of_processes(install, printed):
    folder = install()
    notice("disk", "the disk is odd")
    notice("disk", "the disk is odd")
    record("parse")
    uninstall()
    assert "notice: the disk is odd (2 times, worker_0)" in printed("status", folder)


def test_status_in_json_has_the_whole_self_description(install, printed, tables):
    folder = install(patches=str(tables), trainers="mine", role="trainer")
    record("parse")
    answer = json.loads(printed("status", folder, "--json"))
    assert answer["folder"] == str(folder)
    (process,) = answer["processes"]
    assert process["process"] == "trainer_0"
    assert process["run_id"] == answer["run_id"]
    assert {patch["event"]: patch["state"] for patch in process["patches"]} == {
        "dedenting": "found",
        "nothing": "missing",
    }


def test_status_tells_a_process_that_ended_and_one_of_another_host(run_script, printed):
    ended = run_script(
        """
        import sglang_instrument
        sglang_instrument.install()
        with sglang_instrument.step(1), sglang_instrument.span("parse"):
            pass
        """
    )
    path = ended.folder / "processes/worker_0.json"
    (ended.folder / "processes/worker_1.json").write_text(
        json.dumps(json.loads(path.read_text()) | {"host": "elsewhere"})
    )
    answer = json.loads(printed("status", ended.folder, "--json"))
    assert [process["state"] for process in answer["processes"]] == ["ended", None]


def test_status_and_summary_answer_for_the_same_run_beside_a_server_that_outlives_it(run_script, printed):
    script = """
        import sglang_instrument
        sglang_instrument.install(role="{role}")
        with sglang_instrument.step({step}), sglang_instrument.span("{span}"):
            pass
        """
    server = run_script(script.format(role="server", step=100, span="server_generate"))
    older = json.loads(printed("status", server.folder, "--json"))
    assert [process["process"] for process in older["processes"]] == ["server_0"]
    run_script(script.format(role="worker", step=1, span="parse"))
    os.utime(server.folder / "processes/server_0.json")  # it goes on and describes itself again
    answer = json.loads(printed("status", server.folder, "--json"))
    assert [process["process"] for process in answer["processes"]] == ["worker_0"]
    assert answer["older"] == ["server_0"]
    steps = json.loads(printed("summary", server.folder, "--json"))["steps"]
    assert [step["step"] for step in steps] == [1]


def test_status_says_that_a_killed_process_may_have_recorded_more(start_script, printed):
    script = start_script(
        """
        import os, signal, sglang_instrument
        sglang_instrument.install()
        with sglang_instrument.step(1), sglang_instrument.span("parse"):
            pass
        sglang_instrument.flush(60)
        with sglang_instrument.step(1):
            for _ in range(1000):
                with sglang_instrument.span("parse"):
                    pass
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    script.wait(code=-signal.SIGKILL)
    (row,) = [line for line in printed("status", script.folder).splitlines() if line.startswith("worker_0")]
    assert re.search(r"ended .* at least [0-9,]+ +at least 0 +0$", row.rstrip())
    (process,) = json.loads(printed("status", script.folder, "--json"))["processes"]
    assert process["log_closed"] is False


def test_status_gives_the_counts_of_a_process_that_ended_as_they_are(run_script, printed):
    ended = run_script(
        """
        import sglang_instrument
        sglang_instrument.install()
        for _ in range(3):
            with sglang_instrument.step(1), sglang_instrument.span("parse"):
                pass
        """
    )
    (row,) = [line for line in printed("status", ended.folder).splitlines() if line.startswith("worker_0")]
    assert row.split()[-3:] == ["3", "0", "0"]
    assert "at least" not in row


def test_status_shows_the_newest_run_and_names_the_processes_of_earlier_ones(install, printed):
    folder = install(run_id="first", role="reward")
    record("parse")
    uninstall()
    install(run_id="second")
    record("parse")
    os.utime(folder / "processes/reward_0.json", (1, 1))
    out = printed("status", folder)
    assert "run second" in out
    assert "not shown, from other runs: reward_0" in out


def test_status_reads_on_past_a_file_that_is_no_json(install, printed):
    folder = install()
    record("parse")
    (folder / "processes/worker_7.json").write_text("{")
    out = printed("status", folder)
    assert "worker_0" in out
    assert "processes/worker_7.json cannot be read: " in out


def test_status_of_a_folder_without_processes_is_refused(tmp_path, capsys):
    (tmp_path / "step_1").mkdir()
    assert main(["status", str(tmp_path)]) == 2
    assert "processes/ holds no readable file" in capsys.readouterr().err


def test_a_killed_process_has_described_the_patches_since_its_first_record(run_script, printed, tables):
    killed = run_script(
        """
        import os, signal, sys
        import sglang_instrument

        sys.modules.pop("textwrap", None)
        sglang_instrument.install(patches=os.environ["TABLES"], trainers="mine")
        with sglang_instrument.step(1):
            with sglang_instrument.span("parse"):
                pass
            sglang_instrument.flush(60)
            import textwrap
        sglang_instrument.flush(60)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        code=-9,
        TABLES=str(tables),
    )
    assert "1 of 2" in printed("status", killed.folder)


def doctor(printed, *arguments, code=0):
    """Return the doctor's findings by their subject; of several, the last."""
    return {
        finding["about"]: finding
        for finding in json.loads(printed("doctor", "--json", *arguments, code=code))
    }


def test_doctor_finds_no_problem_on_a_good_machine(printed, log_dir, tables, monkeypatch):
    (tables / "mine.toml").write_text(
        (tables / "mine.toml").read_text().replace("no_such_function", "indent")
    )
    monkeypatch.setenv("SGLANG_INSTRUMENT_PATCHES", str(tables))
    monkeypatch.setenv("SGLANG_INSTRUMENT_TRAINERS", "mine")
    diagnoses = doctor(printed, "--log-dir", log_dir)
    assert diagnoses["folder"]["found"] == str(log_dir / "multiturn_log_dir")
    assert "(pytest " in diagnoses["patches"]["found"]
    assert diagnoses["patches"]["found"].endswith("2 of 2 events")
    assert not [about for about, diagnosis in diagnoses.items() if diagnosis["ok"] is False]


def test_doctor_leaves_nothing_behind_and_makes_nothing(printed, tmp_path, log_dir):
    printed("doctor", "--log-dir", log_dir, code=main(["doctor", "--log-dir", str(log_dir)]))
    assert list(tmp_path.iterdir()) == []


def test_doctor_names_the_events_that_would_be_missing(printed, log_dir, tables, monkeypatch):
    monkeypatch.setenv("SGLANG_INSTRUMENT_PATCHES", str(tables))
    monkeypatch.setenv("SGLANG_INSTRUMENT_TRAINERS", "mine")
    patches = doctor(printed, "--log-dir", log_dir, code=1)["patches"]
    assert patches["found"].endswith("1 of 2 events, without nothing")
    assert patches["todo"] == "`sglang-instrument patches check --trainer mine` shows why"


def test_doctor_says_that_no_trainer_is_here(printed, log_dir, tables, monkeypatch):
    (tables / "mine.toml").write_text(
        'trainer = "mine"\npackage = "no_such_package"\nmodule = "no_such_package.rollout"\n'
        '[[patch]]\ntarget = "run"\nregion = [{ event = "run" }]\n'
    )
    monkeypatch.setenv("SGLANG_INSTRUMENT_PATCHES", str(tables))
    monkeypatch.setenv("SGLANG_INSTRUMENT_TRAINERS", "mine")
    out = printed("doctor", "--log-dir", log_dir, code=1)
    assert re.search(r"^problem +patches +none of no_such_package is installed; ", out, re.MULTILINE)


def test_doctor_finds_a_folder_that_cannot_be_written(printed, log_dir):
    log_dir.write_text("a file")
    finding = doctor(printed, "--log-dir", log_dir, code=1)["writing"]
    assert finding["ok"] is False
    assert str(log_dir) in finding["found"]


def test_doctor_finds_settings_that_are_not_used(printed, log_dir, monkeypatch):
    monkeypatch.setenv("SGLANG_INSTRUMENT_DETAIL", "everything")
    finding = doctor(printed, "--log-dir", log_dir, code=1)["setting"]
    assert finding["ok"] is False
    assert "'everything' is not allowed" in finding["found"]


def test_doctor_names_a_table_that_cannot_be_read(printed, log_dir, tables, monkeypatch):
    (tables / "mine.toml").write_text("trainer = 3\n")
    monkeypatch.setenv("SGLANG_INSTRUMENT_PATCHES", str(tables))
    assert "mine.toml" in doctor(printed, "--log-dir", log_dir, code=1)["patches"]["found"]


def test_doctor_imports_neither_a_trainer_nor_polars_and_rich(run_script):
    run_script(
        f"""
        import sys
        from sglang_instrument.cli.main import main
        main(["doctor"])
        heavy = {{"sglang", "torch", "verl", "polars", "rich"}} & sys.modules.keys()
        assert not heavy, heavy
        assert sys.prefix == {sys.prefix!r}
        """
    )


def test_both_commands_explain_themselves_on_one_screen(printed):
    for command in ("status", "doctor"):
        shown = printed(command, "--help")
        assert f"sglang-instrument {command}" in shown
        assert len(shown.splitlines()) <= 24


def test_the_folder_of_status_is_given_or_refused(capsys, tmp_path):
    assert main(["status"]) == 2
    assert main(["status", str(Path(tmp_path) / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


#: A process that ends at once may end before the disk's thread has written: wait for the file.
WAIT_FOR_REACHED = "import pathlib, time; reached = pathlib.Path(sglang_instrument.status()['folder'])\n" + (
    "        while not list(reached.glob('processes/reached/*.json')): time.sleep(0.01)"
)


def test_status_lists_a_process_that_was_reached_and_recorded_nothing(run_script, printed, tables):
    reached = run_script(
        f"""
        import os, sys, sglang_instrument
        sys.modules.pop("textwrap", None)
        sglang_instrument.install(patches=os.environ["TABLES"], trainers="mine")
        import textwrap
        {WAIT_FOR_REACHED}
        """,
        TABLES=str(tables),
    )
    out = re.sub(r"\s+", " ", printed("status", reached.folder))
    assert "reached" in out
    assert "1 of 2" in out
    assert "nothing is missing in textwrap:no_such_function: textwrap has no no_such_function" in out
    (process,) = json.loads(printed("status", reached.folder, "--json"))["processes"]
    assert process["role"] is None
    assert [patch["state"] for patch in process["patches"]] == ["found", "missing"]


def test_the_thread_that_describes_a_reached_process_ends_after_it(run_script, tables):
    run_script(
        f"""
        import os, sys, threading, sglang_instrument
        sys.modules.pop("textwrap", None)
        sglang_instrument.install(patches=os.environ["TABLES"], trainers="mine")
        import textwrap
        {WAIT_FOR_REACHED}
        for thread in [t for t in threading.enumerate() if t.name == "sglang_instrument-reached"]:
            thread.join(600)
            assert not thread.is_alive()
        """,
        TABLES=str(tables),
    )


def test_status_shows_a_process_once_that_was_reached_and_then_recorded(run_script, printed, tables):
    recorded = run_script(
        f"""
        import os, sys, sglang_instrument
        sys.modules.pop("textwrap", None)
        sglang_instrument.install(patches=os.environ["TABLES"], trainers="mine")
        import textwrap
        with sglang_instrument.step(1):
            textwrap.dedent("x")
        {WAIT_FOR_REACHED}
        """,
        TABLES=str(tables),
    )
    assert list((recorded.folder / "processes/reached").iterdir())
    processes = json.loads(printed("status", recorded.folder, "--json"))["processes"]
    assert [process["process"] for process in processes] == ["worker_0"]
