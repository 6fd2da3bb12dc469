"""Run two rollouts of NeMo-RL in one way, `sync` or `async`: drive_nemo.py CHECKOUT MODEL PORT WAY.

Replaced are: Ray, the environment's actor, the start of engines, NVTX. The rollouts, rewards and the
generation over HTTP are NeMo-RL's code. The last line is JSON.
"""

import json
import sys
import types

import stubs

checkout, model, port, way = sys.argv[1:]
stubs.stand_in_for(checkout)

import torch  # noqa: E402
from nemo_rl.distributed.batched_data_dict import BatchedDataDict  # noqa: E402
from nemo_rl.environments.interfaces import EnvironmentReturn  # noqa: E402
from nemo_rl.experience import rollouts  # noqa: E402
from nemo_rl.models.generation.sglang.sglang_generation import SGLangGeneration  # noqa: E402
from nemo_rl.models.generation.sglang.utils.async_utils import AsyncLoopThread  # noqa: E402
from nemo_rl.models.generation.sglang.utils.http_utils import HttpClient  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

QUESTIONS = ("Add 2 and 3.", "Say 9.", "Add 1 and 1.", "Say 6.")
TURNS = (1, 2, 3, 2)  # after so many replies, the environment ends the talk about each question
tokenizer = AutoTokenizer.from_pretrained(model)


class Future:
    """What `remote` returns, which has a hash; a named tuple with tensors has none."""

    def __init__(self, value):
        self.value = value


def answers(talks, settings):
    """Answer "again" until a talk has all of its turns, which is worth 1."""
    replies = [sum(message["role"] == "assistant" for message in talk) for talk in talks]
    is_over = [count >= setting["turns"] for count, setting in zip(replies, settings, strict=True)]
    nothing = [None] * len(talks)
    return Future(
        EnvironmentReturn(
            observations=[{"role": "environment", "content": "again"} for _ in talks],
            metadata=settings,
            next_stop_strings=nothing,
            rewards=torch.tensor(is_over, dtype=torch.float32),
            terminateds=torch.tensor(is_over),
            answers=nothing,
        )
    )


def generation():
    made = SGLangGeneration.__new__(SGLangGeneration)
    made.router_ip, made.router_port, made._async_loop = "127.0.0.1", int(port), AsyncLoopThread()
    made._http_client = HttpClient()
    made.sglang_cfg = {
        "backend": "sglang",
        "use_async_rollouts": True,
        "max_new_tokens": 8,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": None,
        "stop_token_ids": None,
        "stop_strings": None,
        "_pad_token_id": tokenizer.pad_token_id or 0,
        "sglang_cfg": {
            "context_length": 512,
            "sglang_server_config": {"sglang_server_concurrency": 8, "num_gpus": 1, "num_gpus_per_engine": 1},
        },
    }
    return made


def batch():
    ids = [tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids[0] for text in QUESTIONS]
    return BatchedDataDict(
        {
            "message_log": [
                [{"role": "user", "content": text, "token_ids": tokens}]
                for text, tokens in zip(QUESTIONS, ids, strict=True)
            ],
            "extra_env_info": [{"turns": turns} for turns in TURNS],
            "task_name": ["math"] * len(ids),
            "idx": list(range(len(ids))),
            "length": torch.tensor(list(map(len, ids))),
            "loss_multiplier": torch.ones(len(ids)),
        }
    )


def facts(rolled):
    """Return of each sample the tokens of its replies by turn, all until its last reply, and its reward."""
    return [
        {
            "replies": [len(message["token_ids"]) for message in talk if message["role"] == "assistant"],
            "tokens": sum(len(message["token_ids"]) for message in talk[:-1]),
            "reward": reward,
        }
        for talk, reward in zip(rolled["message_log"], rolled["total_reward"].tolist(), strict=True)
    ]


WAYS = {"sync": rollouts.run_multi_turn_rollout, "async": rollouts.run_async_multi_turn_rollout}
rollouts.ray = types.SimpleNamespace(get=lambda futures: [future.value for future in futures])
torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *arguments: 0
actor = types.SimpleNamespace(step=types.SimpleNamespace(remote=answers))
engine, printed = generation(), []
for _ in range(2):
    rolled, _ = WAYS[way](engine, batch(), tokenizer, {"math": actor}, max_seq_len=256, max_rollout_turns=5)
    printed.append(facts(rolled))
print(json.dumps({"samples": printed, "replaced": sorted(stubs.REPLACED)}))
stubs.end()
