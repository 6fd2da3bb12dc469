"""Stand in for what Miles' rollout functions are given and give."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RolloutFnConstructorInput:
    """What a rollout function is made with."""

    args: object
    data_source: object


@dataclass(frozen=True)
class RolloutFnTrainInput:
    """What a training rollout is given."""

    rollout_id: int
    weight_version: int | None = None

    @property
    def evaluation(self):
        """This is training."""
        return False


@dataclass(frozen=True)
class RolloutFnEvalInput:
    """What an evaluation is given."""

    rollout_id: int
    generate_state: object = None
    weight_version: str | None = None

    @property
    def evaluation(self):
        """This is an evaluation."""
        return True


@dataclass
class RolloutFnTrainOutput:
    """Groups of samples."""

    samples: list
    metrics: dict | None = None


@dataclass
class RolloutFnEvalOutput:
    """Rewards by dataset."""

    data: dict
    metrics: dict | None = None


@dataclass(frozen=True)
class GenerateFnInput:
    """What a generate function is given."""

    state: object
    sample: object
    sampling_params: dict
    evaluation: bool

    @property
    def args(self):
        """The trainer's arguments."""
        return self.state.args


@dataclass(frozen=True)
class GenerateFnOutput:
    """What it gives."""

    samples: object


def call_rollout_fn(fn, *args, evaluation: bool, **kwargs):
    """Call a rollout function of the old kind."""
    output = fn(*args, **kwargs, evaluation=evaluation)
    return output  # noqa: RET504 - as in Miles: the table reads this local
