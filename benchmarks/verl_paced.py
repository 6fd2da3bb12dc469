"""Roll out in verl's server mode, a step whenever it is asked for: the real thing beside its twin.

    verl_paced.py MODEL FOLDER LIMIT SERVERS STEPS

Runs in the environment of `tests/environments/verl_server.sh`. SERVERS of SGLang with at most LIMIT running
requests each stand behind verl's load balancer; two agent-loop workers roll out 8 groups of 4 requests, each
one to four turns with tools between them. For a number N on stdin, the rollout of step N is played, which is
that of step N % 100; a line on stdout says when it is over. The first line has the servers' addresses.
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/trainers/verl_server"))

import drive
import numpy
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

GROUPS, MEMBERS = 8, 4
VOCABULARY = range(10, 250)


def draw(dice, median, low, high, sigma=0.9):
    return int(min(high, max(low, dice.lognormvariate(0, sigma) * median)))


class Drawn(AgentLoopBase):
    """An agent whose turns, lengths and tools are drawn: the same for each rollout of a step."""

    async def run(self, sampling_params, **kwargs):
        seed = int(kwargs["seed"])
        group = random.Random(seed // MEMBERS)
        dice = random.Random(f"{seed} member")
        prompt = group.choices(VOCABULARY, k=draw(group, 90, 16, 200, 0.6))
        ids, mask, request = list(prompt), [], uuid4().hex
        turns = dice.choices((1, 2, 3, 4), (3, 3, 2, 2))[0]
        for turn in range(turns):
            asked = {**sampling_params, "max_new_tokens": draw(dice, 150, 10, 380), "ignore_eos": True}
            output = await self.server_manager.generate(
                request_id=request, prompt_ids=ids, sampling_params=asked
            )
            ids, mask = ids + output.token_ids, mask + [1] * len(output.token_ids)
            if turn + 1 < turns:
                await asyncio.sleep(dice.uniform(0.05, 0.5))
                answer = dice.choices(VOCABULARY, k=dice.randrange(8, 48))
                ids, mask = ids + answer, mask + [0] * len(answer)
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=ids[len(prompt) :],
            response_mask=mask,
            num_turns=2 * turns,
            metrics=AgentLoopMetrics(),
            reward_score=1.0,
            extra_fields={},
        )


def batch(step):
    """Return the prompts of a step as verl's trainer hands them over."""
    from verl.protocol import DataProto

    rows = GROUPS * MEMBERS
    raw = numpy.empty(rows, dtype=object)
    for row in range(rows):
        raw[row] = numpy.array([{"role": "user", "content": "drawn"}])
    columns = {
        "raw_prompt": raw,
        "agent_name": numpy.array(["drawn"] * rows),
        "data_source": numpy.array(["openai/gsm8k"] * rows),
        "reward_model": numpy.array([{"style": "rule", "ground_truth": "1"}] * rows),
        "index": numpy.arange(rows) // MEMBERS,
        "seed": (step % 100) * 1000 + numpy.arange(rows),
    }
    prompts = DataProto(non_tensor_batch=columns)
    prompts.meta_info = {"global_steps": step, "validate": False}
    return prompts


def configuration(model, folder, limit):
    """Return verl's configuration for long agents of this module."""
    config = drive.configuration(model)
    rollout = config.actor_rollout_ref.rollout
    rollout.max_num_seqs = limit
    rollout.prompt_length, rollout.response_length, rollout.max_model_len = 320, 1700, 2048
    rollout.temperature, rollout.do_sample = 1.0, True
    rollout.free_cache_engine = False
    rollout.multi_turn.tool_config_path = None
    loops = folder / "loops.yaml"
    loops.write_text("- name: drawn\n  _target_: verl_paced.Drawn\n")
    rollout.agent.agent_loop_config_path = str(loops)
    engine = rollout.engine_kwargs.sglang
    engine.context_length, engine.max_total_tokens = 2048, 65536
    engine.chunked_prefill_size = 2048
    engine.sleep_on_idle = True
    return config


def main(model, folder, limit, servers):
    import ray
    import verl  # noqa: F401 - before ray.init(), as in verl's own main_ppo

    drive.SERVERS = servers
    handed = ("PYTHONPATH", "SGLANG_USE_CPU_ENGINE", "TOKENIZERS_PARALLELISM", "PYTHONWARNINGS")
    started = {
        "address": "local",
        "num_cpus": 16,
        "num_gpus": servers,  # for Ray, a GPU is only a number
        "include_dashboard": False,
        "_temp_dir": os.environ["RAY_TMPDIR"],
        "runtime_env": {"env_vars": {name: os.environ[name] for name in handed if name in os.environ}},
    }
    drive.once_more_if_late(lambda: ray.init(**started))
    manager, loops = drive.start_servers(configuration(model, folder, limit))
    print(json.dumps({"servers": [f"http://{address}" for address in manager.get_addresses()]}), flush=True)
    for line in sys.stdin:
        ray.get([handle.clear_kv_cache.remote() for handle in manager.server_handles])
        loops.generate_sequences(prompts=batch(int(line)))
        print(json.dumps({"done": int(line)}), flush=True)


if __name__ == "__main__":
    model, folder, limit, servers = sys.argv[1:]
    main(model, Path(folder), int(limit), int(servers))
