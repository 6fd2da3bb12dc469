"""SGLangLogManager replaces the class that users pasted into rollouts: same calls, keys, order and files."""

import copy
import datetime
import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import sglang_instrument
from sglang_instrument import SGLangLogManager
from sglang_instrument.recording.safety import notices


class Lines:
    """The records of one file; `path` is a str, as the reference's callers pass it."""

    def __init__(self, path):
        self.path = str(path)

    def __iter__(self):
        return iter([json.loads(line) for line in Path(self.path).read_bytes().splitlines()])

    @property
    def last(self):
        return list(self)[-1]


@pytest.fixture
def manager():
    made = SGLangLogManager()
    yield made
    made.close_all()


@pytest.fixture
def lines(tmp_path):
    return Lines(tmp_path / "logs/run/step_3/worker_1.jsonl")


def test_a_record_has_the_keys_of_the_reference_in_its_order(manager, lines):
    before = datetime.datetime.now().astimezone()
    manager.log(
        lines.path, "barrier", duration=0.25, extra={"n": 1}, workid=1, step=3, tag="x", more=[1, {"a": 2}]
    )
    record = lines.last
    moment = datetime.datetime.fromisoformat(record.pop("timestamp"))
    assert before <= moment <= datetime.datetime.now().astimezone()
    expected = {
        "event": "barrier",
        "duration_sec": 0.25,
        "extra": {"n": 1},
        "workid": 1,
        "step": 3,
        "tag": "x",
        "more": [1, {"a": 2}],
    }
    assert record == expected
    assert list(record) == list(expected)


def test_arguments_go_by_place_as_well(manager, lines):
    manager.log(lines.path, "barrier", 0.25, {"n": 1}, 1, 3)
    assert list(lines.last) == ["timestamp", "event", "duration_sec", "extra", "workid", "step"]


def test_none_has_no_key_and_zero_and_empty_values_have(manager, lines):
    manager.log(lines.path, "request_start", extra={}, workid=0, step=0)
    assert list(lines.last) == ["timestamp", "event", "extra", "workid", "step"]


def test_a_key_of_the_callers_own_wins_and_keeps_its_place(manager, lines):
    manager.log(lines.path, "a", workid=1, step=3, timestamp="now", none=None)
    manager.log(lines.path, "b", workid=1, duration_sec=4)
    first, second = lines
    assert first == {"timestamp": "now", "event": "a", "workid": 1, "step": 3, "none": None}
    assert list(second) == ["timestamp", "event", "duration_sec", "workid"]


def test_a_record_is_in_the_file_when_the_call_returns(manager, lines):
    for number in range(10):
        manager.log(lines.path, "a", step=number)
        assert lines.last["step"] == number


def test_an_existing_file_is_continued(manager, lines):
    SGLangLogManager().log(lines.path, "a")
    manager.log(lines.path, "b")
    assert [record["event"] for record in lines] == ["a", "b"]


def test_a_last_line_that_a_kill_cut_short_stays_alone(manager, tmp_path):
    path = tmp_path / "worker_0.jsonl"
    path.write_text('{"timestamp": "2026')
    manager.log(str(path), "a")
    torn, line, rest = path.read_text().split("\n")
    assert (torn, json.loads(line)["event"], rest) == ('{"timestamp": "2026', "a", "")


def test_a_path_without_a_folder_is_taken(manager, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    manager.log("worker_0.jsonl", "a")
    assert Lines("worker_0.jsonl").last["event"] == "a"


def test_a_handle_writes_lines_of_its_own_between_records(manager, lines):
    manager.log(lines.path, "a")
    manager.get_handle(lines.path).write('{"event": "own"}\n')
    manager.log(lines.path, "b")
    assert [record["event"] for record in lines] == ["a", "own", "b"]
    assert manager.get_handle(lines.path) is manager.file_handles[lines.path]


def test_after_close_all_files_are_opened_again(manager, lines):
    manager.log(lines.path, "a")
    handle = manager.get_handle(lines.path)
    manager.close_all()
    assert handle.closed
    assert not manager.file_handles
    manager.log(lines.path, "b")
    assert [record["event"] for record in lines] == ["a", "b"]


def test_a_handle_that_the_caller_closed_is_opened_again(manager, lines):
    manager.get_handle(lines.path).close()
    manager.log(lines.path, "a")
    assert lines.last["event"] == "a"


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_steps_keep_few_files_open(manager, tmp_path):
    paths = [str(tmp_path / f"step_{step}/worker_0.jsonl") for step in range(200)]
    before = open_descriptors()
    for path in paths:
        manager.log(path, "a")
    assert open_descriptors() <= before + 16
    manager.log(paths[0], "b")
    assert [record["event"] for record in Lines(paths[0])] == ["a", "b"]


def test_a_file_that_is_deleted_is_begun_anew(manager, lines):
    manager.log(lines.path, "a")
    Path(lines.path).unlink()
    manager.log(lines.path, "b")
    assert [record["event"] for record in lines] == ["b"]


class Unwilling:
    def __repr__(self):
        raise RuntimeError("no")


def cycle():
    extra = {}
    extra["self"] = extra
    return extra


@pytest.mark.parametrize(
    ("extra", "logged"),
    [
        ({"x": float("nan"), "ok": 1}, {"x": None, "ok": 1}),
        ({"x": 2**80, "ok": 1}, {"x": str(2**80), "ok": 1}),
        ({"x": "\ud800", "ok": 1}, {"x": "?", "ok": 1}),
        ({"x": b"abc", "ok": 1}, {"x": "<3 bytes>", "ok": 1}),
        ({"x": {3}, 1: 2}, {"x": [3], "1": 2}),
        ({"x": "y" * 10**7, "ok": 1}, {"x": "y" * 256 + "...", "ok": 1}),
        ({"deep": {"a": {"b": {"c": {"d": {"e": 1}}}}}}, {"deep": {"a": {"b": {"c": {"d": {"e": 1}}}}}}),
        ([1, 2], [1, 2]),
        ("text", "text"),
    ],
    ids=range(9),
)
def test_a_value_that_json_cannot_hold_affects_no_other_field(manager, lines, extra, logged):
    manager.log(lines.path, "a", extra=extra, step=3)
    assert lines.last["extra"] == logged
    assert lines.last["step"] == 3


@pytest.mark.parametrize(
    "value", [Unwilling(), object(), cycle(), [cycle()], lambda: None, 10**10_000], ids=range(6)
)
def test_no_value_raises_or_loses_its_record(manager, lines, value):
    manager.log(lines.path, "a", extra={"x": value, "ok": 1}, own=value, step=3)
    assert lines.last["extra"]["ok"] == 1
    assert lines.last["step"] == 3


def test_numbers_of_numpy_and_torch_are_numbers(manager, lines):
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    extra = {"a": numpy.float32(0.5), "b": numpy.arange(3), "c": torch.tensor(4), "d": torch.zeros(2, 3)}
    manager.log(lines.path, "a", duration=numpy.float64(0.5), extra=extra)
    assert lines.last["duration_sec"] == 0.5
    assert lines.last["extra"] == {"a": 0.5, "b": [0, 1, 2], "c": 4, "d": "tensor(cpu, f32, [2, 3])"}


def test_a_record_too_long_for_a_line_keeps_its_short_fields(manager, lines):
    extra = {f"text {number}": "y" * 1000 for number in range(300)}
    manager.log(lines.path, "a", duration=0.5, extra={**extra, "request_id": "r"}, workid=1, step=3)
    assert Path(lines.path).stat().st_size < 64 * 1024
    assert lines.last | {"timestamp": ""} == {
        "timestamp": "",
        "event": "a",
        "duration_sec": 0.5,
        "workid": 1,
        "step": 3,
        "truncated": True,
        "extra": {"request_id": "r"},
    }


@pytest.mark.parametrize("path", ["/dev/null/x.jsonl", "", None, "a\0b", "/proc/none/x.jsonl"])
def test_a_path_that_cannot_be_written_is_said_once_and_never_raises(manager, path):
    for _ in range(3):
        manager.log(path, "a")
        with manager.get_handle(path) as handle:
            handle.write("lost\n")
    assert [said["times"] for said in notices.noticed()] == [3, 3]


def test_a_full_disk_is_said_once_and_never_raises(manager):
    for _ in range(3):
        manager.log("/dev/full", "a")
    (said,) = notices.noticed()
    assert "No space left" in said["notice"]
    assert said["times"] == 3


def test_threads_mix_no_lines(manager, lines):
    def work(thread):
        for number in range(300):
            manager.log(lines.path, "a", extra={"padding": "x" * 5000}, workid=thread, step=number)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [(record["workid"], record["step"]) for record in lines]
    assert sorted(seen) == [(thread, number) for thread in range(4) for number in range(300)]


def test_a_forked_child_goes_on_although_a_thread_of_its_parent_was_writing(run_script, tmp_path):
    run_script(
        f"""
        import os, threading
        from sglang_instrument import SGLangLogManager

        manager, path, stop = SGLangLogManager(), {str(tmp_path / "x.jsonl")!r}, threading.Event()
        def work():
            while not stop.is_set():
                manager.log(path, "parent")
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(20):
            child = os.fork()
            if child == 0:
                manager.log(path, "child", step=number)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        """
    )
    steps = [record["step"] for record in Lines(tmp_path / "x.jsonl") if record["event"] == "child"]
    assert steps == list(range(20))


def test_a_pickled_log_manager_works(manager, lines):
    manager.log(lines.path, "a")
    for copied in (pickle.loads(pickle.dumps(manager)), copy.deepcopy(manager)):
        copied.log(lines.path, "b")
        copied.close_all()
    assert [record["event"] for record in lines] == ["a", "b", "b"]


def test_importing_the_package_does_not_import_it():
    code = """
import sys, sglang_instrument
assert "sglang_instrument.recording.log_manager" not in sys.modules
assert sglang_instrument.SGLangLogManager.__module__ == "sglang_instrument.recording.log_manager"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_has_no_other_lazy_names():
    with pytest.raises(AttributeError, match="'sglang_instrument' has no attribute 'nonsense'"):
        _ = sglang_instrument.nonsense
