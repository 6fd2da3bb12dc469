"""slime's real rollouts from a checkout, with a real server and router: `make test-trainers SLIME=DIR`.

Requests, turns and tokens are held against what the samples say, what training was handed, and the server's
own counters.
"""

import json

import pytest
from conftest import REQUEST, Driven, checkout_of, drive
from logged import read_records
from routed_engines import COUNTED, LACKING, counts_of, router
from sglang_server import instrumented, model_of_the_demo, start_servers

TURNS = {"plain": 1, "functions": 2}
PLACES = ("step_0", "step_1", "validate_1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Each way of `drive_slime.py`, one after the other over the same server, which logs to `logs/run`."""
    checkout = checkout_of("SLIME")
    if LACKING:
        pytest.skip("no routers: tests/environments/router.sh")
    folder, driven = tmp_path_factory.mktemp("slime"), {}
    arguments = ("--context-length=1024", "--enable-metrics")
    with (
        start_servers(folder, 1, instrumented(folder), *arguments) as [server],
        router("0.3.2", [server], folder) as url,
    ):
        for way in TURNS:
            before, port = counts_of(server), url.rpartition(":")[2]
            command = [checkout, model_of_the_demo(), port, way, folder]
            printed = drive("drive_slime.py", folder, *command, EXPERIMENT_NAME=way)
            driven[way] = Driven(printed, folder / way, counts_of(server) - before)
    return driven


@pytest.fixture(params=TURNS)
def way(request):
    return request.param


@pytest.fixture
def run(runs, way):
    return runs[way]


def calls_of(run):
    return [call for place in PLACES for call in run.extras("turn_engine_call", place)]


def test_each_sample_is_a_request_with_its_own_counts(run, way):
    for place, samples in zip(PLACES, [*run.printed["trained"], run.printed["evaluated"]], strict=True):
        requests = {request["sample"]: request for request in run.extras(REQUEST, place)}
        assert {sample["sample"] for sample in samples} <= requests.keys()
        for sample in samples:
            request = requests[sample["sample"]]
            assert request["turns"] == TURNS[way]
            assert (request["status"], request["reward"]) == (sample["status"], sample["reward"])
            assert request["response_length"] == sample["response_length"]
            assert request["actual_response_tokens"] == sample["trained_tokens"]
            assert request["total_sequence_length"] == sample["tokens"]


def test_the_calls_are_those_that_the_server_counted(run):
    calls = calls_of(run)
    assert len(calls) == run.counted[COUNTED["calls"]]
    for field, column in {"prompt_tokens": "prompt_tokens", "generated_tokens": "completion_tokens"}.items():
        assert sum(call[field] for call in calls) == run.counted[COUNTED[column]]


def test_the_server_s_own_log_has_each_call_by_its_name(runs):
    [run, *_] = runs.values()
    records = read_records(run.folder.parent / "logs/run")["engine/server_0.jsonl"]
    served = {
        record["extra"]["rid"]: record["extra"]["completion_tokens"]
        for record in records
        if record["event"] == "engine_request" and "HEALTH_CHECK" not in record["extra"]["rid"]
    }
    calls = [call for run in runs.values() for call in calls_of(run)]
    assert {call["rid"]: call["generated_tokens"] for call in calls} == served


def test_a_step_names_the_samples_that_it_handed_to_training(run):
    for place, samples in zip(PLACES[:2], run.printed["handed"], strict=True):
        [consumed] = run.extras("samples_consumed", place)
        assert consumed["samples"] == samples


def test_over_sampling_ends_in_an_abort_whose_tokens_reach_no_training(runs):
    run = runs["functions"]
    trained = [sample for samples in run.printed["trained"] for sample in samples]
    aborted = []
    for step, cut in enumerate(([4, 5], [10, 11])):
        [abort] = run.extras("requests_abort", f"step_{step}")
        requests = [
            request for request in run.extras(REQUEST, f"step_{step}") if request["status"] == "aborted"
        ]
        assert abort["pending"] == 1
        assert sorted(request["sample"] for request in requests) == cut
        aborted += requests
    assert run.waste["aborted_tokens"] == sum(request["response_length"] for request in aborted) > 0
    assert run.waste["used_tokens"] == sum(sample["trained_tokens"] for sample in trained)


def test_no_text_is_in_the_log(runs):
    assert "secret" not in json.dumps([run.logs for run in runs.values()])
