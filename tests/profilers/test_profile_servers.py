"""Profile real servers behind real routers: start, stop, hanging and killed servers, a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from own_group import end_group, free_port, run_in_group
from sglang_server import model_of_the_demo

from sglang_instrument.cli.main import main
from sglang_instrument.demo.cpu_platform import write_plugin
from sglang_instrument.profilers.from_outside import notes
from sglang_instrument.profilers.from_outside.probe_requests import send_probes
from sglang_instrument.profilers.http_client import ask
from sglang_instrument.profilers.identify_engine import identify
from sglang_instrument.profilers.workers import Worker, WorkersError, workers_behind

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
ROUTERS = {version: ROOT / ".envs" / f"router-{version}" for version in ("0.3.2", "0.1.9")}
START_SEC = 1200
ARGUMENTS = (
    *("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-cuda-graph"),
    *("--disable-overlap-schedule", "--max-total-tokens", "4096", "--max-running-requests", "8"),
    *("--context-length", "512", "--chunked-prefill-size", "512", "--mem-fraction-static", "0.2"),
    *("--skip-server-warmup", "--sleep-on-idle", "--log-level", "warning", "--host", "127.0.0.1"),
)


class Process:
    """A server or a router in its own process group, so that the test can end all of its processes."""

    def __init__(self, command: list[str], port: int, log: Path, **environment: str) -> None:
        self.url, self.log = f"http://127.0.0.1:{port}", log
        self.command, self.environment = [*command, "--port", str(port)], environment
        self.was_killed = False
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as printed:
            self.process = subprocess.Popen(
                self.command,
                stdout=printed,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", **self.environment},
                start_new_session=True,
            )

    def crashed(self) -> bool:
        """Return whether the server ended although no test killed it, as when PyTorch's profiler crashes."""
        return not self.was_killed and self.process.poll() is not None

    def wait_for(self, path: str, ready: Any = bool) -> None:
        deadline = time.monotonic() + START_SEC
        while not ((reply := ask("GET", self.url + path, timeout_sec=60)).ok and ready(reply.json() or True)):
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, (reply, self.log.read_text(errors="replace")[-3000:])
            time.sleep(0.2)

    def tell(self, number: signal.Signals) -> None:
        self.was_killed |= number == signal.SIGKILL
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def end(self) -> None:
        self.tell(signal.SIGCONT)
        end_group(self.process)

    def restart(self) -> None:
        self.end()
        self.start()
        self.wait_for("/health")
        self.was_killed = False


@pytest.fixture(scope="module")
def started_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Process]]:
    """Two real servers with the demo's model, on the CPU."""
    folder = tmp_path_factory.mktemp("servers")
    write_plugin(folder)
    model = model_of_the_demo()
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server", "--model-path", str(model)]
    started: list[Process] = []
    try:
        for number in range(2):
            log = folder / f"server_{number}.txt"
            started.append(Process([*command, *ARGUMENTS], free_port(), log, PYTHONPATH=path))
        for server in started:
            server.wait_for("/health")
        yield started
    finally:
        for server in started:
            server.end()


@pytest.fixture
def servers(started_servers: list[Process]) -> list[Process]:
    """The two servers; one that crashed in an earlier test is started again."""
    for server in filter(Process.crashed, started_servers):
        server.restart()
    return started_servers


@pytest.fixture(scope="module")
def router(started_servers: list[Process], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from routed("0.3.2", started_servers, tmp_path_factory.mktemp("router"))


def routed(version: str, servers: list[Process], folder: Path) -> Iterator[str]:
    if not (ROUTERS[version] / ".done").exists():
        pytest.skip(f"no router {version} here; tests/environments/router.sh makes a place for it")
    command = [sys.executable, "-W", "ignore", "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
    command += ["--prometheus-port", str(free_port()), "--worker-urls", *(server.url for server in servers)]
    process = Process(command, free_port(), folder / "router.txt", PYTHONPATH=str(ROUTERS[version]))
    assert not any(server.process.poll() for server in servers), "the router would wait for a dead server"
    try:
        path, key = ("/workers", "workers") if version > "0.2" else ("/list_workers", "urls")
        process.wait_for(path, lambda answer: len(answer[key]) == len(servers))
        yield process.url
    finally:
        process.end()


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(notes, "_LEAST_FREE_BYTES", 0)


def profile(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    got = main(["profile", *map(str, arguments)])
    out, error = capsys.readouterr()
    assert got == code, (out, error)
    return out


def generate(server: Process, new_tokens: int = 8) -> None:
    worker, engine = Worker(0, server.url), identify(server.url, timeout_sec=60)
    (reply,) = send_probes(worker, engine, requests=1, new_tokens=new_tokens, timeout_sec=START_SEC)
    assert reply.ok, reply


# The order of the tests matters: the last ones kill the servers.


@pytest.mark.parametrize("version", ROUTERS)
def test_workers_are_found_behind_the_real_router(version, servers, tmp_path):
    with closing(routed(version, servers, tmp_path)) as router:
        assert {worker.url for worker in workers_behind([next(router)])} == {server.url for server in servers}


def test_capture_does_everything_in_one_command(capsys, router, tmp_path):
    shown = profile(
        *(capsys, "capture", "--router-url", router, "--output-dir", tmp_path, "--requests", 2),
        *("--activities", "CPU", "--num-steps", 4, "--no-with-stack", "--profile-prefix", "mine"),
    )
    assert "2 of 2 workers" in shown
    assert "4 of 4 probe requests were answered" in shown
    assert "2 traces" in shown
    assert "prefill and decode" in shown
    traces = sorted(tmp_path.rglob("mine-*-TP-0.trace.json.gz"))
    assert [trace.parent.name for trace in traces] == ["worker_0", "worker_1"]


def test_check_finds_nothing_wrong_and_starts_nothing(capsys, servers, tmp_path):
    urls = [server.url for server in servers]
    answer = json.loads(profile(capsys, "check", "--worker-url", *urls, "--output-dir", tmp_path, "--json"))
    said = {(row["number"], row["what"]): row["ok"] for row in answer["findings"]}
    assert [said[number, "routes"] for number in (0, 1)] == [True, True]
    assert ask("POST", f"{urls[0]}/stop_profile").status == 500, "as SGLang answers when nothing runs"


def test_stop_without_start_is_told_from_a_failure(capsys, servers, tmp_path):
    urls = [server.url for server in servers]
    shown = profile(capsys, "stop", "--worker-url", *urls, "--output-dir", tmp_path)
    assert shown.count("idle") == 2


def test_an_unlimited_capture_is_stopped_and_written(capsys, servers, tmp_path):
    urls = [server.url for server in servers]
    arguments = ("--worker-url", *urls, "--output-dir", tmp_path)
    shown = profile(capsys, "start", *arguments, "--num-steps", 0, "--activities", "CPU", "--no-with-stack")
    assert "records until `profile stop`" in shown
    for server in servers:
        generate(server)
    shown = profile(capsys, "stop", *arguments)
    assert shown.count("stopped") == 2
    assert shown.count("whole") == 2


def test_stages_are_recorded_apart(capsys, servers, tmp_path):
    arguments = ("capture", "--worker-url", servers[0].url, "--output-dir", tmp_path, "--requests", 1)
    by_stage = ("--profile-by-stage", "--num-steps", 2, "--activities", "CPU", "--no-with-stack")
    try:
        shown = profile(capsys, *arguments, *by_stage)
    except AssertionError:
        if (crash := crash_of(servers[0])) is None:
            raise
        servers[0].process.wait()
        pytest.skip(f"PyTorch's profiler crashed the server: {crash}")
    assert "-EXTEND.trace.json.gz" in shown
    assert "-DECODE.trace.json.gz" in shown


def crash_of(server: Process) -> str | None:
    """Return the line of the native stack that names PyTorch's profiler, if it crashed the server."""
    lines = server.log.read_text(errors="replace").splitlines()
    crashed = "Fatal Python error: Segmentation fault" in lines
    return next((line for line in lines if crashed and "torch::profiler" in line), None)


def test_a_hanging_server_is_named_and_the_other_records(capsys, servers, tmp_path):
    well, hanging = servers
    hanging.tell(signal.SIGSTOP)
    try:
        shown = profile(
            *(capsys, "start", "--worker-url", well.url, hanging.url, "--output-dir", tmp_path),
            *("--activities", "CPU", "--no-with-stack", "--num-steps", 2, "--timeout", 60),
            code=1,
        )
    finally:
        hanging.tell(signal.SIGCONT)
    assert f"worker 1, {hanging.url}: no answer within 60 s" in shown
    generate(well)
    profile(capsys, "stop", "--worker-url", well.url, hanging.url, "--output-dir", tmp_path)
    assert len(list(tmp_path.rglob("*.trace.json.gz"))) >= 1


def test_a_server_killed_while_recording_is_named_and_the_other_writes_its_trace(
    capsys, servers, router, tmp_path
):
    well, killed = servers
    urls = [well.url, killed.url]
    arguments = ("--worker-url", *urls, "--output-dir", tmp_path)
    profile(capsys, "start", *arguments, "--num-steps", 0, "--activities", "CPU", "--no-with-stack")
    generate(well)
    killed.tell(signal.SIGKILL)
    killed.process.wait()
    shown = profile(capsys, "stop", *arguments, "--retries", 0, code=1)
    assert f"worker 1, {killed.url}: connection refused" in shown
    assert "whole" in shown
    # A router lists a dead server for a while, or for ever: until then it is named.
    code = main(["profile", "status", "--router-url", router, "--output-dir", str(tmp_path)])
    assert (code == 1 and "no answer" in capsys.readouterr().out) or killed.url not in listed_by(router)
    killed.restart()


def test_a_server_that_dies_between_the_stages_is_no_success(capsys, servers, tmp_path):
    server = servers[1]

    def kill_after_the_first_trace() -> None:
        while not list(tmp_path.rglob("*-EXTEND.trace.json.gz")):
            time.sleep(0.001)
        server.tell(signal.SIGKILL)

    killer = threading.Thread(target=kill_after_the_first_trace, daemon=True)
    killer.start()
    shown = profile(
        *(capsys, "capture", "--worker-url", server.url, "--output-dir", tmp_path, "--requests", 1),
        *("--profile-by-stage", "--num-steps", 2, "--activities", "CPU", "--no-with-stack"),
        *("--max-new-tokens", 256),
        code=1,
    )
    killer.join()
    assert "0 of 1 probe requests were answered: the workers' own logs tell why" in shown


def listed_by(router: str) -> set[str]:
    try:
        return {worker.url for worker in workers_behind([router])}
    except WorkersError:
        return set()


def test_a_full_disk_ends_the_server_and_this_is_reported(capsys, servers, tmp_path):
    server = servers[0]
    arguments = ("--worker-url", server.url, "--output-dir", tmp_path, "--profile-id", "full")
    profile(capsys, "start", *arguments, "--num-steps", 0, "--activities", "CPU", "--no-with-stack")
    folder = tmp_path / "full" / "worker_0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "full-worker_0-TP-0.trace.json.gz").symlink_to("/dev/full")
    generate(server)
    shown = profile(capsys, "stop", *arguments, "--timeout", 120, code=1)
    assert "failed" in shown
    assert "full or missing disk" in shown or "no answer within" in shown


def test_a_profiled_step_of_the_demo_leaves_its_traces_beside_its_records(tmp_path):
    options = {"STEPS": "2-3", "WORKERS": "all", "OPTIONS": "activities=CPU,with_stack=0,num_steps=6"}
    environment = {f"SGLANG_INSTRUMENT_PROFILE_{name}": value for name, value in options.items()}
    command = [sys.executable, "-m", "sglang_instrument.cli.main", "demo", "--workers", "1", "--steps", "3"]
    done = run_in_group(
        [*command, "--requests", "2", "--log-dir", str(tmp_path), "--experiment", "d"],
        env={**os.environ, **environment, "COLUMNS": "160"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=START_SEC,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Two steps: on a busy machine, one may end before its profiler starts.
    traces = [trace.name for trace in (tmp_path / "d" / "profiles").rglob("*.trace.json.gz")]
    assert traces
    for trace in traces:
        step = trace.removeprefix("d-step_").partition("-")[0]
        assert trace == f"d-step_{step}-worker_0-TP-0.trace.json.gz"
        records = (tmp_path / "d" / f"step_{step}" / "worker_0.jsonl").read_text().splitlines()
        (start,) = [one for one in map(json.loads, records) if one["event"] == "profile_start"]
        assert start["extra"]["profile_id"] == f"d-step_{step}-worker_0"
    assert "profile_start" not in (tmp_path / "d" / "step_1" / "worker_0.jsonl").read_text()
