"""A team's module for Miles, named by path: a tool, a generate function of two calls, and a reward."""

import asyncio

from miles.rollout.inference_rollout.inference_rollout_common import GenerateState
from miles.utils.http_utils import post

tool_specs = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
        },
    }
]


async def tool(name, params):
    await asyncio.sleep(0.01)
    return "secret 5"


async def generate(args, sample, sampling_params):
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    sample.tokens = GenerateState(args).tokenizer.encode(sample.prompt, add_special_tokens=False)
    sample.loss_mask = []
    for _ in range(2):
        payload = {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True}
        reply = await post(url, payload)
        sample.tokens = sample.tokens + reply["output_ids"]
        sample.response += reply["text"]
        sample.response_length += len(reply["output_ids"])
        sample.loss_mask += [1] * len(reply["output_ids"])
        sample.update_from_meta_info(args, reply["meta_info"])
    return sample


async def reward(args, sample, **keywords):
    await asyncio.sleep(0.01)
    return {"score": 0.5, "why": "secret reason"}


async def rewards(args, samples, **keywords):
    """Return the reward of one sample, or of a list."""
    return [0.5] * len(samples) if isinstance(samples, list) else 0.5


async def generate_with_agents(args, sample, sampling_params):
    """Run Miles' example of several agents, and name the rollout of its samples, as later versions demand."""
    from examples.experimental.multi_agent.rollout_with_multi_agents import generate_with_multi_agents

    samples = await generate_with_multi_agents(args, sample, sampling_params)
    for each in samples:
        each.rollout_id = sample.index
    return samples
