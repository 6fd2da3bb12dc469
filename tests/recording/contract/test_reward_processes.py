"""A reward in a process of its own: files as few as the children alive at once, and one line on stderr."""

import json
import os

import pytest

HOST = os.uname().nodename
SCORES = """
    import multiprocessing, os, signal, sys, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import sglang_instrument as si

    si.install()
    context = multiprocessing.get_context("fork")

    @si.instrument("score", phase="reward", fields={"reward": "result"})
    def score(x):
        time.sleep(60 if x < 0 else 0.001)
        return float(x)

    def start(x):
        process = context.Process(target=score, args=(x,))
        process.start()
        return process
"""


def rewards_in(records):
    return [record["extra"]["reward"] for record in records if record["event"] == "score"]


def test_children_one_after_another_share_one_file_and_say_nothing(run_script):
    script = run_script(
        SCORES
        + """
    with si.step(1), si.span("reward_all"):
        for number in range(30):
            start(number).join()
    """
    )
    files = script.records
    assert set(files) == {"step_1/worker_0.jsonl", f"step_1/worker_0.{HOST}-c0.jsonl"}
    of_children = files[f"step_1/worker_0.{HOST}-c0.jsonl"]
    assert rewards_in(of_children) == [float(number) for number in range(30)]
    opened = [record["extra"] for record in of_children if record["event"] == "log_opened"]
    assert len({extra["pid"] for extra in opened}) == len(opened) == 30
    described = sorted(path.name for path in (script.folder / "processes").glob("*.json"))
    assert described == ["worker_0.json", f"worker_0.{HOST}-c0.json"]
    assert len(script.stderr.splitlines()) == 1


def test_children_alive_at_once_have_a_file_each(run_script):
    script = run_script(
        SCORES
        + """
    with si.step(1), si.span("reward_all"):
        for _ in range(3):
            for process in [start(number) for number in range(4)]:
                process.join()
    """
    )
    of_children = [rewards_in(records) for path, records in script.records.items() if f"{HOST}-c" in path]
    assert 1 <= len(of_children) <= 4
    rewards = sorted(reward for of_child in of_children for reward in of_child)
    assert rewards == sorted([0.0, 1.0, 2.0, 3.0] * 3)
    assert len(list((script.folder / "processes").glob("*.json"))) == len(of_children) + 1


def test_a_killed_child_frees_its_number_and_the_next_one_ends_its_torn_line(run_script):
    script = run_script(
        SCORES
        + """
    path = f"{si.status()['folder']}/step_1/worker_0.{os.uname().nodename}-c0.jsonl"
    with si.step(1), si.span("reward_all"):
        start(1).join()
        with open(path, "rb+") as file:  # as if the first child had been killed while it wrote
            file.truncate(os.path.getsize(path) - 5)
        hangs = start(-1)
        while "open_now" not in open(path).read():
            time.sleep(0.05)
        hangs.kill()
        hangs.join()
        start(2).join()
    """
    )
    path = script.folder / f"step_1/worker_0.{HOST}-c0.jsonl"
    lines = path.read_text().splitlines()
    broken = [line for line in lines if not line.endswith("}")]
    assert len(broken) == 1
    assert "log_closed" in broken[0]
    records = [json.loads(line) for line in lines if line.endswith("}")]
    assert rewards_in(records) == [1.0, 2.0]
    assert any(record["event"] == "open_now" for record in records)


def test_a_child_that_records_nothing_starts_no_thread_and_leaves_no_file(run_script):
    script = run_script(
        SCORES
        + """
    import threading
    with si.step(1), si.span("reward_all"):
        si.flush(60)
        for _ in range(2):
            child = os.fork()
            if child == 0:
                os._exit(0 if threading.active_count() == len(os.listdir("/proc/self/task")) == 1 else 1)
            assert os.waitpid(child, 0)[1] == 0
    """
    )
    assert set(script.records) == {"step_1/worker_0.jsonl"}


def test_a_child_that_lives_for_milliseconds_starts_one_thread_and_a_longer_one_two(run_script):
    script = run_script(
        SCORES
        + """
    def threads():
        return len(os.listdir("/proc/self/task")) - 1

    def work(long):
        si.event("did")
        assert si.flush(60)
        assert threads() == 1, threads()
        while long and threads() < 2:
            time.sleep(0.01)
            si.event("did")

    with si.step(1), si.span("reward_all"):
        for long in (False, True):
            process = context.Process(target=work, args=(long,))
            process.start()
            process.join()
            assert process.exitcode == 0
    """
    )
    did = [
        record for record in script.records[f"step_1/worker_0.{HOST}-c0.jsonl"] if record["event"] == "did"
    ]
    assert len(did) > 2


SPAWNED = """
    import multiprocessing, sys
    import scores, sglang_instrument as si

    if __name__ == "__main__":
        si.install()
        context = __import__({package!r}).get_context({method!r})
        with si.step(1), si.span("reward_all"):
            si.event("before")
            assert si.flush(60)
            for number in range(4):
                child = context.Process(target=scores.score, args=(number,))
                child.start()
                child.join()
                assert child.exitcode == 0
"""
SCORE = """
import sglang_instrument as si
import judge

@si.instrument("score", phase="reward", fields={"reward": "result"})
def score(x):
    return judge.judge(float(x))
"""
JUDGE = """
def judge(x):
    return x
"""
TABLE = """
trainer = "judge"
module = "judge"

[[patch]]
target = "judge"
region = [{ event = "judged" }]
"""


@pytest.mark.parametrize("package", ["multiprocessing", "multiprocess", "billiard"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_of_every_start_method_share_one_file_and_one_description(
    run_script, tmp_path, method, package
):
    pytest.importorskip(package)
    for name, text in (("scores.py", SCORE), ("judge.py", JUDGE), ("tables/judge.toml", TABLE)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    script = run_script(
        SPAWNED.format(method=method, package=package), SGLANG_INSTRUMENT_PATCHES=str(tmp_path / "tables")
    )
    assert set(script.records) == {"step_1/worker_0.jsonl", f"step_1/worker_0.{HOST}-c0.jsonl"}
    of_children = script.records[f"step_1/worker_0.{HOST}-c0.jsonl"]
    assert rewards_in(of_children) == [0.0, 1.0, 2.0, 3.0]
    assert [record["event"] for record in of_children].count("judged") == 4
    described = sorted(path.name for path in (script.folder / "processes").glob("*.json"))
    assert described == ["worker_0.json", f"worker_0.{HOST}-c0.json"]
    assert len(list((script.folder / "processes").glob("reached/*.json"))) <= 1  # of the parent
    assert "another process writes" not in script.stderr
