"""A tool as users of verl 0.8 and later write it: these versions ship no GSM8K tool."""

import asyncio
import os
from pathlib import Path
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse
from verl.utils.reward_score import gsm8k

TAKES_SEC = float(os.environ.get("TOOL_SEC", "0.02"))
WAIT_FROM_CALL = int(os.environ.get("WAIT_FROM_CALL", "0"))


class Calculator(BaseTool):
    """Scores an answer.

    While the file named by HANG exists, it hangs, and writes a second file to say so. From the call of this
    process with the number WAIT_FROM_CALL on, it waits for the file named by WAIT_FOR.
    """

    calls = 0

    def __init__(self, config, tool_schema):
        super().__init__(config, tool_schema)
        self._truth = {}

    async def create(self, instance_id=None, create_kwargs=None, **kwargs):
        instance_id = instance_id or uuid4().hex  # tools come and go: their number would repeat
        self._truth[instance_id] = (create_kwargs or kwargs)["ground_truth"]
        return instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        await asyncio.sleep(TAKES_SEC)
        hang = Path(os.environ["HANG"])
        while hang.exists():
            hang.with_name("hanging").touch()
            await asyncio.sleep(0.05)
        Calculator.calls += 1
        while 0 < WAIT_FROM_CALL <= Calculator.calls and not Path(os.environ["WAIT_FOR"]).exists():
            await asyncio.sleep(0.05)
        answer = str(parameters.get("answer", ""))
        truth = self._truth[instance_id]
        reward = gsm8k.compute_score("#### " + answer, truth, method="flexible", format_score=0.0, score=1.0)
        return ToolResponse(text=f"Current parsed {answer=} {reward=}"), float(reward), {}

    async def release(self, instance_id, **kwargs):
        self._truth.pop(instance_id, None)
