"""Dumps of samples without traces, as slime and Miles write them: lengths, rewards, statuses, versions."""

import json
import os

import foreign_runs
import pytest

from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import main

DUMPED_SEC = 1_767_600_000


def sample(index, **changes):
    """Return a sample as their `Sample.to_dict` does: these keys, statuses as text, no trace."""
    length = 100 + index
    whole = {
        "group_index": index // 4,
        "index": index,
        "prompt": [{"role": "user", "content": "p"}],
        "tokens": list(range(length + 50)),
        "multimodal_inputs": None,
        "response": "r" * length,
        "response_length": length,
        "label": None,
        "reward": float(index % 2),
        "loss_mask": [1] * length,
        "weight_versions": ["3", "4"],
        "rollout_log_probs": [-0.5] * length,
        "remove_sample": False,
        "status": "completed",
        "metadata": {"messages": []},
        "session_id": None,
        "non_generation_time": 0.0,
        "spec_info": {"spec_accept_token_num": 0, "spec_verify_ct": 0},
        "prefix_cache_info": {"cached_tokens": 40, "total_prompt_tokens": 50},
    }
    return {**whole, **changes}


@pytest.fixture
def dumps(tmp_path):
    """A step of 8 samples and one of 4, and a validation: Miles adds `metadata`."""
    statuses = ["completed", "truncated", "aborted", "failed"]
    steps = {
        "rollout_0": [sample(index, status=statuses[index % 4]) for index in range(8)],
        "rollout_1": [sample(index, weight_versions=[], reward={"score": 1.0}) for index in range(4)],
        "eval_0": [sample(index, prefix_cache_info={"total_prompt_tokens": 0}) for index in range(3)],
    }
    for name, samples in steps.items():
        path = tmp_path / f"{name}.pt"
        dump = {"rollout_id": int(name[-1]), "metadata": {}, "samples": samples}
        foreign_runs.torch_save(path, dump)
        os.utime(path, (DUMPED_SEC, DUMPED_SEC))
    return tmp_path


def printed(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_a_sample_without_a_trace_is_a_request_without_times(dumps):
    run = open_run(dumps)
    requests = run.digest.requests.sort("validate", "step", "request_id")
    assert requests.group_by("step", "validate", maintain_order=True).len().rows() == [
        (0, False, 8),
        (1, False, 4),
        (0, True, 3),
    ]
    first = requests.row(0, named=True)
    names = ("request_id", "group", "response_tokens", "reward", "finish_reason", "first_weight_version")
    assert [first[name] for name in names] == ["0", "0", 100, 0.0, "stop", 3]
    assert first["weight_version"] == 4
    unknown = ("duration_sec", "turns", "engine_sec", "tool_sec", "reward_sec", "error")
    assert [first[name] for name in unknown] == [None] * len(unknown), "what is not known is absent, never 0"
    assert first["end_us"] == DUMPED_SEC * 10**6
    assert requests["finish_reason"].to_list()[:4] == ["stop", "length", "abort", "failed"]
    assert requests.filter(step=1)["reward"].null_count() == 4, "several rewards are not one"
    assert requests.filter(step=1)["weight_version"].null_count() == 4
    assert run.digest.steps.is_empty()
    assert any("times of 15 samples" in words for words in run.health.cannot_show)


def test_commands_show_what_is_known_of_such_samples(dumps, capsys):
    lengths = json.loads(printed(capsys, "lengths", dumps, "--step", 0, "--json"))["lengths"]
    assert [(row["step"], row["requests"], row["max_tokens"], row["reward"]) for row in lengths] == [
        (0, 8, 107, 0.5)
    ]
    assert lengths[0]["tokens_per_sec"] is None
    assert "12 requests of 2 steps without times" in printed(capsys, "summary", dumps)
    assert "no plateau" in printed(capsys, "gaps", dumps)
    assert "abort" in printed(capsys, "requests", dumps)
    assert "abort" in printed(capsys, "requests", dumps, "--request", 2)
    assert main(["lengths", str(dumps), "--step", "7"]) == 2
    assert "the nearest" in capsys.readouterr().err
    for command in (
        "turns",
        "workers",
        "events",
        "check",
        "staleness",
        "waste",
        "weights",
        "loop",
        "servers",
    ):
        printed(capsys, command, dumps)


def test_a_dump_with_and_without_traces_has_both(dumps, tmp_path):
    events = [
        {"type": "span_start", "name": "generate_and_rm", "ts": DUMPED_SEC - 9.0, "span_id": "a"},
        {"type": "span_end", "name": "generate_and_rm", "ts": DUMPED_SEC - 2.0, "span_id": "a"},
    ]
    samples = [sample(0, trace={"events": events}), sample(1), sample(2, trace={"events": []})]
    foreign_runs.torch_save(dumps / "rollout_2.pt", {"rollout_id": 2, "samples": samples})
    requests = open_run(dumps).digest.requests.filter(step=2).sort("request_id")
    assert requests["duration_sec"].to_list() == [7.0, None, None]
    assert requests["turns"].to_list() == [0, None, None]
