"""Code of an AReaL user, named by path: a workflow with two turns and a tool, rewards."""

import asyncio
import uuid

import torch
from areal.api import AsyncRewardWrapper, ModelRequest, RolloutWorkflow

from sglang_instrument import instrument


def reward(prompt, completions, prompt_ids, completion_ids, **data):
    """Score in a process of AReaL's pool."""
    return 1.0 if data["answer"] in completions else 0.0


def failing_reward(prompt, completions, prompt_ids, completion_ids, **data):
    """Fail whenever it is called."""
    raise ValueError("a secret of the user's")


@instrument("tool_execution", fields={"tool": "name"})
async def use_tool(name):
    """Wait for a moment, as a tool does."""
    await asyncio.sleep(0.01)
    return name


class ToolWorkflow(RolloutWorkflow):
    """Ask, use a tool, ask again."""

    def __init__(self, gconfig, tokenizer, reward_fn=reward):
        self.gconfig = gconfig.new_with_stop_and_pad_token_ids(tokenizer)
        self.tokenizer, self.reward = tokenizer, AsyncRewardWrapper(reward_fn, 300, max_retries=0)

    async def arun_episode(self, engine, data):
        """Return the tokens of both replies."""
        ids = list(
            self.tokenizer.apply_chat_template(
                data["messages"], add_generation_prompt=True, return_dict=False
            )
        )
        replies = []
        for _ in range(2):
            request = ModelRequest(
                rid=uuid.uuid4().hex,
                input_ids=list(ids),
                gconfig=self.gconfig.new(n_samples=1),
                tokenizer=self.tokenizer,
            )
            reply = await engine.agenerate(request)
            replies += reply.output_tokens
            ids += reply.output_tokens
            await use_tool("calculator")
        score = await self.reward("", self.tokenizer.decode(replies), [], replies, **data)
        mask = [0] * (len(ids) - len(replies)) + [1] * len(replies)
        rows = {"input_ids": ids, "loss_mask": mask, "versions": [0] * len(ids), "logprobs": [0.0] * len(ids)}
        made = {name: torch.tensor(row).unsqueeze(0) for name, row in rows.items()}
        rewards = {
            "rewards": torch.tensor([score]),
            "attention_mask": torch.ones(1, len(ids), dtype=torch.bool),
        }
        return made | rewards
