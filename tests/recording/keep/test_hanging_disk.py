"""A file system that stops answering blocks neither training nor a forked child."""

import json
import os
import subprocess
import sys
import textwrap
from datetime import datetime
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[2] / "support"
MOUNTED = [sys.executable, str(HERE / "hanging_folder.py")]


@pytest.fixture(scope="module")
def fuse(tmp_path_factory):
    """Skip unless this process may mount a file system in its own namespace."""
    folder = tmp_path_factory.mktemp("fuse")
    tried = subprocess.run([*MOUNTED, folder, "/bin/true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no FUSE here: {(tried.stderr.strip().splitlines() or ['?'])[-1]}")


@pytest.fixture
def train(fuse, tmp_path):
    """Run a script whose disk hangs on demand; return its output, its files and its errors."""

    def run(script, **variables):
        source = textwrap.dedent(BEFORE) + textwrap.dedent(script) + "\nprint('the end', flush=True)\n"
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "FOLDER": str(tmp_path), **variables}
        command = [*MOUNTED, tmp_path, sys.executable, "-c", source]
        done = subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            timeout=1200,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        *said, files = done.stdout.splitlines()
        assert "the end" in said, done.stderr
        return said, {path: text.splitlines() for path, text in json.loads(files).items()}, done.stderr

    return run


BEFORE = """
import os, resource, sys, time
import sglang_instrument as si

def disk(letter):
    os.write(int(os.environ["HANGING_FOLDER"]), letter)

def steps(*numbers):
    for number in numbers:
        with si.step(number), si.span("parse"):
            pass

def until(condition):
    for _ in range(60_000):
        if condition():
            return
        time.sleep(0.01)
    sys.exit("waited for ten minutes")

si.install(log_dir=os.environ["FOLDER"], experiment="run", trainers="none")
"""


def events(files, path):
    return [json.loads(line)["event"] for line in files.get(path, ())]


def test_a_disk_that_never_answers_blocks_nothing_and_lost_records_are_counted(train):
    said, files, complaints = train("""
        disk(b"h")
        steps(1, 2, 3)
        print("flushed", si.flush())
        steps(4)
        si.uninstall()
        print("uninstalled")
        """)
    assert said == ["flushed False", "uninstalled", "the end"]
    assert files == {}
    assert complaints.count("records were not written within 2 s") == 1


def test_what_was_recorded_while_the_disk_hung_is_written_when_it_answers_again(train):
    _, files, complaints = train("""
        steps(1)
        assert si.flush(600)
        disk(b"h")
        steps(2, 3, 4)
        until(lambda: si.status()["records"]["recorded"] == 4)
        assert si.status()["records"]["waiting"] >= 2, si.status()["records"]
        disk(b"a")
        assert si.flush(600)
        steps(5)
        si.uninstall()
        """)
    for step in range(1, 6):
        expected = ["log_opened", "parse", "step_closed"]
        assert events(files, f"run/step_{step}/worker_0.jsonl")[:3] == expected
    assert "could not" not in complaints
    assert "dropped" not in complaints


def test_while_the_disk_hangs_one_record_of_open_requests_waits_for_it(train):
    said, files, complaints = train(
        """
        path = si.status()["folder"] + "/step_1/worker_0.jsonl"

        def told():
            with open(path) if os.path.exists(path) else open(os.devnull) as file:
                return file.read().count('"event":"open_now"')

        with si.step(1), si.span("request", request_id="r"):
            until(told)
            disk(b"h")
            print(time.time())
            time.sleep(1)  # twenty intervals
            print(time.time())
            disk(b"a")
            before = told()
            until(lambda: told() >= before + 2)  # the one that waited, and a later one
        si.uninstall()
        """,
        SGLANG_INSTRUMENT_OPEN_NOW_SEC="0.05",
        SGLANG_INSTRUMENT_HANG_AFTER_SEC="0.2",
    )
    written = [json.loads(line) for line in files["run/step_1/worker_0.jsonl"]]
    hung, answered = map(float, said[:2])
    times = [
        datetime.fromisoformat(record["timestamp"]).timestamp()
        for record in written
        if record["event"] == "open_now"
    ]
    assert sum(hung < time < answered for time in times) <= 1, (times, hung, answered)
    assert "dropped" not in complaints


def test_a_child_that_is_forked_while_the_disk_hangs_runs_at_once(train):
    said, _, _ = train("""
        steps(1)
        assert si.flush(600)
        disk(b"h")
        steps(2)
        until(lambda: si.status()["records"]["recorded"] == 2)
        reading, writing = os.pipe()
        if not os.fork():
            os.write(writing, b"the child runs")
            os._exit(0)  # the system closes files here, and waits: the disk hangs still
        print(os.read(reading, 100).decode())
        si.uninstall()
        """)
    assert said == ["the child runs", "the end"]


def test_a_file_system_that_has_no_locks_gives_each_process_a_file_of_its_own(train):
    said, files, complaints = train(
        """
        steps(1)
        si.uninstall()
        print(os.getpid())
        """,
        NO_LOCKS="1",
    )
    [path] = [path for path in files if path.startswith("run/step_1/")]
    assert path.startswith("run/step_1/worker_0.")
    assert path.endswith(f"-{said[0]}.jsonl")
    assert events(files, path)[:3] == ["log_opened", "parse", "step_closed"]
    assert complaints.count("locking failed") == 1


def test_a_disk_that_answers_while_the_interpreter_ends_does_not_abort_the_process(train):
    """The C library ends the disk's thread then, possibly without a free descriptor or memory."""
    said, _, complaints = train("""
        class Last:
            def __del__(self, disk=disk, sleep=time.sleep, write=os.write):
                disk(b"a")
                sleep(0.5)  # the disk's thread comes back, and finds that the interpreter ends
                write(1, b"the end\\n")

        last = Last()
        disk(b"h")
        steps(1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                os.open("/", os.O_RDONLY)
        except OSError:
            sys.exit()
        """)
    assert said == ["the end"]
    assert "records were not written within 2 s" in complaints


def test_the_numbers_of_steps_are_looked_up_without_the_disk(train):
    said, _, _ = train(
        """
        from sglang_instrument.startup import install

        known, data = install._session.scalars, {"loss": 1.0}
        until(lambda: known._thread.is_alive())
        disk(b"h")
        time.sleep(1)  # by now the reader's thread and the follower wait for the disk
        for step in range(1000):
            assert si.scalars(step) == {}
            assert known.along(data, step, {}) is data
        print("looked up")  # the disk never answers
        si.uninstall()
        print("uninstalled")
        """,
        SGLANG_INSTRUMENT_SCALARS="1",
    )
    assert said == ["looked up", "uninstalled", "the end"]
