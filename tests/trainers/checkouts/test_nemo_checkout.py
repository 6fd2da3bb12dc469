"""NeMo-RL's real rollouts from a checkout: `make test-trainers NEMO=DIR`. `/generate` is a stand-in.

Ray and the environment are replaced, too. Turns, tokens and rewards are held against what the rollout
returned.
"""

import pytest
from conftest import REQUEST


@pytest.fixture(params=["sync", "async"])
def run(request, rolled):
    return rolled("NEMO", "drive_nemo.py", request.param)


def test_each_call_has_the_tokens_that_the_server_counted(run):
    calls = [
        call for step in (1, 2) for call in run.extras("turn_engine_call", f"step_{step}") if "rid" in call
    ]
    replies = [
        reply for samples in run.printed["samples"] for sample in samples for reply in sample["replies"]
    ]
    assert sorted(call["generated_tokens"] for call in calls) == sorted(replies)
    for call in calls:  # of answers whose connection broke, NeMo-RL asks for others
        assert call["prompt_tokens"] == run.counted.prompts[call["rid"]]
        assert call["generated_tokens"] == run.counted.replies[call["rid"]]


def test_without_asynchronous_rollouts_a_turn_is_one_call_of_all_samples_that_go_on(rolled):
    run = rolled("NEMO", "drive_nemo.py", "sync")
    for step, samples in enumerate(run.printed["samples"], 1):
        going_on = [sum(len(sample["replies"]) > turn for sample in samples) for turn in range(3)]
        turns = run.extras("turn_end", f"step_{step}")
        assert [(turn["turn"], turn["samples"]) for turn in turns] == list(enumerate(going_on))
        batches = [call for call in run.extras("turn_engine_call", f"step_{step}") if "rid" not in call]
        assert [batch["turn"] for batch in batches] == [0, 1, 2]
        assert run.extras(REQUEST, f"step_{step}") == []


def test_each_sample_of_an_asynchronous_rollout_is_a_request_with_its_own_counts(rolled):
    run = rolled("NEMO", "drive_nemo.py", "async")
    for step, samples in enumerate(run.printed["samples"], 1):
        requests = {request["sample"]: request for request in run.extras(REQUEST, f"step_{step}")}
        assert sorted(requests) == list(range(len(samples)))
        for number, sample in enumerate(samples):
            request = requests[number]
            assert request["turns"] == len(sample["replies"])
            assert request["response_length"] == sum(sample["replies"])
            assert request["total_sequence_length"] == sample["tokens"]
            assert request["reward"] == sample["reward"] == 1.0
            for event in ("turn_end", "turn_engine_call", "tool_execution"):
                turns = [
                    extra["turn"]
                    for extra in run.extras(event, f"step_{step}")
                    if extra["request_id"] == request["request_id"]
                ]
                assert turns == list(range(request["turns"])), event
            replies = [
                call["generated_tokens"]
                for call in run.extras("turn_engine_call", f"step_{step}")
                if call["request_id"] == request["request_id"]
            ]
            assert replies == sample["replies"]
