"""Recording writes only regular files; other files of their names do not affect training."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

import sglang_instrument
from sglang_instrument import SGLangLogManager, event, flush, step
from sglang_instrument.recording.safety import notices


def make_fifo(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def link_to_null(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/null")


def link_to_fifo(path):
    make_fifo(path.with_name(f".fifo of {path.stem}"))
    path.symlink_to(path.with_name(f".fifo of {path.stem}"))


@pytest.fixture(params=[make_fifo, link_to_null, link_to_fifo])
def odd(request):
    return request.param


def rollout(number):
    with step(number):
        for index in range(5_000):
            event("did", index=index)


@pytest.mark.parametrize("durability", ["buffered", "line"])
def test_a_step_whose_file_is_not_regular_is_dropped_and_counted_and_the_next_is_written(
    install, log_dir, odd, durability, records_below
):
    odd(log_dir / "run/step_1/worker_0.jsonl")
    folder = install(durability=durability)
    rollout(1)
    rollout(2)
    assert flush(600)
    counts = sglang_instrument.status()["records"]
    assert (counts["recorded"], counts["dropped"], counts["waiting"]) == (10_000, 5_000, 0)
    (said,) = [noticed["notice"] for noticed in notices.noticed()]
    assert "not a regular file" in said
    assert "records of step_1 cannot be written" in said
    sglang_instrument.uninstall()
    (folder / "step_1/worker_0.jsonl").unlink()
    (written,) = (records for path, records in records_below(folder).items() if path.startswith("step_2"))
    assert sum(record["event"] == "did" for record in written) == 5_000


def test_a_lock_that_is_a_fifo_is_a_lock(install, log_dir, records_below):
    make_fifo(log_dir / "run/.locks/worker_0.lock")
    folder = install()
    rollout(1)
    assert flush(600)
    assert len(records_below(folder)["step_1/worker_0.jsonl"]) >= 5_000


def test_files_in_the_place_of_folders_lose_only_the_files_inside(install, log_dir, odd, records_below):
    for name in ("step_1", "processes"):
        odd(log_dir / "run" / name)
    folder = install()
    rollout(1)
    rollout(2)
    assert flush(600)
    assert sglang_instrument.status()["records"]["dropped"] == 5_000
    assert len(records_below(folder)["step_2/worker_0.jsonl"]) >= 5_000


@pytest.mark.parametrize("make", ["os.mkfifo(path)", "os.symlink('victim', path)"])
def test_the_self_description_opens_and_follows_no_existing_file(make, run_script, tmp_path):
    (tmp_path / "victim").write_text("kept")
    script = run_script(
        f"""
        import os, pathlib, textwrap
        import sglang_instrument as si
        processes = pathlib.Path(os.environ["SGLANG_INSTRUMENT_LOG_DIR"], "run", "processes")
        (processes / "reached").mkdir(parents=True)
        mine = f"reached/{{os.uname().nodename}}-{{os.getpid()}}"
        for name in (f".worker_0.json.{{os.getpid()}}", "worker_0.json", f"{{mine}}.new", f"{{mine}}.json"):
            path = processes / name
            {make}
        with open("mine.toml", "w") as table:
            table.write('trainer = "mine"\\npackage = "pytest"\\n[[patch]]\\ntarget = "textwrap:dedent"\\n')
            table.write('region = [{{ event = "dedenting" }}]\\n')
        si.install(patches=".")
        with si.step(1):
            textwrap.dedent("")
        assert si.flush(600)
        """
    )
    described = script.folder / "processes"
    for path in (described / "worker_0.json", *(described / "reached").glob("*.json")):
        assert path.is_file()
        assert not path.is_symlink()
        assert json.loads(path.read_text())["patches"]
    assert (tmp_path / "victim").read_text() == "kept"
    assert "Traceback" not in script.stderr


def test_a_pipe_that_nobody_reads_holds_up_no_call_of_the_log_manager(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    manager = SGLangLogManager()
    for _ in range(3):
        manager.log(tmp_path / "pipe", "a")
        manager.get_handle(tmp_path / "pipe").close()
    assert [said["times"] for said in notices.noticed()] == [3, 3]
    assert "No such device" in str(notices.noticed()[0]["notice"])


def test_a_pipe_that_somebody_reads_gets_what_is_logged(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(Path(tmp_path / "pipe").read_bytes()))
    reader.start()
    descriptor = os.open(tmp_path / "pipe", os.O_WRONLY)  # waits for the reader
    manager = SGLangLogManager()
    for number in range(2_000):  # more than a pipe takes at once
        manager.log(tmp_path / "pipe", "a", step=number, extra={"padding": "x" * 100})
    manager.close_all()
    os.close(descriptor)
    reader.join()
    assert [json.loads(line)["step"] for line in read[0].splitlines()] == list(range(2_000))
    assert notices.noticed() == []
