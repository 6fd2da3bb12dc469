"""Profile real servers behind a real router: start, stop, hanging and killed servers, a full disk."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from awaited import wait_for
from routed_engines import LACKING
from routed_engines import router as running_router
from sglang_server import DEADLINE_SEC, Server

from sglang_instrument.cli.main import main
from sglang_instrument.profilers.from_outside import notes
from sglang_instrument.profilers.from_outside.probe_requests import send_probes
from sglang_instrument.profilers.http_client import ask
from sglang_instrument.profilers.identify_engine import identify
from sglang_instrument.profilers.workers import EngineWorker, WorkersError, workers_behind

pytestmark = pytest.mark.engine

CPU = ("--activities", "CPU", "--no-with-stack")


@pytest.fixture
def servers(two_servers: list[Server]) -> list[Server]:
    """The two servers; one that has ended, as when PyTorch's profiler crashed it, is started again."""
    for server in two_servers:
        start_if_it_has_ended(server)
    return two_servers


@pytest.fixture
def server(two_servers: list[Server]) -> Server:
    """The second of the two servers; an earlier test may have killed the other one."""
    start_if_it_has_ended(two_servers[1])
    return two_servers[1]


def start_if_it_has_ended(server: Server) -> None:
    if server.process.poll() is not None:
        server.restart()


@pytest.fixture(scope="module")
def router(two_servers: list[Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if "0.3.2" in LACKING:
        pytest.skip("no router 0.3.2 here; tests/environments/router.sh makes a place for it")
    with running_router("0.3.2", two_servers, tmp_path_factory.mktemp("router")) as url:
        yield url


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


def generate(server: Server, new_tokens: int = 8) -> None:
    worker, engine = EngineWorker(0, server.url), identify(server.url, timeout_sec=60)
    (reply,) = send_probes(worker, engine, requests=1, new_tokens=new_tokens, timeout_sec=DEADLINE_SEC)
    assert reply.ok, reply


# The last tests kill the servers: in another order, more servers are started.


def test_capture_does_everything_in_one_command(capsys, router, tmp_path):
    shown = profile(
        *(capsys, "capture", "--router-url", router, "--output-dir", tmp_path, "--requests", 2),
        *(*CPU, "--num-steps", 4, "--profile-prefix", "mine"),
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
    said = {(row["number"], row["what"]): row["ok"] for row in answer["checks"]}
    assert [said[number, "routes"] for number in (0, 1)] == [True, True]
    assert ask("POST", f"{urls[0]}/stop_profile").status == 500, "as SGLang answers when nothing runs"


def test_stop_without_start_is_told_from_a_failure(capsys, servers, tmp_path):
    urls = [server.url for server in servers]
    shown = profile(capsys, "stop", "--worker-url", *urls, "--output-dir", tmp_path)
    assert shown.count("idle") == 2


def test_an_unlimited_capture_is_stopped_and_written(capsys, servers, tmp_path):
    urls = [server.url for server in servers]
    arguments = ("--worker-url", *urls, "--output-dir", tmp_path)
    shown = profile(capsys, "start", *arguments, "--num-steps", 0, *CPU)
    assert "records until `profile stop`" in shown
    for server in servers:
        generate(server)
    shown = profile(capsys, "stop", *arguments)
    assert shown.count("stopped") == 2
    assert shown.count("whole") == 2


def test_stages_are_recorded_apart(capsys, server, tmp_path):
    printed_bytes = server.errors.stat().st_size
    arguments = ("capture", "--worker-url", server.url, "--output-dir", tmp_path, "--requests", 1)
    code = main(["profile", *map(str, (*arguments, "--profile-by-stage", "--num-steps", 2, *CPU))])
    shown = capsys.readouterr().out
    if code:  # a server that crashed may still print why, and ends
        wait_for(lambda: server.process.poll() is not None or server.is_up(), "neither up nor over")
    if crash_of(server, printed_bytes):  # PyTorch's profiler does so now and then
        assert code == 1
        assert "0 of 1 probe requests were answered: the workers' own logs tell why" in shown
        server.process.wait()
    else:
        assert code == 0, f"{shown}\n{printed_by(server, printed_bytes)[-4000:]}"
        assert "-EXTEND.trace.json.gz" in shown
        assert "-DECODE.trace.json.gz" in shown


def printed_by(server: Server, since_bytes: int) -> str:
    return server.errors.read_bytes()[since_bytes:].decode(errors="replace")


def crash_of(server: Server, since_bytes: int) -> str | None:
    """Return the line of the native stack that names PyTorch's profiler, if it crashed the server since."""
    lines = printed_by(server, since_bytes).splitlines()
    crashed = "Fatal Python error: Segmentation fault" in lines
    return next((line for line in lines if crashed and "torch::profiler" in line), None)


def test_a_hanging_server_is_named_and_the_other_records(capsys, servers, tmp_path):
    well, hanging = servers
    hanging.signal(signal.SIGSTOP)
    try:
        shown = profile(
            *(capsys, "start", "--worker-url", well.url, hanging.url, "--output-dir", tmp_path),
            *(*CPU, "--num-steps", 2, "--timeout", 15),
            code=1,
        )
    finally:
        hanging.signal(signal.SIGCONT)
    assert f"worker 1, {hanging.url}: no answer within 15 s" in shown
    generate(well)
    profile(capsys, "stop", "--worker-url", well.url, hanging.url, "--output-dir", tmp_path)
    assert len(list(tmp_path.rglob("*.trace.json.gz"))) >= 1


def test_a_server_killed_while_recording_is_named_and_the_other_writes_its_trace(
    capsys, servers, router, tmp_path, request
):
    killed, well = servers
    urls = [killed.url, well.url]
    arguments = ("--worker-url", *urls, "--output-dir", tmp_path)
    profile(capsys, "start", *arguments, "--num-steps", 0, *CPU)
    generate(well)
    request.getfixturevalue("killed")  # test_engine_logs.py reads what the server logged
    killed.kill()  # also if tests in another order had it killed before, and it was started again
    shown = profile(capsys, "stop", *arguments, "--retries", 0, code=1)
    assert f"worker 0, {killed.url}: connection refused" in shown
    assert "whole" in shown
    # A router lists a dead server for a while, or for ever: until then it is named.
    code = main(["profile", "status", "--router-url", router, "--output-dir", str(tmp_path)])
    assert (code == 1 and "no answer" in capsys.readouterr().out) or killed.url not in listed_by(router)


def listed_by(router: str) -> set[str]:
    try:
        return {worker.url for worker in workers_behind([router])}
    except WorkersError:
        return set()


def test_a_full_disk_ends_the_server_and_this_is_reported(capsys, server, tmp_path):
    arguments = ("--worker-url", server.url, "--output-dir", tmp_path, "--profile-id", "full")
    profile(capsys, "start", *arguments, "--num-steps", 0, *CPU)
    folder = tmp_path / "full" / "worker_0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "full-worker_0-TP-0.trace.json.gz").symlink_to("/dev/full")
    generate(server)
    shown = profile(capsys, "stop", *arguments, "--timeout", 120, code=1)
    assert "failed" in shown
    assert "full or missing disk" in shown or "no answer within" in shown
