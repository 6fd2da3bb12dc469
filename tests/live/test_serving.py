"""`watch --listen` serves a page, OpenMetrics and JSON; counters grow on, no client stops the follower."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from live_served import EVIL, OPENMETRICS, get, hanging, read_on, served
from live_writer import LiveRun
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sglang_instrument.cli.main import main
from sglang_instrument.errors import LogError
from sglang_instrument.live.serving import server as serving
from sglang_instrument.live.serving.dashboard import dashboard
from sglang_instrument.live.serving.server import address_of
from sglang_instrument.live.state import as_json

ROOT = Path(__file__).parents[2]
COMMAND = "import sys; from sglang_instrument.cli.main import main; sys.exit(main())"


@pytest.fixture
def run(tmp_path):
    return LiveRun(tmp_path / "exp")


def samples(server):
    """Return {name: {labels: value}} of what /metrics answers now, read by Prometheus' own parser."""
    server._answers.clear()
    status, headers, body = get(server, "/metrics", OPENMETRICS)
    assert status == 200
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    found = {}
    for family in text_string_to_metric_families(body):
        assert family.name.startswith("sglang_instrument_")
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def value(found, name, **labels):
    """Return the value of the only sample that has these labels."""
    known = found[f"sglang_instrument_{name}"].items()
    (only,) = [one for its_labels, one in known if labels.items() <= its_labels]
    return only


def test_metrics_tell_the_step_its_workers_and_what_hangs(run):
    hanging(run)
    with served(run.folder) as (server, _):
        found = samples(server)
        assert value(found, "step") == 7
        assert value(found, "running") == 1
        assert value(found, "step_requests_open") == 3
        assert value(found, "open_requests", worker="3", kind="tool") == 1
        assert value(found, "open_requests", worker="0", kind="barrier") == 1
        assert value(found, "worker_state", worker="3", state="hangs") == 1
        assert value(found, "worker_state", worker="3", state="runs") == 0
        assert value(found, "workers_waiting", worker="3") == 1
        assert value(found, "problems", kind="hang") >= 1
        assert value(found, "problems", kind="death") == 0
        assert 49 <= value(found, "oldest_request_seconds", worker="3") < 60
        assert value(found, "tokens_total", worker="0") == 500
        assert value(found, "requests_total", worker="0") == 1
        assert value(found, "event_seconds_total", event="tool_execution") == pytest.approx(4)
        assert value(found, "phase_seconds_total", worker="3", phase="tool") == pytest.approx(4)
        assert EVIL not in get(server, "/metrics")[2]


def test_prometheus_of_an_older_kind_gets_its_own_format(run):
    run.open(1, 0).request("a", at=1, duration_sec=1)
    with served(run.folder) as (server, _):
        _, headers, body = get(server, "/metrics")
        assert headers["Content-Type"].startswith("text/plain")
        assert "# EOF" not in body
        assert "sglang_instrument_requests_total" in body


def test_engine_processes_are_servers(run):
    run.open(1, 0).request("a", at=1, duration_sec=1)
    run.open(1, 2, role="server").span("engine_request", 1, 1, rid="x")
    with served(run.folder) as (server, _):
        found = samples(server)
        assert value(found, "records_total", role="server", server="2") == 1
        assert value(found, "records_total", role="worker", worker="0") > 0


def test_a_program_cannot_make_series_without_end(run):
    file = run.open(1, 0)
    for number in range(600):
        file.span(f"mine_{number}", 1, 0.5, phase=f"phase_{number}")
    with served(run.folder) as (server, _):
        found = samples(server)
        assert len(found["sglang_instrument_events_total"]) <= 257
        assert sum(found["sglang_instrument_events_total"].values()) == 600
        assert value(found, "phase_seconds_total", phase="other") == pytest.approx(300)


def test_counters_grow_on_when_the_follower_is_started_again(run):
    for step in range(1, 6):
        run.open(step, 0).request("a", at=step, duration_sec=1, tokens=100)
        run.open(step, 0).close(step + 0.5)
    with served(run.folder) as (server, follower):
        first = samples(server)  # the two newest steps
        for step in range(6, 9):
            run.open(step, 0).request("a", at=step, duration_sec=1, tokens=100)
            read_on(follower)
        before = samples(server)
        assert value(before, "tokens_total") == value(first, "tokens_total") + 300
        name = server.counters._name
    assert (run.folder / "live" / name).is_file()
    with served(run.folder) as (server, follower):
        server.counters._name = name  # the port is another one
        again = samples(server)
        counters = [series for series in before if series.endswith("_total")]
        assert all(again[one][labels] >= known for one in counters for labels, known in before[one].items())
        assert value(again, "tokens_total") == value(before, "tokens_total")
        run.open(9, 0).request("a", at=9, duration_sec=1, tokens=100)
        read_on(follower)
        assert value(samples(server), "tokens_total") == value(before, "tokens_total") + 100


def test_counters_stay_when_the_folder_vanishes_and_comes_back(run, tmp_path):
    run.open(1, 0).request("a", at=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, follower):
        before = samples(server)
        run.folder.rename(tmp_path / "away")
        read_on(follower)
        assert value(samples(server), "tokens_total") == 100
        (tmp_path / "away").rename(run.folder)
        follower._next_find = 0.0
        follower.catch_up()
        run.open(1, 0).request("b", at=2, duration_sec=1, tokens=11)
        read_on(follower)
        assert value(samples(server), "tokens_total") == 111
        assert value(before, "tokens_total") == 100


def test_counters_wait_until_the_run_is_read_to_its_end(run):
    run.open(1, 0).request("a", at=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, follower):
        half = replace(follower.snapshot(), catching_up=True)
        assert server.counters.of(half) == {}
        whole = server.counters.of(follower.snapshot())
        assert whole["tokens", "worker", "0", ""] == 100
        fewer = replace(half, totals={})  # the follower reads it anew
        assert server.counters.of(fewer) == whole
        assert server.counters.of(follower.snapshot()) == whole


@pytest.mark.parametrize(
    "found", ["", "[]", '{"run_id": 3}', '{"run_id": "run-1", "series": [[["x"], "y"]]}']
)
def test_a_file_of_counters_that_is_none_is_no_harm(run, found):
    run.open(1, 0).request("a", at=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, _):
        (run.folder / "live").mkdir()
        (run.folder / "live" / server.counters._name).write_text(found)
        assert value(samples(server), "tokens_total") == 100


def test_a_pipe_in_place_of_the_file_of_counters_stops_nothing(run):
    run.open(1, 0).request("a", at=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, _):
        (run.folder / "live").mkdir()
        os.mkfifo(run.folder / "live" / server.counters._name)
        assert value(samples(server), "tokens_total") == 100


def test_a_run_that_is_new_begins_its_counters_anew(run):
    run.open(1, 0).request("a", at=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, follower):
        assert value(samples(server), "tokens_total") == 100
        again = LiveRun(run.folder, run_id="run-2", begin_us=run.begin_us + 10_000_000)
        again.open(1, 0).request("a", at=1, duration_sec=1, tokens=7)
        read_on(follower)
        found = samples(server)
        assert value(found, "tokens_total") == 7
        assert value(found, "run_info", run_id="run-2") == 1


def test_a_folder_that_cannot_be_written_is_said_as_a_problem_of_the_follower(run):
    run.open(1, 0).request("a", at=1, duration_sec=1, tokens=100)
    (run.folder / "live").write_text("no folder")
    with served(run.folder) as (server, _):
        assert value(samples(server), "tokens_total") == 100
        assert "counters begin anew" in get(server, "/")[2]
        assert value(samples(server), "problems", kind="follower") == 1


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
    run.open(1, 0).request("a", at=1, duration_sec=1)
    with served(run.folder) as (server, _):
        assert get(server, "/../etc/passwd")[0] == 404
        assert get(server, "/metrics", method="POST")[0] == 501
        assert get(server, "/metrics?x=1", method="HEAD")[::2] == (200, "")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:9400", 200), ("127.0.0.1", 200), ("[::1]:9400", 200), ("evil.example:9400", 403)],
)
def test_a_foreign_page_that_points_its_name_here_gets_nothing(run, host, status):
    run.open(1, 0).request("a", at=1, duration_sec=1)
    with served(run.folder) as (server, _):
        assert get(server, "/api/now", {"Host": host})[0] == status


def test_clients_that_say_nothing_are_cut_off_and_stop_nobody(run, monkeypatch):
    monkeypatch.setattr(serving, "_CLIENT_SEC", 0.5)
    run.open(1, 0).request("a", at=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, follower):
        slow = [socket.create_connection((server.host, server.port)) for _ in range(60)]
        slow[0].sendall(b"GET / HTTP/1.1\r\nX: ")
        run.open(1, 0).request("b", at=2, duration_sec=1, tokens=11)
        read_on(follower)
        assert follower.snapshot().step.tokens == 111
        until = time.monotonic() + 20
        while server._clients and time.monotonic() < until:
            for one in slow[:1]:
                try:
                    one.sendall(b"a")  # busy, but too slow
                except OSError:
                    pass
            time.sleep(0.05)
        assert not server._clients
        assert value(samples(server), "tokens_total") == 111
        for one in slow:
            one.close()


NONSENSE = [b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 70_000, b"\r\n"]


@pytest.mark.parametrize("said", NONSENSE, ids=range(4))
def test_nonsense_is_no_harm(run, capsys, said):
    run.open(1, 0).request("a", at=1, duration_sec=1)
    with served(run.folder) as (server, _):
        with socket.create_connection((server.host, server.port), timeout=5) as client:
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
        connection = http.client.HTTPConnection("127.0.0.1", int(address[2]), timeout=20)
        until = time.monotonic() + 20
        body = ""
        while "waits for 3" not in body and time.monotonic() < until:
            connection.request("GET", "/")
            body = connection.getresponse().read().decode()
            time.sleep(0.2)
        assert "waits for 3" in body
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (3, "")


@pytest.fixture
def known(run):
    """Return the names of all samples that are served, of each at least one."""
    run.open(1, 0).request("a", at=1, duration_sec=1)
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
    told = json.dumps(read)
    named = set(re.findall(r"sglang_instrument_\w+", told))
    assert named
    assert named - known == set()
    panels = {one["title"] for one in read["panels"]}
    assert {
        "Step time and its ledger",
        "Requests open by kind",
        "Tokens per second",
        "Records lost",
    } <= panels
    ids = [one["id"] for one in read["panels"]]
    assert len(set(ids)) == len(ids)


def test_a_dashboard_that_cannot_be_written_is_said(tmp_path, capsys):
    assert main(["watch", "--grafana", str(tmp_path / "none" / "x.json")]) == 2
    assert "No such file" in capsys.readouterr().err
