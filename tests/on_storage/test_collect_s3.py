"""`collect --to s3://` writes closed steps to a real S3 server, and `collect s3://` brings them back."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

pytest.importorskip("s3fs", reason="s3fs is not installed here; tests/environments/storage.sh makes a place")
pytest.importorskip("moto", reason="moto is not installed here; tests/environments/storage.sh makes a place")

CREATE = "import s3fs; s3fs.S3FileSystem().mkdir('bucket')"
CLOSED = '{"event":"step_closed"}'


@pytest.fixture(scope="module")
def server():
    """A server on a free port; yields the environment of its clients."""
    command = [
        sys.executable,
        "-u",
        "-c",
        "from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])",
    ]
    process = subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if address := re.search(r"http://127\.0\.0\.1:[0-9]+", line):
                break
        access = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        client = {
            **os.environ,
            **access,
            "AWS_ENDPOINT_URL": address[0],
            "FSSPEC_S3_ENDPOINT_URL": address[0],
        }
        subprocess.run([sys.executable, "-c", CREATE], env=client, check=True)
        yield client
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def collect(server, tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "sglang_instrument.cli.main", "collect", "--json", *arguments]
        done = subprocess.run(command, env=server, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def log(folder, path, *lines):
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def read(path):
    import zstandard

    with zstandard.open(path, "rb") as file:
        return file.read().decode()


def test_steps_are_written_as_they_close_and_come_back(collect, tmp_path, request):
    run, url = tmp_path / "run", f"s3://bucket/{request.node.name}"
    log(run, "step_1/worker_0.jsonl", *["a line"] * 10_000, CLOSED)
    log(run, "step_2/worker_0.jsonl", "open")
    log(run, "processes/worker_0.json", "{}")
    first = collect("run", "--to", url)
    assert (first["written"], first["open"]) == (2, ["step_2/worker_0.jsonl"])
    assert first["sent_bytes"] < first["bytes"] / 10
    log(run, "step_2/worker_0.jsonl", CLOSED)
    second = collect("run", "--to", url)
    assert (second["written"], second["left"], second["open"]) == (1, 2, [])
    brought = collect(url, "-o", "here")
    assert (brought["files"], brought["missing"]) == (3, [])
    for step in (1, 2):
        [path] = (tmp_path / "here" / f"step_{step}").iterdir()
        assert read(path) == (run / f"step_{step}/worker_0.jsonl").read_text()
    assert collect(url, "-o", "here")["nodes"][0]["new_bytes"] == 0


def test_a_late_record_of_a_closed_step_is_written_and_brought_too(collect, tmp_path, request):
    run, url = tmp_path / "run", f"s3://bucket/{request.node.name}"
    log(run, "step_1/worker_0.jsonl", "early", CLOSED)
    collect("run", "--to", url)
    collect(url, "-o", "here")
    second = int(time.time())  # S3 knows times by the second
    while int(time.time()) == second:
        time.sleep(0.01)
    log(run, "step_1/worker_0.jsonl", '{"event":"log_opened"}', "late", CLOSED)
    collect("run", "--to", url)
    collect(url, "-o", "here")
    [path] = (tmp_path / "here/step_1").iterdir()
    assert read(path) == (run / "step_1/worker_0.jsonl").read_text()


def test_a_bucket_without_the_run_is_named(server, tmp_path):
    command = [
        sys.executable,
        "-m",
        "sglang_instrument.cli.main",
        "collect",
        "s3://bucket/none",
        "-o",
        "here",
    ]
    done = subprocess.run(command, env=server, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "s3://bucket/none has no run" in done.stderr) == (2, True)
