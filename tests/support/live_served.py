"""Serve a run for a test, and ask for what is served."""

import http.client
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from live_writer import LiveRun
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sglang_instrument.live.follower import Follower
from sglang_instrument.live.serving.server import LiveServer

Samples = dict[frozenset[tuple[str, str]], float]
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
EVIL = "<script>alert(1)</script>"  # the name of a request


@contextmanager
def served(logs: Path, port: int = 0, with_done: bool = False) -> Iterator[tuple[LiveServer, Follower]]:
    """Serve what is there, as a follower without a thread knows it; yield the server and the follower."""
    follower = Follower(logs, with_done=with_done, with_runs=True)
    follower.catch_up()
    server = LiveServer(follower, "127.0.0.1", port)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server, follower
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        follower.stop()


def read_on(follower: Follower) -> None:
    """Read now, and not in a moment, what was added."""
    assert follower._run is not None
    tail = follower._run.tail
    tail._next_listing = 0.0
    for file in tail.files():
        file.due = 0.0
    follower.catch_up()


def get(
    server: LiveServer, path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> tuple[int, dict[str, str], str]:
    """Return status, headers and text of an answer."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def hanging(run: LiveRun, name: str = EVIL) -> None:
    """Write a step in which worker 3 hangs and worker 0 waits for it; the name of its request is markup."""
    first, second = run.open(7, 0), run.open(7, 3)
    for worker in (0, 3):
        run.process(f"worker_{worker}", os.getpid())
    first.request("a", time_sec=50, duration_sec=40, tokens=500)
    first.open_now(50, {}, [], barrier_wait_duration=1)
    second.span("tool_execution", 14, 4, request_id=name, turn=0)
    stuck = {"event": "tool_execution", "request_id": name, "turn": 1, "age_sec": 35, "stack": ["a.py:3 run"]}
    second.control("open_spans", 50, open=1, spans=[stuck])
    for rank in range(2):
        scheduler = run.scheduler(rank)
        for time_sec in range(40, 50):
            scheduler.gauges(time_sec, running=time_sec - 38, waiting=rank, kv_free_pages=500 - 100 * rank)
        scheduler.control("scheduler_retract", 50, rids=["x", "y"], tokens=[1, 2])
    oldest = [{"event": "tool_execution", "request_id": name, "turn": 1, "age_sec": 49}]
    second.open_now(50, {"tool_execution": 1, "turn_end": 2}, oldest)


def samples(server: LiveServer) -> dict[str, Samples]:
    """Return {name: {labels: value}} of what /metrics answers now, read by Prometheus' own parser."""
    server._answers.clear()
    status, headers, body = get(server, "/metrics", OPENMETRICS)
    assert status == 200
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    samples_by_name: dict[str, Samples] = {}
    for family in text_string_to_metric_families(body):
        assert family.name.startswith("sglang_instrument_")
        assert family.documentation
        for sample in family.samples:
            samples_by_name.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return samples_by_name


def value(by_name: dict[str, Samples], name: str, **labels: str) -> float:
    """Return the value of the only sample that has these labels."""
    known = by_name[f"sglang_instrument_{name}"].items()
    (only,) = [number for its_labels, number in known if labels.items() <= its_labels]
    return only
