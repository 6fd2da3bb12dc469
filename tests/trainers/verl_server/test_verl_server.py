"""verl 0.9.1 in server mode: all processes are reached, log the right records, and behave as without us."""

import json

import pytest

from sglang_instrument import schema
from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.answers.engine.join import engine_summary

STEPS = ("step_1", "step_2", "validate_2")
#: Events of one request, in its worker; tools only if the model calls one.
OF_REQUESTS = {
    *(
        "async_rollout_request_complete",
        "main_loop",
        "pending_state_handling",
        "turn_end",
        "turn_engine_call",
    ),
    *(
        "server_wait",
        "engine_async_generate_actual",
        "turn_tool_parsing",
        "finalization",
        "reward_calculation",
    ),
}
OF_TOOLS = {
    *("tool_calling_state", "tool_execution", "tool_response_processing"),
    *("tool_call", "tool_creation", "tool_release"),
}
OF_WORKERS = {"total_step_duration", "async_generate_duration", "batch_construction_duration"}
CONTROLS = {
    *("memory_release", "memory_resume", "engine_cache_flush"),
    *("generation_pause", "generation_continue"),
}
CALLED = [1, 2, 0, 0]  # tools of each question: one call, a wrong and a right one, none
ROUNDING_US = 2


def named(records, event):
    return [record for record in records if record["event"] == event]


def of_step(outcome, step):
    """Return the records of both workers of a step."""
    return [r for worker in (0, 1) for r in outcome.logs[f"{step}/worker_{worker}.jsonl"]]


def served_by(outcome):
    """Return the number of the server that answered a call, and its record, by the call's `rid`."""
    served = {}
    for server in (0, 1):
        for record in named(outcome.logs[f"engine/server_{server}.jsonl"], "server_generate"):
            assert record["extra"]["rid"] not in served
            served[record["extra"]["rid"]] = server, record
    return served


def scheduled_by(outcome, server):
    """Return the `rid` of each call that came to the scheduler of a server."""
    records = outcome.logs[f"engine/scheduler_{server}_tp0.jsonl"]
    return {record["extra"]["rid"] for record in named(records, "scheduler_receive")}


def turn_of(record):
    return record["extra"]["request_id"], record["extra"]["turn"]


def end_us(record):
    return record["start_us"] + record.get("duration_sec", 0) * 1e6


def test_the_results_are_those_of_a_run_without_us(outcome, plain):
    assert outcome.driver["outputs"] == plain.driver["outputs"]
    assert [output["turns"] for output in plain.driver["outputs"]] == [[4, 6, 2, 2]] * 3


def test_actors_look_as_they_do_without_us(outcome, plain):
    look = ("class", "coroutines", "signatures")
    ours, theirs = outcome.driver["processes"], plain.driver["processes"]
    of_theirs = {process["class"]: process for process in theirs}
    assert {process["class"] for process in ours} == of_theirs.keys()
    for process in ours:
        assert [process[key] for key in look] == [of_theirs[process["class"]][key] for key in look]
    assert [process["installed"] for process in theirs] == [False] * 3
    assert [process["installed"] for process in ours] == [True] * 4
    assert not (plain.folder / "run").exists()


def test_every_process_of_the_rollout_joins_one_run(outcome):
    processes = outcome.processes
    assert len({process["run_id"] for process in processes}) == 1
    assert {(process["role"], process["rank"]) for process in processes if process["role"]} >= {
        *(("worker", 0), ("worker", 1), ("server", 0), ("server", 1), ("scheduler", 0), ("scheduler", 1)),
        *(("reward", 0), ("trainer", 0)),
    }
    assert outcome.printed.count("sglang_instrument 0.") == 1  # only the driver prints the line


def test_what_was_patched_is_all_that_is_expected_in_this_version(outcome):
    for process in outcome.processes:
        lacking = [p for p in process["patches"] if p["state"] != "found" and p.get("expected", True)]
        assert [
            (p["event"], p["target"], p["state"]) for p in lacking if p["table"].startswith("verl/")
        ] == []
        assert process["notices"] == [] or all("no step bound" not in n["notice"] for n in process["notices"])


def test_each_step_of_each_worker_is_whole(outcome):
    for step in STEPS:
        for worker in (0, 1):
            records = outcome.logs[f"{step}/worker_{worker}.jsonl"]
            assert {record["event"] for record in records} >= OF_WORKERS
            assert len(named(records, "total_step_duration")) == 1
            closed = named(records, schema.STEP_CLOSED)
            assert closed
            assert closed[-1]["extra"]["dropped"] == 0


def test_each_request_and_turn_is_there_once(outcome):
    for step in STEPS:
        records = of_step(outcome, step)
        requests = named(records, "async_rollout_request_complete")
        assert sorted(request["extra"]["sample_index"] for request in requests) == [0, 1, 2, 3]
        assert len({request["extra"]["request_id"] for request in requests}) == 4
        calls = {
            request["extra"]["sample_index"]: request["extra"]["turns_with_tools"] for request in requests
        }
        assert [calls[sample] for sample in range(4)] == CALLED
        turns = [(end["extra"]["request_id"], end["extra"]["turn"]) for end in named(records, "turn_end")]
        assert len(turns) == len(set(turns)) == sum(CALLED) + 4
        assert len(named(records, "tool_call")) == sum(CALLED)
        assert all(call["extra"]["tool"] == "calc_gsm8k_reward" for call in named(records, "tool_call"))


def test_tools_belong_to_the_turn_whose_reply_asked_for_them(outcome):
    for step in STEPS:
        records = of_step(outcome, step)
        turns = {
            (turn_end["extra"]["request_id"], turn_end["extra"]["turn"]): turn_end
            for turn_end in named(records, "turn_end")
        }
        for call in named(records, "tool_call"):
            request, turn = call["extra"]["request_id"], call["extra"]["turn"]
            assert turns[request, turn]["extra"]["has_tool_calls"] is True
            assert end_us(turns[request, turn]) <= call["start_us"] + ROUNDING_US
            assert end_us(call) <= turns[request, turn + 1]["start_us"] + ROUNDING_US


def test_every_event_of_a_request_says_whose_it_is(outcome):
    for step in STEPS:
        records = of_step(outcome, step)
        seen = {record["event"] for record in records if "request_id" in record.get("extra", {})}
        assert seen >= OF_REQUESTS | OF_TOOLS
        for record in records:
            if record["event"] in OF_REQUESTS | OF_TOOLS:
                assert "request_id" in record["extra"], record
            assert record.get("validate", False) is step.startswith("validate")


def test_a_request_says_its_reward_and_its_lengths(outcome):
    for request in named(of_step(outcome, "step_1"), "async_rollout_request_complete"):
        extra = request["extra"]
        assert extra["reward"] == 1.0
        assert extra["turns"] == CALLED[extra["sample_index"]] + 1
        assert extra["finish_reason"] == "stop"
        assert 0 < extra["actual_response_tokens"] <= extra["response_length"]
        assert [turn["turn"] for turn in extra["turn_timings"]] == list(range(extra["turns"]))


def test_the_parts_of_a_request_lie_within_it(outcome):
    for step in STEPS:
        records = of_step(outcome, step)
        around = {r["extra"]["request_id"]: r for r in named(records, "async_rollout_request_complete")}
        for record in records:
            if record["event"] in (OF_REQUESTS | OF_TOOLS) - {"async_rollout_request_complete"}:
                request = around[record["extra"]["request_id"]]
                assert request["start_us"] <= record["start_us"] + ROUNDING_US
                assert end_us(record) <= end_us(request) + ROUNDING_US


def test_a_turn_is_found_in_its_server_and_scheduler_by_rid(outcome):
    served = served_by(outcome)
    for step in STEPS:
        for call in named(of_step(outcome, step), "engine_async_generate_actual"):
            server, reply = served[call["extra"]["rid"]]
            assert reply["extra"]["completion_tokens"] == call["extra"]["generated_tokens"]
            assert call["start_us"] - 1e5 <= reply["start_us"] <= end_us(call) + 1e5  # two clocks
            assert call["extra"]["rid"] in scheduled_by(outcome, server)


def test_what_a_turn_waited_for_is_the_server_that_answers_it(outcome):
    served, numbers = served_by(outcome), {}
    for step in STEPS:
        records = of_step(outcome, step)
        turns = {
            turn_of(call): call["extra"]["rid"] for call in named(records, "engine_async_generate_actual")
        }
        for wait in named(records, "server_wait"):
            server, _ = served[turns[turn_of(wait)]]
            numbers.setdefault(wait["extra"]["server"], set()).add(server)
    assert sorted(map(sorted, numbers.values())) == [[0], [1]]


def test_rewards_and_the_start_of_the_engine_are_logged_where_they_happen(outcome):
    rewards = named(outcome.logs["engine/reward_0.jsonl"], "reward_score")
    assert len(rewards) >= 12
    assert {record["extra"]["reward"] for record in rewards} == {1.0}
    for server in (0, 1):
        assert len(named(outcome.logs[f"engine/server_{server}.jsonl"], "engine_start")) == 1


def test_what_a_trainer_does_with_its_servers_is_logged_there_in_order(outcome):
    records = outcome.logs["engine/server_0.jsonl"]
    controls = [record for record in records if record["event"] in CONTROLS]
    assert [record["event"] for record in controls] == [
        *("memory_release", "memory_resume", "memory_release", "memory_resume"),
        *("engine_cache_flush", "generation_pause", "generation_continue"),
    ]
    assert [record["extra"] for record in controls if "extra" in record] == [
        *({"tags": "kv_cache"}, {"tags": "kv_cache"}, {"part": "flush", "server": 0}),
        *({"part": "pause", "server": 0, "mode": "abort"}, {"part": "resume", "server": 0}),
    ]
    assert not any("error" in record for record in controls)


def test_the_trainer_waits_for_its_rollouts(outcome):
    for step in STEPS:
        [rollout] = named(outcome.logs[f"{step}/trainer_0.jsonl"], "rollout")
        assert rollout["extra"] == {"batch_size": 4, "workers": 2}


def test_a_worker_that_is_killed_in_mid_step_leaves_readable_files(outcome):
    assert outcome.driver["killed"]["error"] in ("ActorDiedError", "ActorUnavailableError")
    path = outcome.folder / "run/step_9/worker_0.jsonl"
    *lines, _ = path.read_bytes().split(b"\n")
    events = [json.loads(line)["event"] for line in lines]
    assert events[0] == "log_opened"
    assert "turn_end" in events
    assert "step_closed" not in events
    assert named(outcome.logs["step_9/worker_1.jsonl"], "step_closed")


@pytest.mark.parametrize("text", ["Add 2 and 3.", "#### 5", "Current parsed"])
def test_no_text_is_logged(outcome, text):
    for path in (outcome.folder / "run").rglob("*.json*"):
        assert text not in path.read_text()


def test_the_time_in_the_engine_is_shared_out(outcome):
    has_most_of_its_time_in_decoding(outcome)


def has_most_of_its_time_in_decoding(driven):
    shares = engine_summary(open_run(driven.folder / "run", cached=False))["shares"]
    assert sum(shares.values()) == pytest.approx(1)
    # A reply of tens of tokens takes as many forward passes; its prompt takes one.
    assert shares["decode"] > shares["prefill"] > 0
