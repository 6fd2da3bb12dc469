"""verl 0.9.1's fully asynchronous and one-step-off recipes, trained on a CPU: versions, steps, samples."""

from collections import Counter

import pytest
from logged import recorded_events
from test_verl_server import named

from sglang_instrument import analysis
from sglang_instrument.cli.main import main

PHASES = {
    *("trainer_generate", "trainer_reward", "trainer_ref_log_prob", "trainer_advantage"),
    "trainer_update_actor",
}
MEMBERS = 2  # requests of a group
VERSIONS = 4  # of the fully asynchronous training: 16 groups, two a step, two steps with each version


def of_role(outcome, role, event):
    """Return the records of an event in all files of a role."""
    files = [records for path, records in outcome.logs.items() if path.rpartition("/")[2].startswith(role)]
    return [record for records in files for record in named(records, event)]


def requests_of(outcome):
    """Return the training requests by their group."""
    groups = {}
    for request in of_role(outcome, "worker", "async_rollout_request_complete"):
        if not request.get("validate"):
            groups.setdefault(request["extra"]["group"], []).append(request)
    return groups


def times_taken(records):
    """Return how often each group was taken."""
    return Counter(group for record in records for group in record["extra"]["groups"])


def demand_whole(outcome):
    for process in outcome.processes:
        assert process["records"]["dropped"] == 0
        assert not any("another process writes it" in said["notice"] for said in process["notices"])
    assert not any(path.startswith(("step_-1", "validate_-1")) for path in outcome.logs)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_one_step_off_logs_each_phase_of_a_step_once(one_step_off, step):
    records = one_step_off.logs[f"step_{step}/trainer_0.jsonl"]
    for event in PHASES | {"trainer_step", "trainer_old_log_prob", "weights_update"}:
        assert len(named(records, event)) == 1, event
    assert len(named(records, "trainer_save_checkpoint")) == (1 if step == 3 else 0)
    [whole] = named(records, "trainer_step")
    parts = [record for record in recorded_events(records) if record["event"] in PHASES]
    assert sum(part["duration_sec"] for part in parts) <= whole["duration_sec"]


def test_one_step_off_trains_on_what_the_weights_before_made(one_step_off):
    demand_whole(one_step_off)
    groups = requests_of(one_step_off)
    assert {len(members) for members in groups.values()} == {MEMBERS}
    taken = of_role(one_step_off, "trainer", "samples_consumed")
    assert [record["step"] for record in taken] == [1, 2, 3]
    assert times_taken(taken) == dict.fromkeys(groups, 1)
    for record in taken:
        assert record["extra"]["count"] == MEMBERS * len(record["extra"]["groups"])
        assert record["extra"]["max_staleness"] == 1
        for group in record["extra"]["groups"]:
            for request in groups[group]:
                facts = request["extra"]
                assert facts["first_weight_version"] == facts["weight_version"]
                assert facts["weight_version"] == record["extra"]["weight_version"] - 1


def test_each_process_of_the_fully_asynchronous_recipe_writes_under_its_own_name(fully_async):
    demand_whole(fully_async)
    names = {path.rpartition("/")[2].removesuffix(".jsonl") for path in fully_async.logs}
    assert names == {
        *("trainer_0", "rollouter_0", "worker_0", "learner_0", "receiver_0_tp0", "reward_0"),
        *("server_0", "scheduler_0_tp0"),
    }


@pytest.mark.parametrize("version", range(VERSIONS))
def test_the_steps_that_train_one_version_have_its_number_and_their_phases(fully_async, version):
    records = fully_async.logs[f"step_{version}/trainer_0.jsonl"]
    steps = named(records, "trainer_step")
    assert [step["extra"]["local_step"] for step in steps] == [1, 2]
    assert [step["extra"]["global_step"] for step in steps] == [2 * version + 1, 2 * version + 2]
    assert {step["extra"]["weight_version"] for step in steps} == {version}
    for phase in PHASES:
        assert len(named(records, phase)) == 2, phase
    sent = [record["extra"]["weight_version"] for record in named(records, "weights_update")]
    assert sent == ([0, 1] if version == 0 else [version + 1])


def test_a_request_has_the_versions_with_which_it_began_and_ended_and_the_step_of_one_before(fully_async):
    requests = [request for members in requests_of(fully_async).values() for request in members]
    assert len({request["extra"]["weight_version"] for request in requests}) > 1
    for request in requests:
        facts = request["extra"]
        assert 0 <= request["step"] <= facts["first_weight_version"] <= facts["weight_version"] <= VERSIONS
        assert facts["reward"] == 1.0


def test_each_group_enters_the_queue_once_and_one_step_takes_it(fully_async):
    groups = requests_of(fully_async)
    assert len(groups) == 2 * 2 * VERSIONS
    assert {len(members) for members in groups.values()} == {MEMBERS}
    put = of_role(fully_async, "rollouter", "queue_put")
    assert Counter(record["extra"]["group"] for record in put) == dict.fromkeys(groups, 1)
    assert of_role(fully_async, "rollouter", "samples_dropped") == []
    taken = of_role(fully_async, "trainer", "samples_consumed")
    assert times_taken(taken) == dict.fromkeys(groups, 1)
    for record in taken:
        assert record["extra"]["weight_version"] == record["step"]
        for group in record["extra"]["groups"]:
            oldest = min(request["extra"]["first_weight_version"] for request in groups[group])
            assert 0 <= record["step"] - oldest <= VERSIONS


def test_validation_is_apart_and_has_no_number_of_a_sample(fully_async):
    validations = [path for path in fully_async.logs if path.startswith("validate_")]
    assert {path.partition("/")[2] for path in validations} == {"trainer_0.jsonl", "worker_0.jsonl"}
    assert {int(path.split("/")[0].removeprefix("validate_")) for path in validations} <= {1, 2, 3, 4}
    trained = of_role(fully_async, "trainer", "trainer_validate")
    assert [record["step"] for record in trained] == [2, 4]
    validated = [
        request
        for request in of_role(fully_async, "worker", "async_rollout_request_complete")
        if request.get("validate")
    ]
    assert len(validated) == 2 * 4
    assert {request["extra"]["weight_version"] for request in validated} == {2, 4}


def test_what_a_buffer_evicts_is_named_with_its_reason_before_what_it_gives(dropped):
    records = recorded_events(dropped.logs["step_9/trainer_0.jsonl"])
    assert [(record["event"], record["extra"]) for record in records] == [
        ("samples_dropped", {"groups": ["old"], "reason": "stale"}),
        ("samples_dropped", {"groups": ["flat"], "reason": "filtered"}),
        ("samples_dropped", {"groups": ["failed"], "reason": "aborted"}),
        ("samples_consumed", {"groups": ["good"], "weight_version": 8, "max_staleness": 2}),
    ]


def test_what_a_full_queue_drops_is_counted_at_the_version_that_pushed_it_out(dropped):
    records = recorded_events(dropped.logs["step_3/rollouter_0.jsonl"])
    expected = {"reason": "stale", "count": MEMBERS}
    assert [record["extra"] for record in named(records, "samples_dropped")] == [expected]
    put = [record["extra"] for record in named(records, "queue_put")]
    assert put == [{"group": f"uid_{name}", "batch_size": MEMBERS} for name in ("first", "second")]


# Each test names its training as an argument: by that, tests/conftest.py keeps those of one in one process.
def test_the_answers_count_every_request_of_one_step_off_in_a_step_that_trains(one_step_off, capsys):
    demand_answers(one_step_off, capsys)


def test_the_answers_count_every_request_of_fully_asynchronous_in_a_step_that_trains(fully_async, capsys):
    demand_answers(fully_async, capsys)


def demand_answers(outcome, capsys):
    run = analysis.open_run(outcome.folder / "run")
    steps = analysis.step_table(run.digest)
    groups = requests_of(outcome)
    assert steps.filter(~steps["validate"])["requests"].sum() == MEMBERS * len(groups)
    assert set(steps["step"]) <= set(range(VERSIONS + 1))
    known = run.digest.requests.filter(~run.digest.requests["validate"])
    assert set(known["group"]) == set(groups)
    assert known["weight_version"].null_count() == known["first_weight_version"].null_count() == 0
    taken = run.digest.samples
    assert set(taken.filter(taken["event"] == "samples_consumed")["group"]) == set(groups)
    for command in ("summary", "requests", "workers", "turns", "status"):
        assert main([command, str(outcome.folder / "run")]) == 0, command
    assert "dropped" in capsys.readouterr().out


def test_both_sides_of_the_loop_of_one_step_off_add_up(one_step_off):
    demand_loop(one_step_off)


def test_both_sides_of_the_loop_of_fully_asynchronous_add_up(fully_async):
    demand_loop(fully_async)


def demand_loop(outcome):
    loop = analysis.loop_of(analysis.open_run(outcome.folder / "run"))
    # Which sides overlap in steps of half a second depends on the machine: tests/analysis has clear shapes.
    assert loop.shape() in ("synchronous", "one step off", "asynchronous")
    wall = {row["step"]: row["to_next_step_sec"] for row in loop.steps().to_dicts()}
    sums = {}
    for row in loop.ledger().to_dicts():
        sums[row["step"], row["side"]] = sums.get((row["step"], row["side"]), 0.0) + row["sec"]
    assert sums == {
        (step, side): pytest.approx(wall[step]) for step in wall for side in ("trainer", "rollout")
    }
    assert loop.steps()["train_sec"].sum() > 0
