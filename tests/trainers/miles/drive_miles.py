"""Run two steps and an evaluation of the stand-in for Miles in one of several ways; print what they give.

python drive_miles.py WAY [never]
"""

import asyncio
import json
import sys
import time
from argparse import Namespace
from types import SimpleNamespace

import sglang_instrument

LIMIT_SEC = 300
HUB = "miles.rollout.generate_hub"
PLAIN = {
    "legacy": False,
    "n_samples_per_prompt": 2,
    "rollout_batch_size": 2,
    "over_sampling_batch_size": 2,
    "sglang_server_concurrency": 4,
    "sglang_router_policy": "consistent_hashing",
    "partial_rollout": True,
    "group_rm": False,
    "rm_type": "rule",
    "reward_key": None,
    "custom_rm_path": None,
    "custom_generate_function_path": None,
    "custom_agent_function_path": "miles_user.agent",
    "generate_execute_tool_function_path": "miles_user.tool",
    "generate_tool_specs_path": "miles_user.tool_specs",
    "generate_max_turns": 3,
    "rollout_max_context_len": 1000,
    "dynamic_sampling_filter_path": None,
    "rollout_sample_filter_path": None,
    "rollout_all_samples_process_path": None,
    "recompute_logprobs_via_prefill": True,
    "eval_datasets": [SimpleNamespace(name="tiny", prompts=["a", "b", "c"])],
    "data_source_path": "miles_user.Prompts",
    "rollout_function_path": "miles.rollout.inference_rollout.inference_rollout_common.InferenceRolloutFn",
}
WAYS = {
    "plain": {},
    "tools": {
        "custom_generate_function_path": f"{HUB}.multi_turn.generate",
        "custom_rm_path": "miles_user.reward",
        "reward_key": "score",
    },
    "agent": {"custom_generate_function_path": f"{HUB}.agentic_tool_call.generate"},
    "legacy": {"legacy": True, "rollout_function_path": "miles.rollout.sglang_rollout.generate_rollout"},
    "async": {"rollout_function_path": "miles.rollout.fully_async_rollout.FullyAsyncRolloutFn"},
}


def let_it_run_ahead(prompts):
    """Wait until the loop in the background has made a group that it began after now."""
    begun, ends = prompts.groups, time.monotonic() + LIMIT_SEC
    while prompts.groups < begun + 2:  # it makes one group after the other
        if time.monotonic() > ends:
            raise TimeoutError(f"{prompts.groups} groups, {begun} before")
        time.sleep(0.001)


async def rollouts(way):
    """Return the results of two steps and an evaluation."""
    from miles.ray.rollout.rollout_manager import RolloutManager

    manager = RolloutManager(Namespace(**{**PLAIN, **WAYS[way]}), None)
    out = []
    for rollout_id in (5, 6):
        manager.set_weight_version(rollout_id - 4)
        out.append(await manager.generate(rollout_id))
        if way == "async":
            let_it_run_ahead(manager.data_source)
    return [*out, await manager.eval(6)] if way != "async" else None


def main():
    """Run."""
    if sys.argv[2:] != ["never"]:
        sglang_instrument.install()
    print(json.dumps(asyncio.run(rollouts(sys.argv[1])), default=str))
    sglang_instrument.flush()


if __name__ == "__main__":
    main()
