"""The tail gives each whole line once, whatever happens to the files meanwhile."""

import os
import random
import time

import pytest

from sglang_instrument.live.counting import tail
from sglang_instrument.live.counting.tail import Tail


class Clock:
    """Monotonic seconds that the test sets."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def lines_of(followed, clock):
    """Read until there is no more, and return the lines of each file."""
    lines = {}
    clock.now += 30.0
    while True:
        for file, piece in followed.read():
            assert piece.endswith(b"\n")
            lines.setdefault(file.path, []).extend(piece.splitlines())
        if not followed.more:
            return lines


def write(path, text, mode="a"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.write(text)


def test_lines_come_once_and_only_when_they_are_whole(tmp_path, clock):
    followed = Tail(tmp_path, clock=clock)
    path = tmp_path / "step_1" / "worker_0.jsonl"
    write(path, '{"a": 1}\n{"b"')
    assert lines_of(followed, clock) == {str(path): [b'{"a": 1}']}
    assert lines_of(followed, clock) == {}
    write(path, ': 2}\n{"c": 3}\n')
    assert lines_of(followed, clock) == {str(path): [b'{"b": 2}', b'{"c": 3}']}


def test_a_text_cut_anywhere_gives_the_same_lines(tmp_path, clock):
    draw = random.Random(3)
    text = "".join(f'{{"line": {number}, "text": "{"é" * draw.randrange(40)}"}}\n' for number in range(400))
    followed, path, got, data = (
        Tail(tmp_path, clock=clock),
        tmp_path / "step_1" / "worker_0.jsonl",
        [],
        text.encode(),
    )
    path.parent.mkdir()
    while data:
        cut = draw.randrange(1, 900)
        with path.open("ab") as file:
            file.write(data[:cut])
        data = data[cut:]
        got += lines_of(followed, clock).get(str(path), [])
    assert b"\n".join(got).decode() + "\n" == text


def test_a_large_file_comes_in_pieces(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(tail, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(tail, "_ROUND_BYTES", 2500)
    paths = [tmp_path / "step_1" / f"worker_{rank}.jsonl" for rank in range(3)]
    for path in paths:
        write(path, "".join(f'{{"line": {number}}}\n' for number in range(500)))
    followed = Tail(tmp_path, clock=clock)
    first = {file.path for file, _ in followed.read()}
    assert followed.more
    assert len(first) == 3
    lines = lines_of(followed, clock)
    assert not followed.more
    assert all(lines[str(path)][-1] == b'{"line": 499}' for path in paths)


def test_a_line_without_an_end_is_given_up(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(tail, "_PIECE_BYTES", 64)
    monkeypatch.setattr(tail, "_LONGEST_LINE", 4096)
    path = tmp_path / "step_1" / "worker_0.jsonl"
    write(path, "x" * 5000 + '\n{"a": 1}\n')
    followed, pieces = Tail(tmp_path, clock=clock), []
    clock.now += 10
    for _ in range(50):
        pieces += [piece for _, piece in followed.read()]
        clock.now += 1
    assert b"".join(pieces) == path.read_bytes()


def test_a_file_that_is_cut_or_replaced_is_read_from_its_begin(tmp_path, clock):
    followed, path = Tail(tmp_path, clock=clock), tmp_path / "step_1" / "worker_0.jsonl"
    write(path, '{"a": 1}\n{"a": 2}\n')
    lines_of(followed, clock)
    write(path, '{"b": 1}\n', mode="w")
    assert lines_of(followed, clock) == {str(path): [b'{"b": 1}']}
    write(path.with_name("new"), '{"c": 1}\n{"c": 2}\n{"c": 3}\n')
    path.with_name("new").replace(path)
    assert len(lines_of(followed, clock)[str(path)]) == 3
    assert [file.resets for file in followed.files()] == [2]


def test_files_and_folders_may_vanish_and_come_late(tmp_path, clock):
    followed = Tail(tmp_path, clock=clock)
    first, second = tmp_path / "step_1" / "worker_0.jsonl", tmp_path / "step_2" / "worker_0.jsonl"
    write(first, '{"a": 1}\n')
    lines_of(followed, clock)
    first.unlink()
    assert lines_of(followed, clock) == {}
    first.parent.rmdir()
    write(second, '{"b": 1}\n')
    assert lines_of(followed, clock) == {str(second): [b'{"b": 1}']}
    late = tmp_path / "step_2" / "worker_1.jsonl"
    write(late, '{"c": 1}\n')
    assert lines_of(followed, clock) == {str(late): [b'{"c": 1}']}
    write(first, '{"a": 2}\n')
    assert lines_of(followed, clock) == {str(first): [b'{"a": 2}']}


def test_what_is_no_log_is_not_read(tmp_path, clock):
    write(tmp_path / "step_1" / "worker_0.jsonl.zst", "x\n")
    write(tmp_path / "step_1" / "notes.txt", "x\n")
    write(tmp_path / "processes" / "worker_0.json", "{}\n")
    write(tmp_path / "profiles" / "worker_0.jsonl", "{}\n")
    os.mkfifo(tmp_path / "step_1" / "worker_7.jsonl")  # a read of it would wait for a writer
    followed = Tail(tmp_path, clock=clock)
    assert lines_of(followed, clock) == {}


def test_an_unreadable_file_is_named_until_it_can_be_read(tmp_path, clock, monkeypatch):
    path = tmp_path / "step_1" / "worker_0.jsonl"
    write(path, '{"a": 1}\n')
    with monkeypatch.context() as patched:
        patched.setattr(tail, "open_regular", _refuse)
        followed = Tail(tmp_path, clock=clock)
        assert lines_of(followed, clock) == {}
        assert followed.failures == {str(path): "Permission denied"}
    assert lines_of(followed, clock) == {str(path): [b'{"a": 1}']}
    assert not followed.failures


def _refuse(path):
    raise PermissionError(13, "Permission denied", path)


def test_of_a_long_run_only_the_newest_steps_are_read(tmp_path, clock):
    begun = time.time() - 1000
    for step in range(1, 41):
        path = tmp_path / f"step_{step}" / "worker_0.jsonl"
        write(path, f'{{"step": {step}}}\n')
        os.utime(path, (begun + step, begun + step))
        os.utime(path.parent, (begun + step, begun + step))
    followed = Tail(tmp_path, clock=clock)
    read_lines = lines_of(followed, clock)
    newest = [b'{"step": %d}' % step for step in (37, 38, 39, 40)]
    assert sorted(line for lines in read_lines.values() for line in lines) == newest
    assert len(followed.files()) == 8
    write(tmp_path / "step_36" / "worker_0.jsonl", '{"more": 1}\n')
    assert [*lines_of(followed, clock).values()] == [[b'{"more": 1}']]


def test_of_large_steps_only_the_last_two_are_read(tmp_path, clock):
    begun = time.time() - 1000
    for step in range(1, 6):
        path = tmp_path / f"step_{step}" / "worker_0.jsonl"
        write(path, f'{{"step": {step}}}\n' + " " * (2**24 if step == 3 else 0) + "\n")
        os.utime(path, (begun + step, begun + step))
        os.utime(path.parent, (begun + step, begun + step))
    read_lines = lines_of(Tail(tmp_path, clock=clock), clock)
    steps = [line for lines in read_lines.values() for line in lines if line.strip()]
    assert sorted(steps) == [b'{"step": 4}', b'{"step": 5}']


def test_a_resumed_run_is_found_in_the_folder_of_an_old_step(tmp_path, clock):
    begun = time.time() - 1000
    for step in range(1, 41):
        path = tmp_path / f"step_{step}" / "worker_0.jsonl"
        write(path, f'{{"timestamp":"x","event":"log_opened"}}\n{{"step": {step}}}\n')
        os.utime(path, (begun + step, begun + step))
        os.utime(path.parent, (begun + step, begun + step))
    followed = Tail(tmp_path, clock=clock)
    lines_of(followed, clock)
    again = tmp_path / "step_3" / "worker_0.jsonl"
    write(again, '{"timestamp":"y","event":"log_opened"}\n{"again": 3}\n')
    assert lines_of(followed, clock) == {
        str(again): [b'{"timestamp":"y","event":"log_opened"}', b'{"again": 3}']
    }


def test_a_folder_that_was_left_is_read_on_where_it_was_left(tmp_path, clock):
    followed, first = Tail(tmp_path, clock=clock), tmp_path / "step_1" / "worker_0.jsonl"
    write(first, '{"a": 1}\n')
    lines_of(followed, clock)
    for step in range(2, 20):
        path = tmp_path / f"step_{step}" / "worker_0.jsonl"
        write(path, "{}\n")
        os.utime(path.parent, (time.time() + step, time.time() + step))
        lines_of(followed, clock)
    assert str(first) not in {file.path for file in followed.files()}
    write(first, '{"a": 2}\n')
    os.utime(first, (time.time() + 100, time.time() + 100))
    assert lines_of(followed, clock) == {str(first): [b'{"a": 2}']}


def test_the_run_folder_may_vanish(tmp_path, clock):
    followed = Tail(tmp_path / "run", clock=clock)
    with pytest.raises(FileNotFoundError):
        list(followed.read())
