"""The calculator tool: parse the tiny model's tool calls, and answer them."""

from __future__ import annotations

import asyncio
import json
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.demo.scoring import score

if TYPE_CHECKING:
    from sglang_instrument.demo.faults import Fault

CALCULATOR: Final = "calculator"
LATENCY_SEC: Final = 0.1

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_EXPRESSION = re.compile(r"(\d+) ([-+*]) (\d+)")
_OPERATIONS: Final = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclass(frozen=True)
class OpenAIFunctionToolCall:
    """One tool call of the model: the tool's name and its arguments."""

    name: str
    arguments: dict[str, str]


@dataclass(frozen=True)
class ToolResponse:
    """The answer of a tool to the model."""

    text: str


class FunctionCallParser:
    """Find tool calls in the text of a reply."""

    def has_tool_call(self, text: str) -> bool:
        """Say whether the reply calls a tool at all."""
        return "<tool_call>" in text

    def parse_non_stream(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Split a whole reply into its plain text and its calls.

        Raises:
            json.JSONDecodeError: A call is not valid JSON.
        """
        return _CALL.sub("", text), [json.loads(body) for body in _CALL.findall(text)]


class Calculator:
    """Answer `a + b`, `a - b` and `a * b`; one instance serves all requests of a worker."""

    name: Final = CALCULATOR

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._expected: dict[str, str] = {}

    async def create(self, request_id: str, *, expected: str) -> None:
        """Register a request whose correct answer is `expected`."""
        self._expected[request_id] = expected

    async def execute(
        self, request_id: str, arguments: dict[str, str]
    ) -> tuple[ToolResponse, float, dict[str, int]]:
        """Calculate `arguments["expression"]`.

        Returns:
            The response, the reward of this call (1.0 if the result is the expected answer), and counts.
        """
        await self._fault.at_tool_call()
        await asyncio.sleep(LATENCY_SEC)
        answer = calculate(arguments.get("expression", ""))
        return ToolResponse(answer), float(answer == self._expected[request_id]), {"calls": 1}

    async def calc_reward(self, request_id: str, *, reply: str) -> float:
        """Return the reward of a request for its last reply."""
        await self._fault.at_reward()
        return score(reply, self._expected[request_id])

    async def release(self, request_id: str) -> None:
        """Forget a request."""
        del self._expected[request_id]


def calculate(expression: str) -> str:
    """Return the value of `a + b`, `a - b` or `a * b` as text, or an error message as text."""
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        return "error: write a + b, a - b or a * b"
    left, operation, right = match.groups()
    return str(_OPERATIONS[operation](int(left), int(right)))
