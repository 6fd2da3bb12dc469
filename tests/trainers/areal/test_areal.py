"""AReaL's real rollouts on a real server log every event in the right step, with unchanged results."""

import json
import re

import pytest

from sglang_instrument.patching.tables.reading import shipped_tables

REQUEST = "async_rollout_request_complete"
WORKFLOWS = {"RLVRWorkflow", "MultiTurnWorkflow", "ToolWorkflow"}


def test_results_are_the_same_without_us_with_us_and_without_us_again(outcome):
    assert outcome.seen["plain"] == outcome.seen["measured"] == outcome.seen["again"]


def test_kind_signature_and_pickling_of_what_we_change_stay_and_the_code_comes_back(outcome):
    before, during, after = outcome.seen["looks"]
    assert before == during == after
    assert set(outcome.seen["changed"]) == set(outcome.seen["restored"]) == {True}


def test_every_region_of_the_rollout_and_the_engine_is_found(outcome):
    ours = [patch for patch in outcome.seen["patches"] if patch["table"] in ("areal/rollout", "areal/engine")]
    assert {"areal/rollout", "areal/engine", "areal/trainer"} <= {*shipped_tables()}
    assert len(ours) >= 27
    assert {patch["state"] for patch in ours} == {"found"}


def test_a_request_is_in_the_step_whose_weights_it_began_with(outcome):
    requests = {file: outcome.of(REQUEST, file) for file in outcome.logs if outcome.of(REQUEST, file)}
    counts = {file: len(records) for file, records in requests.items()}
    assert counts["step_2/worker_0.jsonl"] == 1
    assert counts["validate_3/worker_0.jsonl"] == 1
    assert counts["step_3/worker_0.jsonl"] == 2 * 2 + 1 + 2 + 1  # groups, turns, a user's group, a failed one
    assert counts["step_4/worker_0.jsonl"] + counts["step_5/worker_0.jsonl"] >= 2 * 2 * 2
    assert "step_9/worker_0.jsonl" not in counts
    for file, records in requests.items():
        assert {record["step"] for record in records} == {int(re.findall(r"\d+", file)[0])}


def test_every_reply_is_a_turn_of_its_request(outcome):
    for file in outcome.logs:
        turns = {}
        for call in outcome.of("turn_engine_call", file):
            turns.setdefault(call["extra"]["request_id"], []).append(call["extra"]["turn"])
        for request in outcome.of(REQUEST, file):
            if "error" not in request:
                extra = request["extra"]
                assert turns[extra["request_id"]] == [*range(extra["turns"])]
    [multi] = [
        request for request in outcome.of(REQUEST) if request["extra"].get("workflow") == "MultiTurnWorkflow"
    ]
    assert multi["extra"]["turns"] == 2
    assert [turn["extra"]["turn"] for turn in outcome.of("turn_end")] == [0, 1]


def test_a_users_workflow_its_tool_and_its_reward_are_measured_by_path(outcome):
    mine = [request for request in outcome.of(REQUEST) if request["extra"].get("workflow") == "ToolWorkflow"]
    assert [request.get("error") for request in mine] == [None, None, "ValueError"]
    for request in mine:
        tools = [
            tool
            for tool in outcome.of("tool_execution")
            if tool["extra"]["request_id"] == request["extra"]["request_id"]
        ]
        assert [tool["extra"]["turn"] for tool in tools if "turn" in tool["extra"]] == []
        assert len(tools) == 2
    rewards = [
        reward
        for reward in outcome.of("reward_calculation")
        if reward["extra"]["function"] == "failing_reward"
    ]
    assert [reward["error"] for reward in rewards] == ["ValueError"]


def test_the_requests_of_a_group_lie_in_it_and_each_has_a_name_and_a_reward(outcome):
    groups = outcome.of("request_group")
    assert {group["extra"]["group_size"] for group in groups} == {2}
    members = [
        request
        for request in outcome.of(REQUEST)
        if "task_id" not in request["extra"] and "workflow" in request["extra"]
    ]
    assert len({member["extra"]["request_id"] for member in members}) == len(members) == 2 * len(groups)
    assert all(member["extra"]["reward"] in (0.0, 1.0) for member in members if "error" not in member)
    assert {member["extra"]["workflow"] for member in members} <= WORKFLOWS


def test_a_reply_that_new_weights_cut_off_is_two_calls_and_a_wait(outcome):
    ours = [
        call
        for call in outcome.of("turn_engine_call")
        if call["extra"].get("request_id") == outcome.seen["cut"]
    ]
    [reply] = ours
    assert reply["step"] == 6
    assert (reply["extra"]["first_weight_version"], reply["extra"]["weight_version"]) == (6, 9)
    assert reply["extra"]["calls"] >= 2
    calls = [
        call["extra"]
        for call in outcome.of("engine_async_generate_actual")
        if call["extra"].get("request_id") == outcome.seen["cut"]
    ]
    assert "abort" in {call["finish_reason"] for call in calls}
    assert len({call["rid"] for call in calls}) == len(calls)


def test_engine_control_and_weights_are_logged_beside_the_steps(outcome):
    for event in ("weights_version", "generation_pause", "generation_continue", "weights_update"):
        assert outcome.of(event), event
        assert {record.get("step") for record in outcome.of(event)} == {None}, event
    [update] = outcome.of("weights_update")
    assert update["extra"]["how"] == "disk"


def test_a_step_holds_its_wait_for_a_batch(outcome):
    for step in (4, 5):
        [whole] = outcome.of("total_step_duration", f"step_{step}/worker_0.jsonl")
        assert whole["extra"] == {"batch_size": 2, "groups": outcome.seen["measured"][f"step_{step}"]}
        [wait] = outcome.of("async_generate_duration", f"step_{step}/worker_0.jsonl")
        assert wait["duration_sec"] <= whole["duration_sec"]


def test_a_batch_names_its_tasks_their_versions_and_how_stale_they_may_be(outcome):
    for step in (4, 5):
        [taken] = outcome.of("samples_consumed", f"step_{step}/worker_0.jsonl")
        assert len(taken["extra"]["groups"]) == outcome.seen["measured"][f"step_{step}"]
        assert (taken["extra"]["weight_version"], taken["extra"]["max_staleness"]) == (step, 1000)


def test_the_readers_know_how_stale_each_batch_is_and_which_request_failed(outcome):
    pytest.importorskip("polars")
    from sglang_instrument.analysis import open_run
    from sglang_instrument.analysis.answers.asynchronous.fates import sample_fates
    from sglang_instrument.analysis.answers.asynchronous.staleness import staleness_table

    fates = sample_fates(open_run(outcome.folder).digest)
    steps = staleness_table(fates).to_dicts()
    assert [row["step"] for row in steps] == [4, 5]
    for row in steps:
        assert row["samples"] == 2 * outcome.seen["measured"][f"step_{row['step']}"]  # groups of two
        assert row["known"] == row["samples"]
        assert 0 <= row["max"] <= 3
    assert fates.filter(request_id="779")["fate"].to_list() == ["aborted"]


def test_no_text_is_logged(outcome):
    everything = json.dumps(outcome.logs)
    for text in ("Say 6", "<|im_start|>", "####", "a secret of the user's"):
        assert text not in everything
