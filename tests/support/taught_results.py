"""What a run of the demo results in, from its dialogues alone: without an engine and without `install()`."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sglang_instrument.demo.calculator import CALCULATOR, FunctionCallParser
from sglang_instrument.demo.chat import EOS
from sglang_instrument.demo.interaction import is_right
from sglang_instrument.demo.options import DemoOptions
from sglang_instrument.demo.problems import DemoProblem, draw
from sglang_instrument.demo.scoring import score

USER_TURNS = 2  # `RolloutConfig.max_user_turns`, whose module imports PyTorch


def taught_results(model: Path, options: DemoOptions) -> list[list[dict[str, Any]]]:
    """Return what `demo --results` writes if the model repeats its dialogues: steps of each worker."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    plan = [(step, False) for step in range(1, options.steps + 1)]
    plan += [(options.steps, True)] if options.validate else []
    return [
        [_step(tokenizer, options, worker, step, validate) for step, validate in plan]
        for worker in range(options.workers)
    ]


def _step(
    tokenizer: Tokenizer, options: DemoOptions, worker: int, step: int, validate: bool
) -> dict[str, Any]:
    problems = draw(options.requests, seed=options.seed, step=step, worker=worker, validate=validate)
    requests = [_request(tokenizer, problem) for problem in problems]
    return {
        "step": step,
        "validate": validate,
        "tokens": sum(len(request["response_ids"]) for request in requests),
        "reward": sum(request["rewards"][CALCULATOR] for request in requests) / len(requests),
        "requests": requests,
    }


def _request(tokenizer: Tokenizer, problem: DemoProblem) -> dict[str, Any]:
    replies = (tokenizer.encode(reply + EOS, add_special_tokens=False) for reply in problem.replies)
    ids = [token for reply in replies for token in reply.ids]
    answers = [reply for reply in problem.replies if not FunctionCallParser().has_tool_call(reply)]
    turns = [float(is_right(answer, problem.answer)) for answer in answers[:USER_TURNS]]
    rewards = {CALCULATOR: score(problem.replies[-1], problem.answer), "user_turn_rewards": turns}
    return {"question": problem.question, "response_ids": ids, "rewards": rewards}
