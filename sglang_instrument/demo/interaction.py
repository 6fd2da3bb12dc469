"""Answer the model as a user: accept a right answer, and reject a wrong one."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from sglang_instrument.demo.scoring import answer_of

TRY_AGAIN: Final = "That is wrong. Try again."
WELL_DONE: Final = "That is right."
LATENCY_SEC: Final = 0.02


class Verifier:
    """Tell each request whether its answer is right; one instance serves all requests of a worker."""

    def __init__(self) -> None:
        self._expected: dict[str, str] = {}

    async def start_interaction(self, request_id: str, *, expected: str, **_: Any) -> None:
        """Begin a dialogue whose right answer is `expected`."""
        self._expected[request_id] = expected

    async def generate_response(
        self, request_id: str, messages: list[dict[str, str]], **_: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Reply to the last message.

        Returns:
            Whether the dialogue ends, the user's reply, the reward of this turn, and empty metrics.
        """
        await asyncio.sleep(LATENCY_SEC)
        right = is_right(messages[-1]["content"], self._expected[request_id])
        return right, WELL_DONE if right else TRY_AGAIN, float(right), {}

    async def finalize_interaction(self, request_id: str) -> None:
        """Forget a request."""
        del self._expected[request_id]


def is_right(reply: str, expected: str) -> bool:
    """Say whether a reply's final answer is the expected one."""
    return answer_of(reply) == expected
