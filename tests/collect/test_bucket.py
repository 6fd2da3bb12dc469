"""A run goes to storage as its steps close, and comes back; here the storage is a folder, read by fsspec."""

import os
import time

import pytest

from sglang_instrument.cli.main import main
from sglang_instrument.collect.by_bucket import is_closed, upload

pytest.importorskip("fsspec")
CLOSED = '{"event":"step_closed"}'


def log(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def read(path):
    import zstandard

    with zstandard.open(path, "rb") as file:
        return file.read().decode()


def send(run, url):
    return upload(run, url, lambda done, total: None)


@pytest.mark.parametrize(
    ("lines", "closed"),
    [
        (['{"event":"log_opened"}', "one"], False),
        (["one", CLOSED], True),
        (["one", CLOSED, "late"], True),
        (["one", '{"event":"log_closed"}'], True),
        ([CLOSED, '{"event":"log_opened"}', "again"], False),
    ],
)
def test_the_last_mark_says_whether_a_log_is_closed(tmp_path, lines, closed):
    log(tmp_path / "worker_0.jsonl", *lines)
    assert is_closed(tmp_path / "worker_0.jsonl") is closed


def test_a_log_to_which_nobody_writes_counts_as_closed(tmp_path):
    path = tmp_path / "worker_0.jsonl"
    log(path, "killed")
    os.utime(path, (time.time() - 700, time.time() - 700))
    assert is_closed(path)


def test_closed_logs_are_written_once_and_come_back(tmp_path):
    run, url = tmp_path / "run", f"file://{tmp_path}/bucket/run"
    log(run / "step_1/worker_0.jsonl", *["a line"] * 1000, CLOSED)
    log(run / "step_2/worker_0.jsonl", "open")
    log(run / "processes/worker_0.json", "{}")
    first = send(run, url)
    assert (first["written"], first["open"]) == (2, ["step_2/worker_0.jsonl"])
    assert send(run, url)["written"] == 0
    log(run / "step_2/worker_0.jsonl", CLOSED)
    assert (send(run, url)["written"], send(run, url)["left"]) == (1, 3)
    for _ in range(2):
        assert main(["collect", url, "-o", str(tmp_path / "here")]) == 0
        for step in (1, 2):
            [path] = (tmp_path / f"here/step_{step}").iterdir()
            assert read(path) == (run / f"step_{step}/worker_0.jsonl").read_text()
    log(run / "step_1/worker_0.jsonl", "late", CLOSED)
    send(run, url)
    assert main(["collect", url, "-o", str(tmp_path / "here")]) == 0
    [path] = (tmp_path / "here/step_1").iterdir()
    assert read(path).endswith(f"late\n{CLOSED}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["logs/run", "-o", "here"], "say where the files are"),
        (["logs/run", "-o", "here", "--ray", "--every", "0"], "--every must be from 1"),
        (["logs/run", "-o", "here", "--ray", "--every", "inf"], "--every must be from 1"),
        (["s3://b/run", "-o", "here", "--ray"], "is read by fsspec"),
        (["s3://b/run", "--to", "s3://b/other"], "collect from nodes with -o first"),
        (["logs/run", "--to", "nonsense://b"], "nonsense://b"),
        (["logs/run", "-o", "here", "--ssh=-oProxyCommand=x"], "is not a host"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs/run").mkdir(parents=True)
    assert main(["collect", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_a_run_that_is_nowhere_leaves_no_folder_behind(tmp_path, capsys):
    (tmp_path / "bucket").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "before/.collect").mkdir(parents=True)
    (tmp_path / "before/of a person").mkdir()
    (tmp_path / "before/.collect/state.json").write_text('{"version":1,"files":[]}')
    for here in ("here", "mine", "before"):
        url = f"file://{tmp_path}/bucket/run"
        assert main(["collect", url, "-o", str(tmp_path / here)]) == 2
        assert "has no run" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before", "bucket", "mine"]
    assert list((tmp_path / "mine").iterdir()) == []
    assert (tmp_path / "before/of a person").is_dir()
