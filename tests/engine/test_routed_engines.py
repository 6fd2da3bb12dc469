"""Two real servers behind the real router: `servers` says of each policy what the engines' metrics say."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from awaited import wait_for, wait_for_rids
from own_group import end_group, free_port
from sglang_server import DEADLINE_SEC, start_server

from sglang_instrument.cli.main import main

pytestmark = pytest.mark.engine

ROUTERS = Path(__file__).parents[2] / ".envs"
#: The version and the policy of each step's router.
POLICIES = {1: ("0.3.2", "round_robin"), 2: ("0.3.2", "cache_aware"), 3: ("0.1.9", "round_robin")}
TALKS, TURNS = 12, 4
#: What `/metrics` of a server counts, by the column of `servers` that must say the same.
COUNTED = {
    "calls": "sglang:num_requests_total",
    "prompt_tokens": "sglang:prompt_tokens_total",
    "completion_tokens": "sglang:generation_tokens_total",
    "cached_tokens": "sglang:cached_tokens_total",
}

CLIENT = """
import json, sys, urllib.request
from concurrent.futures import ThreadPoolExecutor
import sglang_instrument
from sglang_instrument import bind, span

url, step, talks, turns = sys.argv[1], *map(int, sys.argv[2:])
SAMPLING = {"max_new_tokens": 16, "temperature": 0, "ignore_eos": True}
told = []

def ask(ids):
    body = json.dumps({"input_ids": ids, "sampling_params": SAMPLING}).encode()
    request = urllib.request.Request(url + "/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=1200) as reply:
        return json.loads(reply.read())

def talk(number):
    ids = [300 + (13 * number + 7 * place) % 90 for place in range(64)]
    with bind(step=step), span("request", request_id=f"{step}-{number}"):
        for turn in range(turns):
            with span("turn_engine_call", request_id=f"{step}-{number}", turn=turn) as call:
                reply = ask(ids)
                call.add(rid=reply["meta_info"]["id"])
            told.append({"turn": turn, **reply["meta_info"]})
            ids = ids + reply["output_ids"] + [300 + (number + 3 * turn + place) % 90 for place in range(16)]

sglang_instrument.install()
with bind(step=step), span("total_step_duration"), ThreadPoolExecutor(3) as pool:
    list(pool.map(talk, range(talks)))
sglang_instrument.uninstall()
print(json.dumps(told))
"""


@dataclass
class Routed:
    """The run that two servers and their callers logged; by step: replies, and what each server counted."""

    folder: Path
    replies: dict[int, list[dict[str, Any]]]
    counted: dict[int, list[Counter[str]]]


def read(port: int, path: str, method: str = "GET") -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return bytes(reply.read())


def counts_of(port: int) -> Counter[str]:
    """Return the sums of a server's own counters."""
    found: Counter[str] = Counter()
    for line in read(port, "/metrics").decode().splitlines():
        name = line.partition("{")[0]
        if name in COUNTED.values():
            found[name] += round(float(line.rpartition(" ")[2]))
    return found


def counts_since(ports: list[int], before: list[Counter[str]], calls: int) -> list[Counter[str]]:
    """Return what each server has counted since, when they have counted so many calls."""
    counted: list[Counter[str]] = []

    def all_are() -> bool:
        counted[:] = [counts_of(port) - was for port, was in zip(ports, before, strict=True)]
        return sum(one[COUNTED["calls"]] for one in counted) >= calls

    wait_for(all_are, lambda: counted)
    return counted


def is_ready(port: int, version: str) -> bool:
    """Return whether a router knows both servers; the old one waits for them before it answers."""
    if version < "0.2":
        return len(json.loads(read(port, "/list_workers"))["urls"]) == 2
    workers = json.loads(read(port, "/workers"))["workers"]
    return len(workers) == 2 and all(worker["is_healthy"] for worker in workers)


def wait_for_workers(port: int, version: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_SEC
    while True:
        with suppress(OSError, ValueError):
            if is_ready(port, version):
                return
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.2)


def converse(ports: list[int], step: int, scratch: Path, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Hold all conversations of a step through a router of its own; return what the replies say."""
    version, policy = POLICIES[step]
    port, log = free_port(), scratch / f"router_{step}.txt"
    command = [sys.executable, "-W", "ignore", "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prometheus-port", str(free_port()), "--policy", policy]
    command += ["--worker-urls", *(f"http://127.0.0.1:{one}" for one in ports)]
    with log.open("wb") as printed:
        router = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(ROUTERS / f"router-{version}")},
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
    try:
        wait_for_workers(port, version, router, log)
        client = [sys.executable, "-c", CLIENT, f"http://127.0.0.1:{port}", str(step), str(TALKS), str(TURNS)]
        done = subprocess.run(client, env={**os.environ, **environment}, capture_output=True, text=True)
    finally:
        end_group(router)
    assert done.returncode == 0, done.stderr + log.read_text(errors="replace")[-3000:]
    told: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Routed:
    if not all((ROUTERS / f"router-{version}/.done").exists() for version, _ in POLICIES.values()):
        pytest.skip("no routers here; tests/environments/router.sh makes a place for them")
    folder = tmp_path_factory.mktemp("routed")
    environment = {
        **{name: "" for name in os.environ if name.startswith("SGLANG_INSTRUMENT")},
        "SGLANG_INSTRUMENT": "1",
        "SGLANG_INSTRUMENT_LOG_DIR": str(folder / "logs"),
        "EXPERIMENT_NAME": "run",
        "SGLANG_INSTRUMENT_RUN_ID": "20261124T000000-routed",  # they are launched apart, and are one run
    }
    limits = ("--max-total-tokens=8192", "--context-length=1024", "--max-running-requests=8")
    servers, routed = [], Routed(folder / "logs/run", {}, {})
    try:
        for number, memory in enumerate((0.6, 0.5)):  # the second one has less left
            scratch = folder / f"server_{number}"
            scratch.mkdir()
            more = (f"--mem-fraction-static={memory}", "--enable-metrics")
            servers.append(start_server(scratch, environment, *limits, *more))
        ports = [server.port for server in servers]
        for step in POLICIES:
            for port in ports:
                read(port, "/flush_cache", "POST")
            before = [counts_of(port) for port in ports]
            routed.replies[step] = converse(ports, step, folder, environment)
            routed.counted[step] = counts_since(ports, before, len(routed.replies[step]))
        rids = [reply["id"] for replies in routed.replies.values() for reply in replies]
        log = folder / "logs/run/engine"
        wait_for_rids(log, "server_*.jsonl", "engine_request", rids)  # server.stop() kills what still writes
        wait_for_rids(log, "scheduler_*.jsonl", "scheduler_first_tokens", rids)
    finally:
        for server in servers:
            server.stop()
    return routed


def answer(capsys: pytest.CaptureFixture[str], routed: Routed, command: str, step: int) -> Any:
    assert main([command, str(routed.folder), "--step", str(step), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("step", POLICIES)
def test_each_server_says_what_its_own_metrics_say(
    routed: Routed, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = answer(capsys, routed, "servers", step)["servers"]
    told = sorted(tuple(row[name] for name in COUNTED) for row in rows)
    counted = sorted(tuple(one[name] for name in COUNTED.values()) for one in routed.counted[step])
    assert told == counted
    assert sum(row["calls"] for row in rows) == TALKS * TURNS


@pytest.mark.parametrize("step", POLICIES)
def test_hits_by_turn_are_those_of_the_replies(
    routed: Routed, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in answer(capsys, routed, "turns", step)["turns"]:
        replies = [reply for reply in routed.replies[step] if reply["turn"] == row["turn"]]
        for name in ("prompt_tokens", "cached_tokens"):
            assert row[name] == sum(reply[name] for reply in replies), row["turn"]


def test_a_cache_aware_router_keeps_conversations_and_round_robin_does_not(
    routed: Routed, capsys: pytest.CaptureFixture[str]
) -> None:
    spread, kept, old = (answer(capsys, routed, "servers", step)["affinity"] for step in POLICIES)
    for told in (spread, kept, old):
        assert told["conversations"] == TALKS
        assert told["later_calls"] == TALKS * (TURNS - 1)
    assert kept["stayed_share"] > 0.9 > max(spread["stayed_share"], old["stayed_share"])
    assert kept["cached_share"] > spread["cached_share"]
    assert spread["cached_share_stayed"] > spread["cached_share_moved"]
    assert kept["read_again_tokens"] < spread["read_again_tokens"]


def test_schedulers_tell_how_full_their_caches_are(
    routed: Routed, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in answer(capsys, routed, "servers", 2)["servers"]:
        assert 0 < row["kv_held_share"] <= row["kv_share"] <= 1
        # The last admission left the longest prompts of all conversations of this server in its cache.
        assert row["kv_share"] > row["cached_tokens"] / row["calls"] / 8192
        assert row["waiting"] is not None
        assert row["retractions"] == 0
        assert 0 <= row["queue_share"] <= 1
