"""Hold conversations with two real servers through real routers, one a step; keep what both sides counted."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from awaited import wait_for, wait_for_rids
from own_group import end_group
from sglang_server import DEADLINE_SEC, Server, instrumented

from sglang_instrument.free_ports import free_port
from sglang_instrument.profilers.workers import workers_behind

ROUTERS = Path(__file__).parents[2] / ".envs"
#: The version and the policy of each step's router. 0.1.9 knows only /list_workers, 0.3.2 only /workers.
POLICIES = {1: ("0.3.2", "round_robin"), 2: ("0.3.2", "cache_aware"), 3: ("0.1.9", "round_robin")}
LACKING = [
    version
    for version in {version for version, _ in POLICIES.values()}
    if not (ROUTERS / f"router-{version}/.done").exists()
]
TALKS, TURNS = 12, 4
#: What `/metrics` of a server counts, by the column of `servers` that must say the same.
COUNTED = {
    "calls": "sglang:num_requests_total",
    "prompt_tokens": "sglang:prompt_tokens_total",
    "completion_tokens": "sglang:generation_tokens_total",
    "cached_tokens": "sglang:cached_tokens_total",
}

#: Conversations that begin at once, so that a router which looks at loads uses both servers. In later turns,
#: their calls come one after another, half of them in the order of the turn before: round robin keeps these.
CLIENT = """
import json, sys, threading, urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
import sglang_instrument
from sglang_instrument import bind, span

url, step, talks, turns = sys.argv[1], *map(int, sys.argv[2:])
SAMPLING = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
replies, changed = [], threading.Condition()
swapped = [number ^ 1 if number >= talks // 2 else number for number in range(talks)]
beginning = set(range(talks))
order = [(number, turn) for turn in range(1, turns) for number in (swapped if turn % 2 else range(talks))]

@contextmanager
def in_order(number, turn):
    with changed:
        changed.wait_for(lambda: turn == 0 or (not beginning and order[0] == (number, turn)))
    yield
    with changed:
        beginning.remove(number) if turn == 0 else order.pop(0)
        changed.notify_all()

def ask(text):
    body = json.dumps({"text": text, "sampling_params": SAMPLING}).encode()
    request = urllib.request.Request(url + "/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=1200) as reply:
        return json.loads(reply.read())

def talk(number):
    text = f"{number:02} " * 30  # a router knows conversations by how their texts begin
    with bind(step=step), span("request", request_id=f"{step}-{number}"):
        for turn in range(turns):
            with in_order(number, turn):
                with span("turn_engine_call", request_id=f"{step}-{number}", turn=turn) as call:
                    reply = ask(text)
                    call.add(rid=reply["meta_info"]["id"])
                replies.append({"turn": turn, **reply["meta_info"]})
            text += reply["text"] + f" {turn} and {number}." * 4

sglang_instrument.install()
with bind(step=step), span("total_step_duration"), ThreadPoolExecutor(talks) as pool:
    list(pool.map(talk, range(talks)))
sglang_instrument.uninstall()
print(json.dumps(replies))
"""


@dataclass
class Routed:
    """The run that two servers and their callers logged.

    Attributes:
        folder: Of the run.
        replies: What the replies say, by step.
        counted: What each server counted, by step.
        behind: The addresses of the servers that `workers_behind` found, by the version of the router.
    """

    folder: Path
    replies: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    counted: dict[int, list[Counter[str]]] = field(default_factory=dict)
    behind: dict[str, set[str]] = field(default_factory=dict)


def read(server: Server, path: str, method: str = "GET") -> bytes:
    request = urllib.request.Request(server.url + path, method=method)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return bytes(reply.read())


def counts_of(server: Server) -> Counter[str]:
    """Return the sums of a server's own counters."""
    sums: Counter[str] = Counter()
    for line in read(server, "/metrics").decode().splitlines():
        name = line.partition("{")[0]
        if name in COUNTED.values():
            sums[name] += round(float(line.rpartition(" ")[2]))
    return sums


def counts_since(servers: list[Server], before: list[Counter[str]], calls: int) -> list[Counter[str]]:
    """Return what each server has counted since, when they have counted so many calls."""
    counted: list[Counter[str]] = []

    def all_are() -> bool:
        counted[:] = [counts_of(server) - was for server, was in zip(servers, before, strict=True)]
        return sum(counts[COUNTED["calls"]] for counts in counted) >= calls

    wait_for(all_are, lambda: counted)
    return counted


@contextmanager
def router(version: str, servers: list[Server], scratch: Path, *arguments: str) -> Iterator[str]:
    """Run a router before servers; yield its address when it knows all of them."""
    port, log = free_port(), scratch / "router.txt"
    command = [sys.executable, "-W", "ignore", "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prometheus-port", str(free_port()), *arguments]
    command += ["--worker-urls", *(server.url for server in servers)]
    with log.open("wb") as printed:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(ROUTERS / f"router-{version}")},
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
    try:
        wait_for_workers(port, version, len(servers), process, log)
        yield f"http://127.0.0.1:{port}"
    except BaseException:
        print(log.read_text(errors="replace")[-3000:])
        raise
    finally:
        end_group(process)


def wait_for_workers(
    port: int, version: str, count: int, process: subprocess.Popen[bytes], log: Path
) -> None:
    deadline = time.monotonic() + DEADLINE_SEC
    while True:
        with suppress(OSError, ValueError):
            if knows_all(port, version, count):
                return
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)


def knows_all(port: int, version: str, count: int) -> bool:
    """Return whether a router knows its servers; the old one waits for them before it answers."""
    old = version < "0.2"
    url = f"http://127.0.0.1:{port}/" + ("list_workers" if old else "workers")
    with urllib.request.urlopen(url, timeout=60) as reply:
        answer = json.loads(reply.read())
    if old:
        return len(answer["urls"]) == count
    return len(answer["workers"]) == count and all(worker["is_healthy"] for worker in answer["workers"])


def converse(url: str, step: int, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Hold all conversations of a step; return what the replies say."""
    client = [sys.executable, "-c", CLIENT, url, str(step), str(TALKS), str(TURNS)]
    done = subprocess.run(client, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    replies: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return replies


def converse_through_routers(servers: list[Server], folder: Path) -> Routed:
    """Hold each step's conversations through a router of its own; `folder` is the one of `instrumented()`."""
    routed = Routed(folder / "logs/run")
    for step, (version, policy) in POLICIES.items():
        for server in servers:
            read(server, "/flush_cache", "POST")
        before = [counts_of(server) for server in servers]
        with router(version, servers, folder, "--policy", policy) as url:
            routed.behind[version] = {worker.url for worker in workers_behind([url])}
            routed.replies[step] = converse(url, step, instrumented(folder))
        routed.counted[step] = counts_since(servers, before, len(routed.replies[step]))
    rids = [reply["id"] for replies in routed.replies.values() for reply in replies]
    wait_for_rids(routed.folder / "engine", "server_*.jsonl", "engine_request", rids)
    wait_for_rids(routed.folder / "engine", "scheduler_*.jsonl", "scheduler_first_tokens", rids)
    return routed
