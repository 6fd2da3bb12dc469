"""`watch --listen` serves a page, OpenMetrics and JSON, and no client stops the follower."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from live_served import EVIL, OPENMETRICS, get, hanging, read_on, samples, served, value
from live_writer import LiveRun

from sglang_instrument.cli.main import main
from sglang_instrument.errors import LogError
from sglang_instrument.live.serving import server as serving
from sglang_instrument.live.serving.dashboard import dashboard
from sglang_instrument.live.serving.server import address_of
from sglang_instrument.live.state import as_json

ROOT = Path(__file__).parents[2]
BUSY_SEC = 600  # for so long may a busy machine keep us waiting
#: The command, with the priority of any process: on a busy machine, it would hardly run.
COMMAND = """
import sys
from sglang_instrument.cli.main import main
from sglang_instrument.live.serving import serve
serve.yield_to_training = lambda: None
sys.exit(main())
"""


@pytest.fixture
def run(tmp_path):
    return LiveRun(tmp_path / "exp")


def test_metrics_tell_the_step_its_workers_and_what_hangs(run):
    hanging(run)
    with served(run.folder) as (server, _):
        served_samples = samples(server)
        assert value(served_samples, "step") == 7
        assert value(served_samples, "running") == 1
        assert value(served_samples, "step_requests_open") == 3
        assert value(served_samples, "open_requests", worker="3", kind="tool") == 1
        assert value(served_samples, "open_requests", worker="0", kind="barrier") == 1
        assert value(served_samples, "worker_state", worker="3", state="hangs") == 1
        assert value(served_samples, "worker_state", worker="3", state="runs") == 0
        assert value(served_samples, "workers_waiting", worker="3") == 1
        assert value(served_samples, "problems", kind="hang") >= 1
        assert value(served_samples, "problems", kind="death") == 0
        assert 49 <= value(served_samples, "oldest_request_seconds", worker="3") < 49 + BUSY_SEC
        assert value(served_samples, "tokens_total", worker="0") == 500
        assert value(served_samples, "requests_total", worker="0") == 1
        assert value(served_samples, "event_seconds_total", event="tool_execution") == pytest.approx(4)
        assert value(served_samples, "phase_seconds_total", worker="3", phase="tool") == pytest.approx(4)
        assert EVIL not in get(server, "/metrics")[2]


def test_prometheus_of_an_older_kind_gets_its_own_format(run):
    run.open(1, 0).request("a", time_sec=1, duration_sec=1)
    with served(run.folder) as (server, _):
        _, headers, body = get(server, "/metrics")
        assert headers["Content-Type"].startswith("text/plain")
        assert "# EOF" not in body
        assert "sglang_instrument_requests_total" in body


def test_engine_processes_are_servers(run):
    run.open(1, 0).request("a", time_sec=1, duration_sec=1)
    run.open(1, 2, role="server").span("engine_request", 1, 1, rid="x")
    with served(run.folder) as (server, _):
        served_samples = samples(server)
        assert value(served_samples, "records_total", role="server", server="2") == 1
        assert value(served_samples, "records_total", role="worker", worker="0") > 0


def test_the_json_is_that_of_once(run):
    hanging(run)
    with served(run.folder) as (server, follower):
        status, headers, body = get(server, "/api/now")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body) == json.loads(json.dumps(as_json(follower.snapshot())))


def test_the_page_says_the_same_words_and_escapes_what_logs_hold(run):
    hanging(run)
    with served(run.folder) as (server, _):
        status, headers, body = get(server, "/")
        assert status == 200
        assert EVIL not in body
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in body
        assert "step 7, " in body
        assert "waits for 3" in body
        assert "Hangs and deaths: " in body
        assert "<!-- " not in body
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert re.findall(r"(?:src|href)=\"(?!data:)(.*?)\"", body) == ["api/now", "metrics"]


def test_a_run_that_is_not_there_yet_is_waited_for(tmp_path):
    with served(tmp_path / "none") as (server, _):
        assert "no such folder yet" in get(server, "/")[2]
        assert value(samples(server), "running") == 0
        assert json.loads(get(server, "/api/now")[2])["step"] is None


def test_other_paths_and_methods_are_refused(run):
    run.open(1, 0).request("a", time_sec=1, duration_sec=1)
    with served(run.folder) as (server, _):
        assert get(server, "/../etc/passwd")[0] == 404
        assert get(server, "/metrics", method="POST")[0] == 501
        assert get(server, "/metrics?x=1", method="HEAD")[::2] == (200, "")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:9400", 200), ("127.0.0.1", 200), ("[::1]:9400", 200), ("evil.example:9400", 403)],
)
def test_a_foreign_page_that_points_its_name_here_gets_nothing(run, host, status):
    run.open(1, 0).request("a", time_sec=1, duration_sec=1)
    with served(run.folder) as (server, _):
        assert get(server, "/api/now", {"Host": host})[0] == status


def test_clients_that_say_nothing_are_cut_off_and_stop_nobody(run, monkeypatch):
    monkeypatch.setattr(serving, "_CLIENT_SEC", 0.5)
    run.open(1, 0).request("a", time_sec=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, follower):
        slow = [socket.create_connection((server.host, server.port)) for _ in range(60)]
        slow[0].sendall(b"GET / HTTP/1.1\r\nX: ")
        slow[-1].settimeout(BUSY_SEC)
        assert slow[-1].recv(1) == b""  # one too many is turned away: all have come
        run.open(1, 0).request("b", time_sec=2, duration_sec=1, tokens=11)
        read_on(follower)
        assert follower.snapshot().step.tokens == 111
        until = time.monotonic() + BUSY_SEC
        while server._clients and time.monotonic() < until:
            for client in slow[:1]:
                try:
                    client.sendall(b"a")  # busy, but too slow
                except OSError:
                    pass
            time.sleep(0.05)
        assert not server._clients
        monkeypatch.setattr(serving, "_CLIENT_SEC", BUSY_SEC)  # for the client that follows
        assert value(samples(server), "tokens_total") == 111
        for client in slow:
            client.close()


NONSENSE = [b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 70_000, b"\r\n"]


@pytest.mark.parametrize("said", NONSENSE, ids=range(4))
def test_nonsense_is_no_harm(run, capsys, said):
    run.open(1, 0).request("a", time_sec=1, duration_sec=1)
    with served(run.folder) as (server, _):
        with socket.create_connection((server.host, server.port), timeout=BUSY_SEC) as client:
            client.sendall(said)
        assert get(server, "/")[0] == 200
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:9400", ("::1", 9400)),
        ("node-7:1", ("node-7", 1)),
    ],
)
def test_addresses(text, address):
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["", ":9400", "host", "host:", "1.2.3.4:99999", "1.2.3.4:x", "²"])
def test_what_is_no_address_is_said(text):
    with pytest.raises(LogError, match="HOST:PORT"):
        address_of(text)


def test_a_port_in_use_is_a_clear_error(run, capsys):
    run.open(1, 0)
    with served(run.folder) as (server, _):
        assert main(["watch", str(run.folder), "--listen", f"127.0.0.1:{server.port}"]) == 2
    said = capsys.readouterr().err
    assert f"cannot listen at 127.0.0.1:{server.port}: Address already in use" in said


@pytest.mark.parametrize(
    ("host", "said"), [("127.0.0.1", "only this machine"), ("0.0.0.0", "without a password")]
)
def test_the_command_says_where_it_listens_and_who_can_read_it(run, host, said):
    hanging(run)
    command = [sys.executable, "-c", COMMAND, "watch", str(run.folder), "--listen", f"{host}:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://([\d.]+):(\d+)/", process.stdout.readline())
        assert said in process.stdout.readline()
        connection = http.client.HTTPConnection("127.0.0.1", int(address[2]), timeout=BUSY_SEC)
        until = time.monotonic() + BUSY_SEC
        body = ""
        while "waits for 3" not in body and time.monotonic() < until:
            connection.request("GET", "/")
            body = connection.getresponse().read().decode()
            time.sleep(0.05)
        assert "waits for 3" in body
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=BUSY_SEC)
    assert (process.returncode, errors) == (3, "")


@pytest.fixture
def known(run):
    """Return the names of all samples that are served, of each at least one."""
    run.open(1, 0).request("a", time_sec=1, duration_sec=1)
    with served(run.folder) as (server, _):
        body = get(server, "/metrics", OPENMETRICS)[2]
    ends = {"counter": "_total", "info": "_info", "gauge": ""}
    return {name + ends[kind] for name, kind in re.findall(r"^# TYPE (\S+) (\w+)", body, re.MULTILINE)}


def test_the_page_of_the_documentation_lists_every_metric(known):
    page = (ROOT / "docs/how-to/grafana.md").read_text()
    table = page.partition("| metric, each with")[2].partition("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {f"sglang_instrument_{name}" for cell in first for name in re.findall(r"`(\w+)`", cell)} == known


def test_the_dashboard_names_only_metrics_that_are_there(known, tmp_path):
    assert main(["watch", "--grafana", str(tmp_path / "dashboard.json")]) == 0
    read = json.loads((tmp_path / "dashboard.json").read_text())
    assert json.loads(dashboard()) == read
    text = json.dumps(read)
    named = set(re.findall(r"sglang_instrument_\w+", text))
    assert named
    assert named - known == set()
    panels = {panel["title"] for panel in read["panels"]}
    assert {
        "Step time and its ledger",
        "Requests open by kind",
        "Tokens per second",
        "Records lost",
    } <= panels
    ids = [panel["id"] for panel in read["panels"]]
    assert len(set(ids)) == len(ids)


def test_single_numbers_of_the_dashboard_are_those_of_now():
    """The last number of a range would be shown on after it is gone: when a step ends, after the run did."""
    shown = [panel for panel in json.loads(dashboard())["panels"] if panel["type"] == "stat"]
    assert len(shown) == 5
    for target in (target for panel in shown for target in panel["targets"]):
        assert (target["instant"], target["range"]) == (True, False)


def test_a_dashboard_that_cannot_be_written_is_said(tmp_path, capsys):
    assert main(["watch", "--grafana", str(tmp_path / "none" / "x.json")]) == 2
    assert "No such file" in capsys.readouterr().err
