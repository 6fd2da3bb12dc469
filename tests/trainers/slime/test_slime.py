"""A stand-in for slime, with its names, signatures and order, logs every event in the right step.

slime is in no registry. Its real rollouts were run when the tables were written (docs/how-to/slime.md); these
tests check the tables against the stand-in.
"""

import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from logged import read_records, recorded_events
from logged_program import run_logged

HERE = Path(__file__).parent
RAY = HERE.parents[2] / ".envs/ray/bin/python"
REQUEST = "async_rollout_request_complete"
LIMIT_SEC = 1200  # on a busy machine


class Rolled:
    """The output and the log of one way of rolling out."""

    def __init__(self, printed, folder):
        logs = read_records(folder)
        self.given = json.loads(printed.splitlines()[-1]) if printed else None
        self.logs = {path: recorded_events(records) for path, records in logs.items()}

    def of(self, event, file=None):
        files = self.logs.values() if file is None else [self.logs[file]]
        return [record for records in files for record in records if record["event"] == event]

    def extras(self, event, file=None):
        return [record.get("extra", {}) for record in self.of(event, file)]


@pytest.fixture(scope="session")
def rolled(tmp_path_factory):
    """Run one of the ways of `drive.py`, each only once."""

    @cache
    def run(way, order="after"):
        folder = tmp_path_factory.mktemp(f"slime_{way}_{order}")
        return Rolled(run_python(sys.executable, [HERE / "drive.py", way, order], folder), folder / "run")

    return run


def run_python(python, arguments, folder):
    """Run Python with the stand-in for slime; it logs to `folder/run`."""
    variables = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}  # its workers yield to none
    done = run_logged(
        [python, "-W", "ignore", *arguments],
        folder,
        limit_sec=LIMIT_SEC,
        paths=[HERE, HERE / "stand_in", HERE.parents[1] / "support"],
        hook=False,
        **variables,
    )
    return done.stdout


def shape(logs):
    """Return the number of records by file and event, except the event loop's, which depend on the load."""
    return {
        file: Counter(record["event"] for record in records if not record["event"].startswith("event_loop"))
        for file, records in logs.items()
    }


@pytest.mark.parametrize("way", ["plain", "functions", "group", "fan_out", "abort"])
def test_training_is_given_the_same_with_us_and_without(rolled, way):
    assert rolled(way, "never").given == rolled(way).given is not None
    assert rolled(way, "never").logs == {}


def test_the_order_of_install_and_import_changes_nothing(rolled):
    before, after = rolled("plain", "before"), rolled("plain")
    assert before.given == after.given
    first, other = (shape(run.logs) for run in (before, after))
    assert first == other


def test_kind_signature_and_pickling_stay_in_this_process_and_a_spawned_one_and_the_code_comes_back(rolled):
    rolled("looks", "never")


def test_every_request_is_in_the_folder_of_its_step_and_says_what_it_made(rolled):
    run = rolled("plain")
    assert [
        len(run.of(REQUEST, f"{place}/worker_0.jsonl")) for place in ("step_0", "step_1", "validate_1")
    ] == [4, 4, 3]
    for request in run.of(REQUEST, "step_0/worker_0.jsonl"):
        extra = request["extra"]
        assert (extra["turns"], extra["finish_reason"], extra["status"]) == (1, "stop", "completed")
        assert (extra["response_length"], extra["reward"], extra["total_sequence_length"]) == (13, 13.0, 26)
    names = [extra["request_id"] for extra in run.extras(REQUEST)]
    assert len(set(names)) == len(names)
    assert {record["workid"] for records in run.logs.values() for record in records} == {0}


def test_a_step_has_its_parts_in_it(rolled):
    run = rolled("plain")
    for place in ("step_0", "step_1"):
        file = f"{place}/worker_0.jsonl"
        [step], [rollout] = run.of("total_step_duration", file), run.of("async_generate_duration", file)
        assert rollout["duration_sec"] <= step["duration_sec"]
        assert rollout["extra"] == {"function": "generate_rollout", "groups": 2, "metrics": {"dropped": 0}}
        [lengths] = run.extras("step_response_length_stats", file)
        assert (lengths["batch_size"], lengths["response_length_mean"]) == (4, 13.0)
        assert (
            len(run.of("batch_construction_duration", file))
            == len(run.of("final_construction_duration", file))
            == 1
        )
        assert len(run.of("requests_abort", file)) == len(run.of("abort_wait", file)) == 1
        assert len(run.of("request_group", file)) == 2
        assert len(run.of("request_wait", file)) == 4
    [dataset] = run.extras("eval_dataset", "validate_1/worker_0.jsonl")
    assert (dataset["dataset"], dataset["samples"]) == ("tiny", 3)
    assert len(run.of("total_step_duration", "validate_1/worker_0.jsonl")) == 1


def test_turns_of_a_custom_generate_function_are_its_calls_of_the_engine(rolled):
    run = rolled("functions")
    file = "step_0/worker_0.jsonl"
    for request in run.extras(REQUEST, file):
        mine = [
            call["extra"]
            for call in run.of("turn_engine_call", file)
            if call["extra"]["request_id"] == request["request_id"]
        ]
        assert [call["turn"] for call in mine] == [0, 1, 2]
        assert len({call["rid"] for call in mine}) == request["turns"] == 3
        tools = [
            tool for tool in run.extras("tool_execution", file) if tool["request_id"] == request["request_id"]
        ]
        assert [tool["tool"] for tool in tools] == ["calculator"] * 2
    assert len(run.of("main_loop", file)) == len(run.of("sample_hooks", file)) == len(run.of(REQUEST, file))
    assert run.of("turn_end", file) == []


def test_a_custom_reward_gives_its_numbers_and_a_filter_says_what_it_dropped(rolled):
    run = rolled("functions")
    assert {extra["reward"] for extra in run.extras(REQUEST, "step_0/worker_0.jsonl")} == {0.5}
    for extra in run.extras("reward_calculation", "step_0/worker_0.jsonl"):
        assert extra["rm_path"] == "user_functions.reward"
        assert extra["reward_scores"] == {"score": 0.5, "right": True}
    dropped = [
        group for group in run.extras("group_filter", "step_0/worker_0.jsonl") if group.get("kept") is False
    ]
    assert [(drop["group_index"], drop["reason"]) for drop in dropped] == [(0, "first")]
    assert len(run.of("samples_process")) == 2


def test_a_reward_of_a_whole_group_is_one_calculation(rolled):
    run = rolled("group")
    calculations = run.extras("reward_calculation", "step_0/worker_0.jsonl")
    assert {calculation["samples"] for calculation in calculations} == {2}
    assert all(calculation["rewards"] == [0.5, 0.5] for calculation in calculations)
    assert len(calculations) == len(run.of("request_group", "step_0/worker_0.jsonl"))


def test_a_request_that_becomes_several_samples_says_so(rolled):
    run = rolled("fan_out")
    for extra in run.extras(REQUEST, "step_0/worker_0.jsonl"):
        assert (extra["samples"], extra["turns"], extra["reward"]) == (2, 6, 0.5)


def test_an_aborted_request_is_marked_and_continues_under_its_id_in_a_later_step(rolled):
    run = rolled("abort")
    [aborting] = run.extras("requests_abort", "step_0/worker_0.jsonl")
    assert aborting == {"pending": 1}
    assert run.extras("groups_kept", "step_0/worker_0.jsonl") == [{"groups": 1}]
    cut = [
        request for request in run.extras(REQUEST, "step_0/worker_0.jsonl") if request["status"] == "aborted"
    ]
    assert {(request["group_index"], request["finish_reason"]) for request in cut} == {(2, "abort")}
    again = [
        request for request in run.extras(REQUEST, "step_1/worker_0.jsonl") if request["group_index"] == 2
    ]
    assert {request["request_id"] for request in again} == {request["request_id"] for request in cut}
    assert all(request["resumed_tokens"] > 0 for request in again)


def test_a_step_names_the_samples_that_it_took_and_each_request_its_group(rolled):
    run = rolled("plain")
    for file in ("step_0/worker_0.jsonl", "step_1/worker_0.jsonl"):
        [taken] = run.extras("samples_consumed", file)
        requests = run.extras(REQUEST, file)
        assert sorted(taken["samples"]) == sorted(request["sample"] for request in requests)
        assert [request["group"] for request in requests] == [request["group_index"] for request in requests]


def test_a_remote_reward_is_a_score_within_the_calculation_and_each_of_its_calls_a_request(rolled):
    run = rolled("remote")
    scores = len(run.of("reward_score"))
    assert scores == len(run.of("reward_calculation")) > 0
    calls = run.of("reward_request")
    assert Counter(call["extra"].get("status") for call in calls) == {200: scores, None: 1}
    [failed] = [call for call in calls if "error" in call]  # the server refuses its first call
    assert (failed["error"], failed["extra"]["attempt"]) == ("ClientResponseError", 0)
    assert sorted(call["extra"]["attempt"] for call in calls)[-1] == 1


def test_a_fully_asynchronous_request_is_in_the_step_in_which_it_began(rolled):
    run = rolled("async")
    begun = {extra["group_index"]: file for file in run.logs for extra in run.extras("request_group", file)}
    assert begun[0] == begun[1] == "step_0/worker_0.jsonl"
    taken = {file: extra["group_index"] for file in run.logs for extra in run.extras("groups_collect", file)}
    assert taken == {"step_0/worker_0.jsonl": [0], "step_1/worker_0.jsonl": [1]}
    [request] = [
        record for record in run.of(REQUEST, "step_0/worker_0.jsonl") if record["extra"]["group_index"] == 1
    ]
    assert request["step"] == 0


def test_engine_control_is_logged_in_its_own_file_by_the_rank_of_the_engine(rolled):
    run = rolled("control")
    events = [record["event"] for record in run.logs["engine/server_3.jsonl"]]
    assert events.count("weights_update") == 3
    assert {"engine_start", "memory_release", "memory_resume", "generation_pause", "generation_continue"} <= {
        *events
    }
    how = [extra["how"] for extra in run.extras("weights_update")]
    assert how == ["tensor", "disk", "distributed"]
    assert all(extra["success"] for extra in run.extras("weights_update"))


def test_no_text_is_logged(rolled):
    assert "secret" not in json.dumps([rolled(way).logs for way in ("functions", "group")])


ACTOR = """
import pathlib, time
import ray
from argparse import Namespace
import sglang_instrument
sglang_instrument.install()
import drive
from slime.ray.rollout import RolloutManager
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
manager = RolloutManager.remote(Namespace(**drive.PLAIN), None)
print(len(ray.get([manager.generate.remote(0), manager.generate.remote(1)])))
ray.get(manager.eval.remote(1))
folder = pathlib.Path(sglang_instrument.status()["folder"])
# Ray kills its actors: the last records may be lost, so wait until they are on disk.
while sum("step_closed" in path.read_text() for path in folder.glob("*/worker_0.jsonl")) < 3:
    time.sleep(0.01)
ray.shutdown()
"""


def test_the_manager_as_an_actor_of_ray_logs_its_steps(tmp_path):
    if not RAY.exists():
        pytest.skip("no environment with Ray: tests/environments/ray.sh")
    run_python(RAY, ["-c", f"import sys; sys.argv = ['x', 'plain', 'never']\n{ACTOR}"], tmp_path)
    logs = read_records(tmp_path / "run")
    for place in ("step_0", "step_1", "validate_1"):
        events = [record["event"] for record in logs[f"{place}/worker_0.jsonl"]]
        assert events.count("total_step_duration") == 1
        assert events.count(REQUEST) == (3 if place == "validate_1" else 4)
