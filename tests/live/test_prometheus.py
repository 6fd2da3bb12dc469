"""A real Prometheus reads what is served, every query of the dashboard is valid, and no counter is reset."""

import json
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from documented import blocks
from live_served import get, hanging, read_on, served
from live_writer import LiveRun

from sglang_instrument.free_ports import free_port
from sglang_instrument.live.serving.counters import LABELS
from sglang_instrument.live.serving.dashboard import dashboard
from sglang_instrument.testing import SlowEngine, synthetic_run

UNPACKED = (
    Path(__file__).parents[2] / ".envs" / "prometheus" / "usr" / "bin"
)  # tests/environments/prometheus.sh
PATIENCE_SEC = 600  # only a dead machine takes longer
CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: rollout
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def program(name):
    """Return the path of one of Prometheus' programs; skip the test where there is none."""
    program = shutil.which(name, path=os.pathsep.join([str(UNPACKED), os.environ.get("PATH", "")]))
    if program is None:
        pytest.skip(f"no {name} here: tests/environments/prometheus.sh, or apt-get install prometheus")
    return program


class Prometheus:
    """A Prometheus that scrapes a port of this machine every second."""

    def __init__(self, folder, port):
        command = program("prometheus")
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(port=port))
        self.port = free_port()
        self.log = (folder / "prometheus.log").open("w")
        self.process = subprocess.Popen(
            [
                command,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self.log,
            stderr=self.log,
        )

    def ask(self, query):
        """Return the samples of a query now."""
        asked = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{asked}") as answer:
            answered = json.load(answer)
        assert answered["status"] == "success", answered
        return answered["data"]["result"]

    def until(self, query):
        """Return the samples of a query once there are some."""
        until = time.monotonic() + PATIENCE_SEC
        while True:
            try:
                if rows := self.ask(query):
                    return rows
            except OSError:  # it has not begun to listen
                pass
            assert self.process.poll() is None, Path(self.log.name).read_text()
            assert time.monotonic() < until, f"{query}: nothing\n{Path(self.log.name).read_text()}"
            time.sleep(0.2)

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE_SEC)
        self.log.close()


@pytest.fixture
def prometheus(tmp_path):
    """Return what starts a Prometheus for a port; it is ended after the test."""
    started = []

    def start(port):
        folder = tmp_path / "prometheus"
        folder.mkdir()
        started.append(Prometheus(folder, port))
        return started[-1]

    yield start
    for process in started:
        process.close()


def queries():
    """Return the queries of the dashboard by the title of their panel, as Grafana fills them."""
    filled = {"$__rate_interval": "10s", "$instance": ".*"}
    for panel in json.loads(dashboard())["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in filled.items():
                query = query.replace(name, value)
            yield panel["title"], query


def test_prometheus_reads_every_metric_and_counters_are_not_reset(tmp_path, prometheus):
    logs = synthetic_run(
        tmp_path / "exp", steps=4, workers=2, requests=6, causes=[SlowEngine(4, 1, factor=9)]
    )
    port = free_port()  # which nobody gets by chance until it is served again
    with served(logs, port=port, with_done=True):
        shown = prometheus(port)
        shown.until('up{job="rollout"} == 1')
        shown.until("sglang_instrument_last_step_seconds")
        for title, query in queries():
            shown.ask(query)  # valid
            if title in ("Step", "Step time and its ledger", "Problems", "Requests open by kind"):
                assert shown.until(query), title
        before = shown.until("sum(sglang_instrument_records_total) > 0")[0]["value"][1]
        shown.until("count_over_time(sglang_instrument_step[10m]) >= 2")
    with served(logs, port=port) as (_, follower):
        run = LiveRun(logs, run_id=follower.snapshot().run_id, begin_us=follower.snapshot().at_us)
        run.open(5, 0).request("late", time_sec=1, duration_sec=1, tokens=100)
        run.scheduler().control("scheduler_retract", 1, rids=["x"], tokens=[1])
        read_on(follower)
        shown.until(f"sum(sglang_instrument_records_total) > {before}")
        for name in LABELS:
            (resets,) = shown.ask(f"sum(resets(sglang_instrument_{name}_total[10m]))")
            assert resets["value"][1] == "0", name


def test_prometheus_sees_what_hangs(tmp_path, prometheus):
    run = LiveRun(tmp_path / "exp")
    hanging(run)
    with served(run.folder) as (server, _):
        shown = prometheus(server.port)
        shown.until('sglang_instrument_problems{kind="hang"} > 0')
        (state,) = shown.until('sglang_instrument_worker_state{state="hangs"} == 1')
        assert (state["metric"]["role"], state["metric"]["worker"]) == ("worker", "3")


def test_promtool_finds_nothing_wrong(tmp_path):
    run = LiveRun(tmp_path / "exp")
    hanging(run)
    with served(run.folder) as (server, _):
        metrics = get(server, "/metrics")[2]
    done = subprocess.run(
        [program("promtool"), "check", "metrics"], input=metrics, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_accepts_what_the_documentation_shows(tmp_path):
    shown = [block.text for block in blocks("yaml") if block.page == "docs/how-to/grafana.md"]
    for kind, text in zip(("config", "rules"), shown, strict=True):
        file = tmp_path / f"{kind}.yml"
        file.write_text(text)
        done = subprocess.run([program("promtool"), "check", kind, str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
