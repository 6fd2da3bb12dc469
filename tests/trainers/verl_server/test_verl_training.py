"""verl 0.9.1's own V1 trainer logs each phase of two steps, by its process and in its step."""

import json
import time

import pytest
from awaited import lines_of
from logged import recorded_events
from test_verl_server import OF_REQUESTS, OF_TOOLS, has_most_of_its_time_in_decoding, named

PHASES = {
    *("trainer_step", "trainer_generate", "trainer_old_log_prob", "trainer_ref_log_prob", "trainer_values"),
    *("trainer_advantage", "trainer_update_critic", "trainer_update_actor", "weights_update"),
}
TURNS = [1, 1, 2, 3]  # of the requests of each step, sorted


def test_every_process_of_the_training_writes_under_its_own_name(trained):
    names = {path.rpartition("/")[2].removesuffix(".jsonl") for path in trained.logs}
    assert names == {
        *("trainer_0", "learner_0", "worker_0", "server_0", "scheduler_0_tp0", "reward_0"),
    }
    assert {"step_1/worker_0.jsonl", "step_2/worker_0.jsonl", "validate_2/worker_0.jsonl"} <= set(
        trained.logs
    )
    assert "step_0/worker_0.jsonl" not in trained.logs
    assert len({process["run_id"] for process in trained.processes}) == 1
    for process in trained.processes:
        assert process["records"]["dropped"] == 0
        assert not any("another process writes it" in said["notice"] for said in process["notices"])


def test_the_settings_of_trainer_and_engine_are_recorded_where_they_were_seen(trained):
    configurations = {process["role"]: process.get("configuration", {}) for process in trained.processes}
    assert configurations["trainer"]["config"]["actor_rollout_ref.rollout.n"] == 1
    assert configurations["trainer"]["config"]["actor_rollout_ref.rollout.mode"] == "async"
    for role in ("server", "scheduler"):
        assert configurations[role]["server_args"]["tp_size"] == 1


@pytest.mark.parametrize("step", [1, 2])
def test_the_trainer_logs_each_of_its_phases_once_a_step(trained, step):
    records = trained.logs[f"step_{step}/trainer_0.jsonl"]
    for phase in PHASES:
        assert len(named(records, phase)) == 1, phase
    assert len(named(records, "trainer_save_checkpoint")) == (1 if step == 2 else 0)
    [whole] = named(records, "trainer_step")
    parts = [record for record in recorded_events(records) if record["event"] in PHASES - {"trainer_step"}]
    assert sum(part["duration_sec"] for part in parts) <= whole["duration_sec"]
    assert named(records, "step_closed")


def test_validation_is_logged_apart(trained):
    records = trained.logs["validate_2/trainer_0.jsonl"]
    assert len(named(records, "trainer_validate")) == 1
    assert all(record["validate"] for record in recorded_events(records))


@pytest.mark.parametrize("folder", ["step_1", "step_2", "validate_2"])
def test_requests_are_whole_though_the_call_that_began_them_returned_early(trained, folder):
    records = trained.logs[f"{folder}/worker_0.jsonl"]
    [submitted] = named(records, "requests_submit")
    requests = named(records, "async_rollout_request_complete")
    assert submitted["extra"] == {"batch_size": 4}
    assert sorted(request["extra"]["turns"] for request in requests) == TURNS
    assert [request["extra"]["reward"] for request in requests] == [1.0] * 4
    assert min(request["start_us"] for request in requests) > submitted["start_us"]
    assert [group["extra"]["status"] for group in named(records, "request_group")] == ["finished"] * 4
    assert {record["event"] for record in records if "request_id" in record.get("extra", {})} >= (
        OF_REQUESTS | OF_TOOLS
    )
    assert named(records, "step_closed")[-1]["extra"]["dropped"] == 0


def test_a_turn_is_found_in_the_server_and_its_scheduler(trained):
    served = {r["extra"]["rid"]: r for r in named(trained.logs["engine/server_0.jsonl"], "server_generate")}
    scheduled = named(trained.logs["engine/scheduler_0_tp0.jsonl"], "scheduler_receive")
    for step in (1, 2):
        calls = named(trained.logs[f"step_{step}/worker_0.jsonl"], "engine_async_generate_actual")
        rids = {call["extra"]["rid"] for call in calls}
        assert rids <= set(served)
        assert rids <= {record["extra"]["rid"] for record in scheduled}
        # They were generated with the weights of the previous step.
        assert {served[rid]["extra"]["weight_version"] for rid in rids} == {step - 1}


def test_the_engine_sleeps_while_the_trainer_trains_and_wakes_with_new_weights(trained):
    asleep = named(trained.logs["engine/server_0.jsonl"], "memory_release")
    woken = named(trained.logs["engine/learner_0.jsonl"], "memory_resume")
    assert len(asleep) == 3  # before the checkpoint is loaded, and in each step
    assert [record["extra"]["tags"] for record in woken] == [["weights"], ["kv_cache"]] * 3
    for step in (0, 1, 2):
        [sent] = named(trained.logs[f"step_{step}/learner_0.jsonl"], "weights_update")
        of_server = {"part": "transfer", "server": 0, "how": "server", "weight_version": step}
        assert sent["extra"] == of_server
        [asked] = named(trained.logs[f"step_{step}/trainer_0.jsonl"], "weights_update")
        assert asked["extra"] == {"how": "naive", "weight_version": step}
        assert sent["duration_sec"] <= asked["duration_sec"]


def test_the_time_in_the_engine_is_shared_out_without_a_detokenizer(trained):
    has_most_of_its_time_in_decoding(trained)


def test_the_tracker_has_the_numbers_of_each_rollout_beside_those_of_its_training(trained):
    lines = [json.loads(line) for line in (trained.folder / "tracked.jsonl").read_text().splitlines()]
    trainers = {line["step"]: line["data"] for line in lines if "training/global_step" in line["data"]}
    assert sorted(trainers) == [1, 2]
    known = {line["step"]: line["data"] for line in lines if "rollout/step_sec" in line["data"]}
    # Those of step 2 may be known too late: nothing is logged after it.
    assert 1 in known
    assert known.keys() <= {1, 2}
    for numbers in known.values():
        assert numbers["rollout/step_sec"] >= numbers["rollout/request_p99_sec"] > 0
        assert numbers["rollout/requests"] == 4
        assert numbers["rollout/tokens"] > 0
        assert numbers["rollout/staleness"] == 0
        assert numbers["rollout/records_lost"] == 0
    path = trained.folder / "run/live/scalars.jsonl"
    until = time.monotonic() + 300  # the follower outlives the driver: it has a last look
    known_steps = set()
    while known_steps != {1, 2}:
        assert time.monotonic() < until, known_steps
        time.sleep(0.2)
        known_steps = {json.loads(line)["step"] for line in lines_of(path)}
