"""The demo's word problems, and the replies that the tiny model learns for each."""

from __future__ import annotations

import random
from dataclasses import dataclass

from sglang_instrument.demo.calculator import CALCULATOR, FunctionCallParser, calculate
from sglang_instrument.demo.interaction import TRY_AGAIN, is_right

SYSTEM = "You solve problems. tool: calculator"


@dataclass(frozen=True)
class DemoProblem:
    """A question, its answer, and the assistant's replies in turn.

    `weight` is the relative frequency of the problem; long answers are rare: lengths have a heavy tail.
    """

    question: str
    answer: str
    replies: tuple[str, ...]
    weight: float = 1.0


def call(*expressions: str) -> str:
    """Return the text of an assistant's turn that calls the calculator once for each expression."""
    return "".join(
        f'<tool_call>{{"name": "{CALCULATOR}", "arguments": {{"expression": "{expression}"}}}}</tool_call>'
        for expression in expressions
    )


def say(answer: int, reason: str = "") -> str:
    """Return the text of an assistant's turn that gives a final answer."""
    return f"{reason}#### {answer}"


def _one_call(question: str, expression: str) -> DemoProblem:
    answer = int(calculate(expression))
    return DemoProblem(question, str(answer), (call(expression), say(answer)), weight=1.5)


def _count(last: int) -> DemoProblem:
    numbers = " ".join(str(number) for number in range(1, last + 1))
    return DemoProblem(
        f"Count from 1 to {last}.", str(last), (say(last, numbers + " "),), weight=3 / last**0.5
    )


def _table(factor: int, upto: int) -> DemoProblem:
    lines = "".join(f"{factor} times {number} is {factor * number}. " for number in range(1, upto + 1))
    answer = factor * upto
    return DemoProblem(f"Explain {factor} times {upto}.", str(answer), (say(answer, lines),), weight=4 / upto)


def _wrong_then_right(question: str, wrong: str, right: str) -> DemoProblem:
    first, second = int(calculate(wrong)), int(calculate(right))
    return DemoProblem(question, str(second), (call(wrong), say(first), call(right), say(second)))


def _running_sum(*numbers: int) -> DemoProblem:
    calls, total = [], numbers[0]
    for number in numbers[1:]:
        calls.append(call(f"{total} + {number}"))
        total += number
    listed = " then ".join(str(number) for number in numbers)
    return DemoProblem(f"Add {listed}, one call each.", str(total), (*calls, say(total)), weight=0.7)


#: All problems. The first one calls the tool and is in every batch, so that each fault finds a tool call.
PROBLEMS: tuple[DemoProblem, ...] = (
    _one_call("Mia has 4 apples and buys 9. How many?", "4 + 9"),
    _one_call("A bus has 31 seats, 17 are taken. How many are free?", "31 - 17"),
    _one_call("Six boxes hold 12 eggs each. How many eggs?", "6 * 12"),
    _one_call("Tom reads 25 pages a day for 4 days. How many pages?", "25 * 4"),
    _wrong_then_right("Ann had 20 coins and lost 6. How many are left?", "20 + 6", "20 - 6"),
    _wrong_then_right("Three cats have 4 legs each. How many legs?", "3 + 4", "3 * 4"),
    DemoProblem("Ben is 7 and Eva is 5 years older. How old is Eva?", "12", (say(2), say(12))),
    DemoProblem("Add 8 and 8.", "16", (call("8 plus 8"), call("8 + 8"), say(16))),
    DemoProblem("Add 2 and 3, and add 4 and 5.", "14", (call("2 + 3", "4 + 5"), call("5 + 9"), say(14))),
    _running_sum(3, 5, 7, 9),
    _running_sum(10, 20, 30, 40, 50, 60),
    DemoProblem("Guess my number.", "42", (say(7), say(31), say(50))),
    DemoProblem("Say 9.", "9", (say(9),), weight=2.0),
    DemoProblem("Say 3.", "3", (say(3),), weight=2.0),
    _table(6, 3),
    _table(7, 8),
    _table(9, 12),
    _count(8),
    _count(12),
    _count(20),
    _count(35),
    _count(60),
    _count(100),
    _count(160),
    _count(240),
)


def draw(count: int, *, seed: int, step: int, worker: int, validate: bool = False) -> list[DemoProblem]:
    """Draw a batch of problems; equal arguments give equal batches.

    Args:
        count: Number of problems, at least 1. The first one always calls the tool.
        seed: Seed of the run.
        step: Training step.
        worker: Rank of the worker.
        validate: Whether the batch is for a validation.
    """
    chance = random.Random(f"{seed}/{step}/{worker}/{validate}")
    weights = [problem.weight for problem in PROBLEMS]
    return [PROBLEMS[0], *chance.choices(PROBLEMS, weights, k=count - 1)]


def transcript(problem: DemoProblem) -> list[tuple[str, str]]:
    """Play a problem's replies with the tool and the interaction.

    Returns:
        (role, text) of every message after the system message, in order.
    """
    messages = [("user", problem.question)]
    for reply in problem.replies:
        messages.append(("assistant", reply))
        _, calls = FunctionCallParser().parse_non_stream(reply)
        messages += [("tool", calculate(call["arguments"]["expression"])) for call in calls]
        if not calls and not is_right(reply, problem.answer):
            messages.append(("user", TRY_AGAIN))
    return messages
