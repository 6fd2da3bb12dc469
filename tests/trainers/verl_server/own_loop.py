"""Run verl's real AgentLoopWorker with agent loops of a team's own, and its servers replaced.

One process, without Ray: a server answers each prompt with the same tokens. `react` makes three calls of the
engine with tools between them; `subclass` is verl's tool loop with a method of its own.
"""

import asyncio
import json
import sys
from uuid import uuid4

import drive
import numpy as np
from transformers import AutoTokenizer
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

REPLY = "The answer is 5."
CALLS = 3


async def search(text):
    await asyncio.sleep(0.03)
    return "nothing"


@register("react")
class ReAct(AgentLoopBase):
    async def run(self, sampling_params, **kwargs):
        prompt = self.tokenizer.encode("Add 2 and 3.", add_special_tokens=False)
        ids, mask, request = list(prompt), [], uuid4().hex
        for call in range(CALLS):
            output = await self.server_manager.generate(
                request_id=request, prompt_ids=ids, sampling_params=sampling_params
            )
            ids, mask = ids + output.token_ids, mask + [1] * len(output.token_ids)
            if call < CALLS - 1:
                answer = self.tokenizer.encode(await search("x"), add_special_tokens=False)
                ids, mask = ids + answer, mask + [0] * len(answer)
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=ids[len(prompt) :],
            response_mask=mask,
            num_turns=2 * CALLS + 1,
            metrics=AgentLoopMetrics(),
            reward_score=1.0,
            extra_fields={},
        )


@register("subclass")
class Patient(ToolAgentLoop):
    async def run(self, sampling_params, **kwargs):
        await asyncio.sleep(0.01)
        return await super().run(sampling_params, **kwargs)

    async def _handle_generating_state(self, agent_data, sampling_params, ignore_termination=False):
        await asyncio.sleep(0.01)
        return await super()._handle_generating_state(agent_data, sampling_params, ignore_termination)


class Remote:
    def __init__(self, function):
        self.remote = function


class Server:
    def __init__(self, tokenizer):
        self.ids = tokenizer.encode(REPLY, add_special_tokens=False)
        self.generate = Remote(self._generate)

    async def _generate(self, request_id, prompt_ids, sampling_params, **others):
        await asyncio.sleep(0.02)
        return TokenOutput(
            token_ids=self.ids, log_probs=None, stop_reason="completed", extra_fields={"global_steps": 4}
        )


class Balancer:
    def __init__(self, server):
        self.require_acquire_fields = self.require_release_fields = Remote(self._none)
        self.acquire_server, self.server = Remote(self._server), server
        self.release_server = Remote(lambda **fields: None)

    async def _none(self):
        return []

    async def _server(self, request_id):
        return "http://s0", self.server


async def main():
    model = sys.argv[1]
    configuration = drive.configuration(model)
    client = LLMServerClient(configuration, Balancer(Server(AutoTokenizer.from_pretrained(model))))
    worker = agent_loop.AgentLoopWorker(configuration, client)
    turns = {}
    for step, name in enumerate(("react", "subclass", "tool_agent"), 1):
        batch = drive.batch(step)
        batch.non_tensor_batch["agent_name"] = np.array([name] * len(batch))
        output = await worker.generate_sequences(batch)
        turns[name] = output.non_tensor_batch["__num_turns__"].tolist()
    print(json.dumps(turns))


asyncio.run(main())
