"""However a process begins or ends, it has its own file, complete lines, no duplicates and its exit code."""

import os
import random
import signal
import time
from collections import Counter

import pytest
from logged import read_records

import sglang_instrument
from sglang_instrument import event, step

ROLLS_FOREVER = """
    import itertools, threading
    import sglang_instrument as si

    si.install()
    print("installed", flush=True)
    for number in itertools.count(1):
        with si.step(number), si.span("total_step_duration"):
            for index in range(500):
                with si.bind(request_id=f"r{index % 7}"), si.span("work", index=index):
                    pass
"""


def indices(records):
    return [record["extra"]["index"] for record in records if record["event"] == "did"]


def split_lines(path):
    """Return the complete lines of a file, and the rest that a kill left."""
    *lines, rest = path.read_bytes().split(b"\n")
    return lines, rest


@pytest.mark.parametrize("durability", ["buffered", "line"])
def test_a_kill_at_any_moment_leaves_whole_lines_but_for_one_last(start_script, durability):
    chance = random.Random(7)
    for _ in range(4):
        script = start_script(ROLLS_FOREVER, SGLANG_INSTRUMENT_DURABILITY=durability)
        script.says("installed")
        time.sleep(chance.uniform(0.02, 0.4))
        script.process.kill()
        script.wait(code=-signal.SIGKILL)
    for path in script.folder.rglob("*.jsonl"):
        lines, _ = split_lines(path)
        torn = [line for line in lines if line and not (line.startswith(b"{") and line.endswith(b"}"))]
        assert len(torn) <= 3  # one torn line per kill except the last; the next process starts a new line
        opened = [line for line in lines if b'"event":"log_opened"' in line]
        assert opened[:1] == lines[:1]  # none, if the kill came between opening and writing
        assert all(b'"reopened":true' in line for line in opened[1:])


def test_records_acknowledged_with_line_durability_survive_a_kill(start_script):
    script = start_script(
        """
        import os, sglang_instrument as si
        si.install()
        with si.step(1):
            for index in range(200):
                si.event("did", index=index)
            os.kill(os.getpid(), 9)
        """,
        SGLANG_INSTRUMENT_DURABILITY="line",
    )
    script.wait(code=-signal.SIGKILL)
    assert indices(script.records["step_1/worker_0.jsonl"]) == list(range(200))


def test_sigterm_ends_the_process_as_it_would_without_us(start_script):
    script = start_script(ROLLS_FOREVER)
    script.says("installed")
    time.sleep(0.2)
    script.process.terminate()
    script.wait(code=-signal.SIGTERM)
    for path in script.folder.rglob("*.jsonl"):
        assert all(line.startswith(b"{") and line.endswith(b"}") for line in split_lines(path)[0])


def test_install_changes_no_signal_handler(install):
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    install()
    with step(1):
        event("did")
    sglang_instrument.flush(600)
    assert [signal.getsignal(number) for number in signal.valid_signals()] == before


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("raise ValueError('training failed')", 1),
        ("import threading; threading.Thread(target=lambda: si.event('did', index=100)).start()", 0),
    ],
)
def test_an_exit_of_python_writes_everything_and_keeps_its_code(run_script, ending, code):
    script = run_script(
        f"""
        import sglang_instrument as si
        si.install()
        with si.step(1):
            for index in range(100):
                si.event("did", index=index)
        {ending}
        """,
        code=code,
    )
    records = script.records["step_1/worker_0.jsonl"]
    assert records[-1]["event"] == "log_closed"
    assert indices(records)[:100] == list(range(100))
    assert ("training failed" in script.stderr) == ("ValueError" in ending)


def test_an_exit_without_clean_up_loses_no_step_that_ended_a_moment_before(run_script):
    script = run_script("""
        import os, pathlib, time, sglang_instrument as si
        si.install()
        folder = pathlib.Path(si.status()["folder"])
        with si.step(1), si.span("total_step_duration"):
            si.event("did", index=0)
        path = folder / "step_1" / "worker_0.jsonl"
        while not (path.exists() and "step_closed" in path.read_text()):
            time.sleep(0.01)  # without flush()
        os._exit(0)
    """)
    assert [record["event"] for record in script.records["step_1/worker_0.jsonl"]] == [
        "log_opened",
        "did",
        "total_step_duration",
        "step_closed",
    ]


def test_a_process_that_records_nothing_leaves_no_file_and_no_thread(run_script):
    script = run_script("""
        import threading, sglang_instrument as si
        si.install()
        assert threading.active_count() == 1
    """)
    assert not script.folder.exists()


def test_a_process_that_records_at_the_very_end_does_not_fail(run_script):
    script = run_script("""
        import atexit, sglang_instrument as si

        class Late:
            def __del__(self):
                with si.step(9), si.span("late"):
                    si.event("later")

        late = Late()
        atexit.register(lambda: si.event("last"))
        si.install()
    """)
    assert "Error" not in script.stderr


FORKS = """
    import os, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: threads and fork
    import sglang_instrument as si

    si.install()
    with si.step(1):
        for index in range(1000):  # some of it is still in the buffer when the process forks
            si.event("did", index=index)
        child = os.fork()
        if child == 0:
            si.event("did", index=-1)
            with si.step(2):
                si.event("did", index=-2)
            CHILD_ENDS
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        si.event("did", index=1000)
    print(child)
"""


@pytest.mark.parametrize("durability", ["buffered", "line"])
@pytest.mark.parametrize("ending", ["raise SystemExit(0)", "si.flush(600); os._exit(0)"])
def test_a_forked_child_writes_its_own_file_and_leaves_its_parents_alone(run_script, ending, durability):
    script = run_script(FORKS.replace("CHILD_ENDS", ending), SGLANG_INSTRUMENT_DURABILITY=durability)
    child = f"worker_0.{os.uname().nodename}-c0.jsonl"
    files = script.records
    assert set(files) == {"step_1/worker_0.jsonl", f"step_1/{child}", f"step_2/{child}"}
    assert indices(files["step_1/worker_0.jsonl"]) == list(range(1001))
    assert indices(files[f"step_1/{child}"]) == [-1]
    assert indices(files[f"step_2/{child}"]) == [-2]
    assert [record["event"] for record in files["step_1/worker_0.jsonl"]].count("log_opened") == 1
    assert [record["event"] for record in files["step_1/worker_0.jsonl"]].count("step_closed") == 1


def test_a_forked_child_has_the_role_that_it_learns_else_its_parents(run_script):
    script = run_script(
        """
        import os
        import sglang_instrument as si
        from sglang_instrument.recording.measure import identity

        si.install()
        identity.learn("server", 2)
        si.event("served")
        for role in ("scheduler", None):
            if not (child := os.fork()):
                if role:
                    identity.learn(role, None, 0)
                    identity.learn("worker")  # the first counts
                si.event("forked")
                si.flush(600)
                os._exit(0)
            os.waitpid(child, 0)
        """
    )
    forked = Counter(
        path.partition(".")[0]
        for path, records in script.records.items()
        for record in records
        if record["event"] == "forked"
    )
    assert forked == {"engine/scheduler_2_tp0": 1, "engine/server_2": 1}


@pytest.mark.parametrize("durability", ["buffered", "line"])
def test_a_child_that_is_forked_inside_a_step_goes_on_inside_it_and_ends_it(run_script, durability):
    script = run_script(
        """
        import os, sys, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import sglang_instrument as si

        si.install()

        def other():
            with si.step(7):
                si.event("other")
                held.set()
                over.wait()

        held, over = threading.Event(), threading.Event()
        thread = threading.Thread(target=other)
        thread.start()
        held.wait()
        child = None
        with si.step(1), si.bind(worker=2):
            si.event("did", index=0)
            si.event("did", index=1)
            with si.step(1):
                child = os.fork()
                si.event("did", index=-1 if child == 0 else 2)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        else:
            si.event("after")
            assert si.flush(600)
            os._exit(0)
        over.set()
        thread.join()
        """,
        SGLANG_INSTRUMENT_DURABILITY=durability,
    )
    child = f"worker_2.{os.uname().nodename}-c0.jsonl"
    files = script.records
    assert f"step_7/worker_0.{os.uname().nodename}-c0.jsonl" not in files
    for path, written in (("step_1/worker_2.jsonl", 3), (f"step_1/{child}", 1)):
        closed = [record["extra"]["written"] for record in files[path] if record["event"] == "step_closed"]
        assert closed == [written]
    assert indices(files[f"step_1/{child}"]) == [-1]


def test_a_child_of_multiprocessing_ends_its_step_once_whoever_forks_inside_it(run_script):
    script = run_script("""
        import multiprocessing, os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import sglang_instrument as si

        si.install()

        def work():
            si.event("did", index=1)
            child = os.fork()
            if child == 0:
                si.event("did", index=2)
                return
            assert os.waitpid(child, 0)[1] == 0

        with si.step(1):
            si.event("did", index=0)
            process = multiprocessing.get_context("fork").Process(target=work)
            process.start()
            process.join()
            assert process.exitcode == 0
    """)
    records = [record for of_file in script.records.values() for record in of_file]
    assert sorted(indices(records)) == [0, 1, 2]
    assert [record["extra"]["written"] for record in records if record["event"] == "step_closed"] == [1, 1, 1]


def test_a_child_forked_while_other_threads_record_does_not_hang(run_script):
    script = run_script("""
        import os, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import sglang_instrument as si

        si.install()
        stop = threading.Event()

        def record():
            while not stop.is_set():
                with si.step(1), si.span("total_step_duration"):
                    pass

        threads = [threading.Thread(target=record) for _ in range(3)]
        for thread in threads:
            thread.start()
        for index in range(20):
            child = os.fork()
            if child == 0:
                si.event("did", index=index)
                os._exit(0 if si.flush(600) else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
    """)
    written = [index for path, records in script.records.items() if "-" in path for index in indices(records)]
    assert sorted(written) == list(range(20))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_writes_all_that_it_recorded(run_script, tmp_path, method):
    (tmp_path / "children.py").write_text(
        "import sglang_instrument as si\n"
        "def work(rank):\n"
        "    si.install()\n"
        "    with si.bind(worker=rank, step=1):\n"
        "        for index in range(10):\n"
        "            si.event('did', index=index)\n"
    )
    script = run_script(
        f"""
        import multiprocessing, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import children, sglang_instrument as si

        if __name__ == "__main__":
            si.install()
            with si.step(1):
                si.event("did", index=-1)
            context = multiprocessing.get_context({method!r})
            started = [context.Process(target=children.work, args=(rank,)) for rank in (1, 2)]
            for process in started:
                process.start()
            for process in started:
                process.join()
                assert process.exitcode == 0
        """
    )
    files = script.records
    assert set(files) == {f"step_1/worker_{rank}.jsonl" for rank in (0, 1, 2)}
    assert indices(files["step_1/worker_0.jsonl"]) == [-1]
    for rank in (1, 2):
        assert indices(files[f"step_1/worker_{rank}.jsonl"]) == list(range(10))
    opened = [record for records in files.values() for record in records if record["event"] == "log_opened"]
    assert len({record["extra"]["run_id"] for record in opened}) == 1
    assert len({record["extra"]["pid"] for record in opened}) == 3


def test_a_process_restarted_after_a_kill_appends_to_the_same_files(start_script, log_dir):
    for _ in range(2):
        script = start_script("""
            import os, sglang_instrument as si
            si.install()
            with si.step(1), si.span("total_step_duration"):
                si.event("did", index=0)
            si.flush(600)
            with si.step(2):
                si.event("did", index=1)
                si.flush(600)
                os.kill(os.getpid(), 9)
        """)
        script.wait(code=-signal.SIGKILL)
        torn = log_dir / "run" / "step_2" / "worker_0.jsonl"
        torn.write_bytes(torn.read_bytes()[:-5])  # as if the kill had interrupted the write
    text = torn.read_text().splitlines()
    opened = [line for line in text if '"log_opened"' in line]
    assert ['"reopened":true' in line for line in opened] == [False, True]
    assert len(text) == 4
    (log_dir / "run" / "step_2" / "worker_0.jsonl").unlink()
    first, second = (
        record["extra"]
        for record in script.records["step_1/worker_0.jsonl"]
        if record["event"] == "log_opened"
    )
    assert first["run_id"] != second["run_id"]
    assert second["reopened"]


def test_exec_inherits_no_descriptor_of_ours(run_script):
    script = run_script("""
        import os, subprocess, sys, sglang_instrument as si
        si.install()
        with si.step(1):
            si.event("did", index=0)
        si.flush(600)
        looks = (
            "import os; links = [f'/proc/self/fd/{number}' for number in range(3, 30)]; "
            "print([os.readlink(link) for link in links if os.path.lexists(link)])"
        )
        subprocess.run([sys.executable, "-c", looks], close_fds=False, check=True)
    """)
    assert "worker_0" not in script.stdout


def test_a_child_process_inherits_the_run_and_its_folder_wherever_it_works(run_script, tmp_path):
    script = run_script("""
        import os, subprocess, sys, sglang_instrument as si
        si.install(log_dir="relative", experiment="mine")
        os.mkdir("elsewhere")
        records = "import sglang_instrument as si; si.install(); block = si.step(1); "
        records += "block.__enter__(); si.event('did'); block.__exit__(None, None, None)"
        there = os.environ | {"RANK": "4"}
        subprocess.run([sys.executable, "-c", records], cwd="elsewhere", env=there, check=True)
        print(si.status()["run_id"])
    """)
    files = read_records(tmp_path / "relative" / "mine")
    assert list(files) == ["step_1/worker_4.jsonl"]
    assert files["step_1/worker_4.jsonl"][0]["extra"]["run_id"] == script.stdout.strip()
