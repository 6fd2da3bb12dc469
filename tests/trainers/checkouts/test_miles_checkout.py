"""Miles' real rollouts from a checkout: `make test-trainers MILES=DIR`. `/generate` is a stand-in.

Requests, turns, tokens and consumption are held against what the server answered and what the trainer was
handed.
"""

import json
from collections import Counter

import pytest
from conftest import REQUEST

from sglang_instrument.analysis.answers.agents import request_trees
from sglang_instrument.analysis.questions import open_run

TOOL_CALL = '<tool_call>\n{"name": "calculator", "arguments": {"a": "5"}}\n</tool_call>'
STEPS = {5: [0, 1, 2, 3], 6: [6, 7, 8, 9]}  # the samples that each step trains on
ABORTED = {5: [4, 5], 6: [10, 11]}
TURNS = {"plain": 1, "legacy": 1, "tools": 3, "customgen": 2}


@pytest.fixture(params=TURNS)
def way(request):
    return request.param


@pytest.fixture
def run(rolled, way):
    return run_of(rolled, way)


def run_of(rolled, way):
    return rolled("MILES", "drive_miles.py", way, *([TOOL_CALL] if way == "tools" else []))


def test_each_sample_is_a_request_with_its_own_counts(run, way):
    for step, trained in zip(STEPS, run.printed["trained"], strict=True):
        requests = {request["sample"]: request for request in run.extras(REQUEST, f"step_{step}")}
        assert sorted(requests) == sorted(STEPS[step] + ABORTED[step])
        for sample in trained:
            request = requests[sample["sample"]]
            assert request["turns"] == TURNS[way]
            assert (request["status"], request["group"]) == (sample["status"], sample["group"])
            assert (request["response_length"], request["reward"]) == (
                sample["response_length"],
                sample["reward"],
            )
            assert request["total_sequence_length"] == sample["tokens"]
            assert request.get("actual_response_tokens", sample["trained_tokens"]) == sample["trained_tokens"]


def test_each_call_has_the_tokens_that_the_server_counted(run):
    calls = [call for step in STEPS for call in run.extras("turn_engine_call", f"step_{step}")]
    assert {call["rid"]: call["prompt_tokens"] for call in calls} == run.counted.prompts
    assert {call["rid"]: call["generated_tokens"] for call in calls} == run.counted.replies
    assert {
        ending: [call["finish_reason"] for call in calls].count(ending) for ending in ("stop", "abort")
    } == (dict(run.counted.endings))


def test_a_step_names_the_samples_that_it_handed_to_training(run):
    assert run.printed["handed"] == list(STEPS.values())
    for step, samples in STEPS.items():
        [consumed] = run.extras("samples_consumed", f"step_{step}")
        assert consumed["samples"] == samples
        assert consumed["weight_version"] == step + 2


def test_the_tokens_that_reached_training_and_those_that_were_aborted_are_all_that_were_generated(run):
    replies = run.counted.replies
    aborted = sum(
        replies[call["rid"]]
        for step in STEPS
        for call in run.extras("turn_engine_call", f"step_{step}")
        if call["finish_reason"] == "abort"
    )
    total = run.waste
    assert total["generated_tokens"] == sum(replies.values())
    assert (total["used_tokens"], total["aborted_tokens"]) == (sum(replies.values()) - aborted, aborted)


def test_over_sampling_ends_in_an_abort_of_what_is_pending(run):
    for step in STEPS:
        [abort] = run.extras("requests_abort", f"step_{step}")
        assert abort["pending"] == 1
        cut = [request for request in run.extras(REQUEST, f"step_{step}") if request["status"] == "aborted"]
        assert sorted(request["sample"] for request in cut) == ABORTED[step]
        assert all("reward" not in request for request in cut)


def test_turns_of_the_multi_turn_function_have_their_tools(rolled):
    run = run_of(rolled, "tools")
    for step in STEPS:
        batches = run.extras("tool_execution", f"step_{step}")
        assert len(batches) == len(run.extras("tool_call", f"step_{step}")) == 12
        assert {tuple(batch["tools"]) for batch in batches} == {("calculator",)}
        assert sorted(batch["turn"] for batch in batches) == sorted([0, 1, 2] * 4)


def test_a_loop_that_runs_ahead_leaves_its_requests_in_the_step_in_which_they_began(rolled):
    run = rolled("MILES", "drive_miles.py", "async")
    requests = {
        request["sample"]: request for step in STEPS for request in run.extras(REQUEST, f"step_{step}")
    }
    trained = [sample for samples in run.printed["trained"] for sample in samples]
    for sample in trained:
        assert requests[sample["sample"]]["response_length"] == sample["response_length"]
    for step, samples in STEPS.items():
        [consumed] = run.extras("samples_consumed", f"step_{step}")
        assert consumed["samples"] == samples
    assert run.waste["used_tokens"] == sum(sample["response_length"] for sample in trained)


def test_no_text_is_in_the_log(rolled):
    logs = json.dumps([run_of(rolled, way).logs for way in TURNS])
    assert "secret" not in logs
    assert "The answer" not in logs


def test_the_agents_of_the_example_are_one_tree_a_sample(rolled):
    """Miles' `examples/experimental/multi_agent`: solvers, rewriters and a selector for each sample."""
    run = rolled("MILES", "drive_miles.py", "agents", "a reason</think>Judgment: 1", 10_000)
    trees = request_trees(open_run(run.folder, cached=False).everything)
    assert trees.filter(trees["depth"] == 0)["parent_request"].null_count() == trees["tree"].n_unique()
    samples = {request["sample"] for step in STEPS for request in run.extras(REQUEST, f"step_{step}")}
    assert trees["tree"].n_unique() == len(samples)
    for tree in trees.partition_by("tree"):
        agents = Counter(tree["agent"].drop_nulls())
        assert agents == {"solver": 5, "rewriter": 5, "selector": 1}
        assert tree["turns"][1:].to_list() == [1] * 11
        assert sum(tree["path_sec"]) == pytest.approx(tree["duration_sec"][0], abs=1e-4)
    calls = [call for step in STEPS for call in run.extras("turn_engine_call", f"step_{step}")]
    assert len(calls) == len(run.counted.replies) == 11 * len(samples)
