"""Play two turns with each of ROLL's real managers of environments: drive_roll.py CHECKOUT.

The environment, the tokenizer, the proxy of the model and what makes a prompt are replaced; the turns, the
calls and the answers of the environment are ROLL's code.
"""

import contextlib
import importlib
import json
import sys
import threading
import time
import types

import stubs

stubs.stand_in_for(sys.argv[1])

import torch  # noqa: E402
from roll.distributed.scheduler.protocol import DataProto  # noqa: E402
from roll.pipeline.agentic.env_manager.base_env_manager import RolloutCache  # noqa: E402
from tensordict import TensorDict  # noqa: E402

MANAGERS = {
    "traj_env_manager": "TrajEnvManager",
    "vl_traj_env_manager": "VLTrajEnvManager",
    "agent_native_env_manager": "AgentNativeStepEnvManager",
}
TURNS = 2


class Settings(dict):
    __getattr__ = dict.__getitem__


class Arguments(types.SimpleNamespace):
    def to_dict(self):
        return dict(vars(self))


class Environment:
    def step(self, action):
        time.sleep(0.01)
        return [{"role": "user", "content": "again"}], 1.0, False, False, {}


class Proxy:
    def generate(self, messages, lm_input, generation_config):
        time.sleep(0.02)
        replies = torch.ones(1, 3, dtype=torch.long)
        return DataProto(batch=TensorDict({"responses": replies}, batch_size=[1]), meta_info={})


def manager_of(kind, step):
    manager = kind.__new__(kind)
    manager.current_step, manager.running, manager.episode_id, manager.stop_reason = step, True, 0, None
    manager.env_config = Settings(env_id=5, max_steps=9, max_tokens_per_step=8, group_id=1, group_seed=0)
    manager.pipeline_config = types.SimpleNamespace(sequence_length=256, response_length=64)
    manager.worker_config = types.SimpleNamespace(generating_args=Arguments(max_new_tokens=8))
    manager.rollout_cache = RolloutCache(env_id=5, group_id=1, tag="Sokoban")
    manager.rollout_cache.history = [{"observation": [], "actions_left": 9, "messages": []}]
    manager.thread_lock, manager.env_step_limiter = threading.Lock(), contextlib.nullcontext()
    manager.logger = types.SimpleNamespace(warning=print, debug=lambda *texts: None)
    manager.tokenizer = types.SimpleNamespace(
        batch_decode=lambda ids, skip_special_tokens: ["up"], decode=lambda ids, skip_special_tokens: "up"
    )
    manager.env, manager.llm_proxy = Environment(), Proxy()
    prompt = DataProto(batch=TensorDict({"input_ids": torch.ones(1, 5, dtype=torch.long)}, batch_size=[1]))

    def format_messages(cache):
        manager.rollout_cache.history[-1]["messages"] = []
        return (prompt, []) if kind.__name__ == "VLTrajEnvManager" else prompt

    manager.format_messages = format_messages
    return manager


played = {}
for step, (module, name) in enumerate(MANAGERS.items(), 1):
    home = importlib.import_module(f"roll.pipeline.agentic.env_manager.{module}")
    manager = manager_of(getattr(home, name), step)
    for _ in range(TURNS):
        reply = manager.make_decision(manager.rollout_cache)
        reply.meta_info.pop("stop_reason")
        manager.step(reply)
    played[name] = manager.rollout_cache.step
print(json.dumps({"played": played, "replaced": sorted(stubs.REPLACED)}))
