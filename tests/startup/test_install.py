"""After install() and uninstall() in any order, at any time, the last call decides; nothing is left over."""

import contextlib
import io
import itertools
import os
import sys

import pytest
from awaited import wait_for
from logged import our_threads, read_records, recorded_events

import sglang_instrument
from sglang_instrument import bind, event, span, step
from sglang_instrument.recording.measure import scopes, spans
from sglang_instrument.recording.measure.spans import OFF, OPEN
from sglang_instrument.recording.safety import notices


@pytest.mark.parametrize("actions", list(itertools.product(["install", "uninstall", "record"], repeat=4)))
def test_after_any_order_of_install_and_uninstall_the_last_call_decides(install, log_dir, actions):
    expected, wanted = 0, False
    environment = dict(os.environ)
    for action in actions:
        if action == "install":
            install()
            wanted = True
        elif action == "uninstall":
            sglang_instrument.uninstall()
            wanted = False
        else:
            with step(1):
                event("did")
            expected += wanted
        assert sglang_instrument.installed() is wanted
    sglang_instrument.uninstall()
    assert len(recorded_events(read_records(log_dir / "run").get("step_1/worker_0.jsonl", []))) == expected
    assert spans.current_buffer() is OFF
    assert dict(os.environ) == environment
    wait_for(lambda: not our_threads(), our_threads, every_sec=0.005)


def test_a_second_install_changes_nothing(install, capsys):
    folder = install()
    run_id = sglang_instrument.status()["run_id"]
    sglang_instrument.install(experiment="other")
    assert str(folder) == sglang_instrument.status()["folder"]
    assert sglang_instrument.status()["run_id"] == run_id
    assert capsys.readouterr().err.count("sglang_instrument 0.") == 1


def test_install_says_one_line_where_a_person_sees_it(install, capsys):
    folder = install()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sglang_instrument {sglang_instrument.__version__}: ")
    assert line.endswith(f" -> {folder}")


def test_install_says_at_once_that_runs_without_a_name_share_a_folder(log_dir, capsys, monkeypatch):
    monkeypatch.delenv("EXPERIMENT_NAME", raising=False)
    sglang_instrument.install(log_dir=log_dir)
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "multiturn_log_dir; the experiment has no name (EXPERIMENT_NAME): all such runs share this folder"
        in line
    )
    sglang_instrument.uninstall()
    sglang_instrument.install(log_dir=log_dir, experiment="gsm8k")
    assert "EXPERIMENT_NAME" not in capsys.readouterr().err


def test_install_names_a_table_of_sources_on_a_path_of_which_no_installation_knows(
    install, tmp_path, monkeypatch, capsys
):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/mine_on_a_path.py").write_text("def generate(): pass")
    (tmp_path / "mine_on_a_path").mkdir()
    table = tmp_path / "mine.toml"
    table.write_text(
        'trainer = "mine"\npackage = "mine"\nmodule = "mine_on_a_path"\n'
        '[[patch]]\ntarget = "generate"\nregion = [{ event = "total_step_duration" }]\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))  # if only a folder has that name
    install(patches=[str(tmp_path)])
    assert str(table) not in capsys.readouterr().err  # its trainer is not installed here
    sglang_instrument.uninstall()
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    install(patches=[str(tmp_path)])
    assert f"{table}: 1 of 1 events" in capsys.readouterr().err


def test_only_the_first_rank_prints_the_line_of_install(install, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    install()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("", "multiturn_log_dir"),
        ("../../x", "_.._x-422533a8"),
        ("a/b", "a_b-07f4401c"),
        ("a\nb", "a_b-ef0790fb"),
        ("x" * 300, "x" * 221 + "-1b432d13"),
    ],
)
def test_an_experiment_without_a_usable_name_is_recorded_under_another(monkeypatch, log_dir, name, folder):
    monkeypatch.setenv("EXPERIMENT_NAME", name)
    sglang_instrument.install(log_dir=log_dir)
    with step(1):
        event("did")
    sglang_instrument.uninstall()
    assert list(read_records(log_dir.parent)) == [f"logs/{folder}/step_1/worker_0.jsonl"]
    (notice,) = notices.noticed()
    assert "cannot be a folder's name" in notice["notice"]


@pytest.mark.parametrize("stderr", [None, "closed"])
def test_install_works_where_there_is_no_standard_error(install, monkeypatch, stderr):
    if stderr == "closed":
        stderr = io.StringIO()
        stderr.close()
    monkeypatch.setattr(sys, "stderr", stderr)
    install()
    assert sglang_instrument.installed()


def test_install_in_a_working_directory_that_is_gone_never_raises(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    sglang_instrument.install()
    assert not sglang_instrument.installed()
    (notice,) = notices.noticed()
    assert "install() failed and was skipped: FileNotFoundError" in notice["notice"]


def test_a_broken_table_of_ones_own_never_raises_and_leaves_nothing_behind(install, tmp_path):
    (tmp_path / "broken.toml").write_text("this is no table")
    environment = dict(os.environ)
    with contextlib.suppress(KeyError):
        install(patches=[str(tmp_path)])
    assert not sglang_instrument.installed()
    assert spans.current_buffer() is OFF
    assert dict(os.environ) == environment
    (notice,) = notices.noticed()
    assert "broken.toml" in notice["notice"]


def test_children_inherit_the_settings_until_uninstall_puts_the_environment_back(install, monkeypatch):
    monkeypatch.setenv("SGLANG_INSTRUMENT_SYNC", "auto")
    before = dict(os.environ)
    install(sync="off")
    assert os.environ["SGLANG_INSTRUMENT_SYNC"] == "off"
    assert os.environ["SGLANG_INSTRUMENT_RUN_ID"] == sglang_instrument.status()["run_id"]
    sglang_instrument.uninstall()
    assert dict(os.environ) == before


def test_the_process_of_one_run_records_nothing_of_an_earlier_one(install, log_dir):
    with step(7), step(8):
        install(experiment="first")
        event("did")
    with step(9):
        event("did")
    sglang_instrument.uninstall()
    with step(10):
        pass
    install(experiment="second")
    with step(11):
        event("did")
    sglang_instrument.uninstall()
    assert sorted(read_records(log_dir / "first")) == ["step_8/worker_0.jsonl", "step_9/worker_0.jsonl"]
    assert list(read_records(log_dir / "second")) == ["step_11/worker_0.jsonl"]


def test_the_step_around_install_is_closed_with_what_was_written_since(install):
    with step(3):
        folder = install()
        event("did")
    sglang_instrument.uninstall()
    records = read_records(folder)["step_3/worker_0.jsonl"]
    assert [record["event"] for record in records] == ["log_opened", "did", "step_closed", "log_closed"]
    assert records[2]["extra"]["written"] == 1


def test_spans_that_are_open_across_install_and_uninstall_belong_to_whoever_sees_them_end(install):
    with span("total_step_duration"):
        folder = install()
    inside = span("tool_execution")
    with bind(step=1):
        inside.__enter__()
        sglang_instrument.uninstall()
        inside.__exit__(None, None, None)
        with span("outside"):
            pass
    files = read_records(folder)
    assert [record["event"] for record in recorded_events(files["step_0/worker_0.jsonl"])] == [
        "total_step_duration"
    ]
    assert list(files) == ["step_0/worker_0.jsonl"]
    assert not OPEN


def test_a_span_that_hangs_since_before_install_is_reported_without_other_activity(install, log_dir):
    file = log_dir / "run/step_1/worker_0.jsonl"
    with step(1), span("tool_execution"):
        for _ in range(2):
            install(hang_after_sec=0.05)
            wait_for(lambda: file.exists() and '"open_spans"' in file.read_text(), "no open_spans")
            sglang_instrument.uninstall()
            file.unlink()


def test_a_user_whose_logging_is_broken_notices_nothing(install, log_dir, monkeypatch):
    import logging

    class Broken(logging.Handler):
        def handle(self, record):
            raise RuntimeError("broken")

    logger, handler = logging.getLogger("sglang_instrument"), Broken()
    logger.addHandler(handler)
    try:
        log_dir.write_text("no folder")
        install()
        with step(1):
            event("did")
        assert sglang_instrument.flush(600)
        assert sglang_instrument.status()["records"]["dropped"] == 1
    finally:
        logger.removeHandler(handler)


def test_status_describes_the_process(install):
    assert sglang_instrument.status() == {"installed": False, "notices": []}
    folder = install(hang_after_sec=5)
    with step(1), span("total_step_duration"):
        status = sglang_instrument.status()
        assert (status["installed"], status["folder"], status["open_spans"]) == (True, str(folder), 1)
        assert status["settings"]["SGLANG_INSTRUMENT_HANG_AFTER_SEC"] == "5.0"
        assert status["pid"] == os.getpid()
    assert sglang_instrument.flush(600)
    assert sglang_instrument.status()["records"]["recorded"] == 1


def test_nothing_is_remembered_of_steps_that_are_bound_while_nothing_is_installed():
    for number in range(100):
        with step(number):
            pass
    assert len(scopes.scopes()) <= 1


@pytest.mark.parametrize(
    ("words", "recorded"),
    [
        (
            "python -m sglang.launch_server --api-key s3cret --port 30000",
            "python -m sglang.launch_server --port 30000",
        ),
        ("python -u train.py data.key=s3cret --host=0.0.0.0", "python -u train.py --host=0.0.0.0"),
        ("python -B -c code", "python -c"),
        ("python", "python"),
        ("python bin/sglang serve --port 1", "python bin/sglang serve --port 1"),
    ],
)
def test_the_recorded_command_line_has_no_secrets(words, recorded):
    from sglang_instrument.startup.session import program

    assert program(words.split()) == recorded.split()
