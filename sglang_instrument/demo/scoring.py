"""Score a reply, with a user's own function: the demo's only use of the decorator."""

import re

from sglang_instrument import instrument

_ANSWER = re.compile(r"#### (-?\d+)")


@instrument(phase="reward")
def score(reply: str, expected: str) -> float:
    """Return 1.0 if the reply gives the expected answer, 0.1 for another answer, and 0.0 for none."""
    answer = answer_of(reply)
    if answer is None:
        return 0.0
    return 1.0 if answer == expected else 0.1


def answer_of(reply: str) -> str | None:
    """Return the final answer in a reply, the number after `####`, or None."""
    match = _ANSWER.search(reply)
    return match.group(1) if match else None
