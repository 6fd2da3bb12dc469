"""verl 0.9.1 with a trainer separate from the rollout, `separate_async`: each event is in the right step."""

import pytest
from logged import recorded_events
from test_verl_server import end_us, named, scheduled_by, served_by
from test_verl_training import TURNS

from sglang_instrument import analysis
from sglang_instrument.cli.main import main

STEPS = ("step_1", "step_2", "validate_2")
UPDATES = 2  # updates of the weights in a step: `parameter_sync_step`
CLOCK_US = 1e5  # between two processes


def weights(records, how):
    return [record for record in named(records, "weights_update") if record["extra"]["how"] == how]


def of_workers(separated):
    return [record for step in STEPS for record in separated.logs[f"{step}/worker_0.jsonl"]]


def test_every_process_writes_under_a_name_of_its_own(separated):
    names = {path.rpartition("/")[2].removesuffix(".jsonl") for path in separated.logs}
    assert names == {
        *("trainer_0", "learner_0", "receiver_1_tp0", "worker_0", "reward_0"),
        *("server_0", "server_1", "scheduler_0_tp0", "scheduler_1_tp0"),
    }
    assert "step_0/worker_0.jsonl" not in separated.logs
    assert len({process["run_id"] for process in separated.processes}) == 1
    for process in separated.processes:
        assert process["records"]["dropped"] == 0
        assert not any("another process writes it" in said["notice"] for said in process["notices"])


@pytest.mark.parametrize("step", [1, 2])
def test_a_step_of_several_updates_has_the_phases_of_each(separated, step):
    records = separated.logs[f"step_{step}/trainer_0.jsonl"]
    assert len(named(records, "trainer_step")) == 1
    for phase in ("generate", "old_log_prob", "ref_log_prob", "values", "advantage", "update_actor"):
        assert len(named(records, f"trainer_{phase}")) == UPDATES, phase


@pytest.mark.parametrize("step", [0, 1, 2])
def test_weights_are_seen_where_they_are_sent_and_where_they_arrive(separated, step):
    [asked] = weights(separated.logs[f"step_{step}/trainer_0.jsonl"], "gloo")
    assert asked["extra"]["weight_version"] == step
    for role in ("learner_0", "receiver_1_tp0"):
        [part] = weights(separated.logs[f"step_{step}/{role}.jsonl"], "gloo")
        assert asked["start_us"] - CLOCK_US <= part["start_us"]
        assert end_us(part) <= end_us(asked) + CLOCK_US
    # The server beside the trainer gets the weights when needed: at first, and for the validation.
    beside = [1] if step != 1 else []
    for role, how in (("trainer_0", "naive"), ("learner_0", "server")):
        assert [1] * len(weights(separated.logs[f"step_{step}/{role}.jsonl"], how)) == beside


def test_requests_are_logged_in_the_step_that_submitted_them_while_others_train(separated):
    logs = {step: separated.logs[f"{step}/worker_0.jsonl"] for step in STEPS}
    submitted = {step: named(records, "requests_submit") for step, records in logs.items()}
    # Requests of the warm-up run ahead; after that, as many as a step trains on.
    assert [len(submitted[step]) for step in STEPS] == [2, 1, 1]
    ended = {step: named(records, "async_rollout_request_complete") for step, records in logs.items()}
    ids = [record["extra"]["request_id"] for records in ended.values() for record in records]
    assert len(ids) == len(set(ids))
    assert sorted(request["extra"]["turns"] for request in ended["validate_2"]) == TURNS
    assert 2 * 4 <= len(ended["step_1"] + ended["step_2"]) <= 3 * 4  # trained on; all
    for step, records in logs.items():
        assert {record["step"] for record in records} == {int(step[-1])}
        assert all(
            record.get("validate", False) is step.startswith("validate")
            for record in recorded_events(records)
        )
        assert {record["extra"]["reward"] for record in ended[step]} <= {1.0}


def test_each_update_says_which_groups_it_took_and_a_request_which_weights_made_it(separated):
    requests = named(of_workers(separated), "async_rollout_request_complete")
    made = {request["extra"]["group"]: request["extra"] for request in requests}
    taken = {
        step: named(separated.logs[f"step_{step}/trainer_0.jsonl"], "samples_consumed") for step in (1, 2)
    }
    groups = [
        group for records in taken.values() for record in records for group in record["extra"]["groups"]
    ]
    assert len(groups) == len(set(groups)) == 2 * 4
    for step, records in taken.items():
        assert len(records) == UPDATES
        for record in records:
            assert record["extra"]["weight_version"] == step - 1
            for group in record["extra"]["groups"]:
                facts = made[group]
                assert 0 <= facts["first_weight_version"] <= facts["weight_version"] <= step - 1


def test_each_call_is_found_in_one_server_and_in_its_scheduler(separated):
    served = served_by(separated)
    calls = named(of_workers(separated), "engine_async_generate_actual")
    assert len(calls) >= 2 * len(TURNS)
    for call in calls:
        server, reply = served[call["extra"]["rid"]]
        assert call["extra"]["rid"] in scheduled_by(separated, server)
        assert call["start_us"] - CLOCK_US <= reply["start_us"] <= end_us(call) + CLOCK_US


def test_the_answers_are_those_of_a_run_of_two_steps(separated, capsys):
    run = analysis.open_run(separated.folder / "run")
    steps = analysis.step_table(run.digest)
    assert steps.select("step", "validate", "workers").rows() == [(1, False, 1), (2, False, 1), (2, True, 1)]
    ended = named(of_workers(separated), "async_rollout_request_complete")
    assert steps["requests"].sum() == len(ended)
    health = run.health
    assert (health.dropped, health.torn, health.foreign, health.unfit, health.missing) == (0, 0, 0, {}, [])
    for command in ("summary", "events", "workers", "requests", "turns", "gaps", "status"):
        assert main([command, str(separated.folder / "run")]) == 0, command
    printed = " ".join(capsys.readouterr().out.split())  # lines are wrapped
    assert "receiver_1_tp0" in printed
    assert " ".join(health.sentence().split()) in printed
