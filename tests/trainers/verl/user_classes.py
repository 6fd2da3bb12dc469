"""A tool and an interaction as users write them: subclasses of subclasses with a few overridden methods."""

import asyncio

from verl.tools.gsm8k_tool import Gsm8kTool


class ToolError(Exception):
    """The tool's exception in tests of failures."""


class Calculator(Gsm8kTool):
    """Scores an answer in 20 ms; in some tests it fails or never ends."""

    takes_sec = 0.02

    fails = False
    hangs = False
    began = False

    async def execute(self, instance_id, parameters, **kwargs):
        Calculator.began = True
        await asyncio.sleep(3600 if self.hangs else self.takes_sec)
        if self.fails:
            raise ToolError("a text that no log may hold")
        return await super().execute(instance_id, parameters, **kwargs)


try:
    from verl.interactions.base import BaseInteraction
except ImportError:  # verl 0.4.0 has no interactions
    BaseInteraction = object


class Teacher(BaseInteraction):
    """Accepts an answer that ends with the truth; asks again otherwise."""

    takes_sec = 0.01

    def __init__(self, config):
        super().__init__(config)
        self._truth = {}

    async def start_interaction(self, instance_id=None, ground_truth=None, **kwargs):
        self._truth[instance_id] = ground_truth
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):
        await asyncio.sleep(self.takes_sec)
        answer = next(m["content"] for m in reversed(messages) if m["role"] == "assistant")
        if not isinstance(answer, str):  # a list of parts, as some versions keep it
            answer = " ".join(part.get("text", "") for part in answer)
        if answer.strip().endswith(self._truth[instance_id]):
            return True, "Your response is correct!", 1.0, {}
        again = "Your response is incorrect! You need to reflect on your answer and try again."
        return False, again, 0.0, {}
