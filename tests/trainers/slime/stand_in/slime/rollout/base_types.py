"""Stand in for the result types of rollout functions."""

from dataclasses import dataclass
from typing import Any


@dataclass
class RolloutFnTrainOutput:
    """Groups of samples."""

    samples: list
    metrics: dict[str, Any] | None = None


@dataclass
class RolloutFnEvalOutput:
    """Samples and rewards by dataset."""

    data: dict
    metrics: dict[str, Any] | None = None


def call_rollout_fn(fn, *args, evaluation: bool, **kwargs):
    """Call a rollout function, slime's or the user's."""
    output = fn(*args, **kwargs, evaluation=evaluation)
    if not isinstance(output, (RolloutFnTrainOutput, RolloutFnEvalOutput)):
        output = RolloutFnEvalOutput(output) if evaluation else RolloutFnTrainOutput(output)
    return output
