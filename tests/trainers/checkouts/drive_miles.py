"""Run two rollouts of Miles' real RolloutManager in one way: drive_miles.py CHECKOUT MODEL PORT WAY.

Replaced are: the actor's start, engines, data source, dashboard, and what saves and splits a batch. The
rollouts, the generate functions, rewards, the abort and what makes training data are Miles' code. The last
line is JSON.
"""

import asyncio
import json
import os
import sys

import stubs
from settings import PARALLEL, Prompts, facts, settings

checkout, model, port, way = sys.argv[1:]
stubs.stand_in_for(checkout)
os.environ["MILES_USE_LEGACY_ROLLOUT_V1"] = str(int(way == "legacy"))

from miles.ray.rollout import rollout_manager  # noqa: E402
from miles.rollout.base_types import RolloutFnConstructorInput  # noqa: E402
from miles.rollout.inference_rollout.compatibility import load_rollout_function  # noqa: E402
from miles.utils.http_utils import init_http_client  # noqa: E402
from miles.utils.misc import load_function  # noqa: E402
from miles.utils.types import Sample  # noqa: E402

LIMIT_SEC = 300
CLASSES = "miles.rollout.inference_rollout.inference_rollout_common.InferenceRolloutFn"
WAYS = {
    "plain": {},
    "tools": {"custom_generate_function_path": "miles.rollout.generate_hub.multi_turn.generate"},
    "legacy": {"rollout_function_path": "miles.rollout.sglang_rollout.generate_rollout"},
    "async": {"rollout_function_path": "miles.rollout.fully_async_rollout.FullyAsyncRolloutFn"},
    "customgen": {
        "custom_generate_function_path": "miles_team.generate",
        "custom_rm_path": "miles_team.reward",
        "reward_key": "score",
    },
    "agents": {
        "custom_generate_function_path": "miles_team.generate_with_agents",
        "custom_rm_path": "miles_team.rewards",
        "rollout_max_context_len": 9000,
    },
}
MORE = {
    "rollout_function_path": CLASSES,
    "generate_max_turns": 3,
    "generate_execute_tool_function_path": "miles_team.tool",
    "generate_tool_specs_path": "miles_team.tool_specs",
    "generate_tool_call_parser": "qwen25",
    "async_unused_samples_handler": "retry",
    "async_data_buffer_capacity_factor": 2.0,
    "ft_components": [],
    "eval_datasets": [],
    "eval_num_gpus": 0,
    "lora_rank": 0,
    "use_dynamic_global_batch_size": False,
    **WAYS[way],
}


class Nothing:
    def __getattr__(self, name):
        return lambda *arguments, **keywords: None


def manager_of(arguments):
    kind = rollout_manager.RolloutManager
    kind = kind.__ray_metadata__.modified_class if hasattr(kind, "__ray_metadata__") else kind
    manager = kind.__new__(kind)
    manager.args, manager.data_source, manager.servers = arguments, Prompts(Sample), {}
    manager.train_parallel_config, manager.weight_version, manager.rollout_id = PARALLEL, None, -1
    manager._health_monitors, manager._rollout_ft_enabled, manager._metric_checker = [], False, None
    manager.custom_reward_post_process_func = manager.custom_convert_samples_to_train_data_func = None
    manager.use_legacy_rollout_v1 = way == "legacy"
    if way == "legacy":
        manager.generate_rollout = load_function(arguments.rollout_function_path)
    else:
        start = RolloutFnConstructorInput(args=arguments, data_source=manager.data_source)
        manager.generate_rollout = load_rollout_function(start, arguments.rollout_function_path)
    return manager


async def main():
    arguments = settings(model, int(port), **MORE)
    init_http_client(arguments)
    trained, manager = [], manager_of(arguments)
    rollout_manager.dashboard_hooks = Nothing()
    rollout_manager.log_rollout_data = lambda *arguments, **keywords: None
    rollout_manager.save_debug_rollout_data = lambda args, samples, **keywords: trained.append(
        list(map(facts, samples))
    )
    rollout_manager.split_train_data_by_dp = lambda args, samples, parallel: None
    handed = []
    for rollout_id in (5, 6):
        manager.set_weight_version(rollout_id + 2)
        given = await asyncio.wait_for(manager.generate(rollout_id), LIMIT_SEC)
        handed.append([int(index) for index in given["sample_indices"]])
    print(json.dumps({"trained": trained, "handed": handed, "replaced": sorted(stubs.REPLACED)}))


asyncio.run(main())
stubs.end()
