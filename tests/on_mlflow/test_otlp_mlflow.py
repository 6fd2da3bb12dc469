"""A real receiver of OpenTelemetry, MLflow's server, takes the lines of `export --otlp` as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from own_group import end_group

mlflow = pytest.importorskip(
    "mlflow", reason="MLflow is not installed here; tests/environments/mlflow.sh does it"
)
pytest.importorskip("opentelemetry.proto", reason="needs the extra otlp")

from sglang_instrument.cli.main import main  # noqa: E402 - only where MLflow is
from sglang_instrument.free_ports import free_port  # noqa: E402
from sglang_instrument.testing import synthetic_run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of MLflow and its dependencies
STARTED_SEC = 900  # on a busy machine


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server on a free port of this machine; yields its address."""
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    address = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True
        )
    try:
        until = time.monotonic() + STARTED_SEC
        while not healthy(address):
            assert process.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < until, (folder / "server.log").read_text()
            time.sleep(0.5)
        yield address
    finally:
        end_group(process)


def healthy(address):
    try:
        return urllib.request.urlopen(f"{address}/health", timeout=60).status == 200
    except OSError:
        return False


def post(address, line, experiment):
    headers = {"Content-Type": "application/json", "x-mlflow-experiment-id": experiment}
    request = urllib.request.Request(f"{address}/v1/traces", data=line, headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=600).status
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from error


def test_spans_parents_numbers_and_rewards_arrive(server, tmp_path):
    logs = synthetic_run(tmp_path / "exp", steps=2, workers=2, requests=4)
    target = tmp_path / "run.otlp.jsonl"
    assert main(["export", str(logs), "--otlp", str(target)]) == 0
    mlflow.set_tracking_uri(server)
    experiment = mlflow.create_experiment("exp")
    sent = {}
    for line in target.read_bytes().splitlines():
        assert post(server, line, experiment) == 200
        for scope in json.loads(line)["resourceSpans"][0]["scopeSpans"]:
            sent |= {span["spanId"]: span for span in scope["spans"]}

    traces = mlflow.MlflowClient().search_traces(locations=[experiment], max_results=100)
    received = {span.span_id: span for trace in traces for span in trace.data.spans}

    assert len(traces) == 2 * 2 * 4
    assert received.keys() == sent.keys()
    for number, sent_span in sent.items():
        span = received[number]
        assert span.name == sent_span["name"]
        assert span.parent_id == sent_span.get("parentSpanId")
        assert span.start_time_ns == int(sent_span["startTimeUnixNano"])
        assert span.end_time_ns == int(sent_span["endTimeUnixNano"])
        for attribute in sent_span["attributes"]:
            ((kind, value),) = attribute["value"].items()
            expected = int(value) if kind == "intValue" else value
            if kind == "arrayValue":
                expected = [each["stringValue"] for each in value["values"]]
            assert span.attributes[attribute["key"]] == expected
        scores = [event["attributes"][1]["value"]["doubleValue"] for event in sent_span.get("events", ())]
        assert [event.attributes["gen_ai.evaluation.score.value"] for event in span.events] == scores


def test_a_second_export_adds_nothing(server, tmp_path):
    logs = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=3, seed=7)
    experiment = None
    counts = []
    mlflow.set_tracking_uri(server)
    experiment = mlflow.create_experiment("twice")
    for name in ("first", "second"):
        target = tmp_path / f"{name}.jsonl"
        assert main(["export", str(logs), "--otlp", str(target)]) == 0
        for line in target.read_bytes().splitlines():
            assert post(server, line, experiment) == 200
        traces = mlflow.MlflowClient().search_traces(locations=[experiment], max_results=100)
        counts.append((len(traces), sum(len(trace.data.spans) for trace in traces)))
    assert counts[0] == counts[1]
    assert counts[0][0] == 3
