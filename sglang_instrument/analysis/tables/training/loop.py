"""The training loop: what trainer and rollout do, and for how long one waits for the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import VALIDATE
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _steps(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.ledger.loop_of_run import loop_of

    return loop_of(run).steps()


def _ledger(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.ledger.loop_of_run import loop_of

    return loop_of(run).ledger()


_STEP: Final = Column("step", "its number", "id")
_TO_NEXT: Final = Column(
    "to_next_step_sec",
    "from its begin to that of the next step",
    "time",
    formerly="wall_sec",
    former_title="wall",
)
_ROLLOUT: Final = Column("rollout_sec", "in which the rollout works: generation, tools, rewards", "time")
_TIMES: Final = (
    _TO_NEXT,
    _ROLLOUT,
    Column(
        "train_sec",
        "in which the trainer works: rewards, log-probs, update, checkpoint",
        "time",
        former_title="training",
    ),
    Column("both_work_sec", "in which both work", "time", 5, formerly="both_sec", former_title="both"),
    Column("weights_sec", "in which weights are sent", "time", gives_way=4),
    Column("validation_sec", "in which validations ran", "time", terminal=False),
    Column("trainer_waits_sec", "in which the trainer waits for the rollout", "time"),
    Column("rollout_waits_sec", "in which no request is in flight while the trainer works", "time"),
    Column("reward_sec", "time of all rewards, summed over requests", "time", terminal=False),
    Column(
        "reward_alone_sec",
        "in which nothing but rewards goes on",
        "time",
        gives_way=2,
        formerly="reward_exposed_sec",
        former_title="exposed reward",
    ),
    Column(
        "reward_overlapped_sec",
        "seconds of the other rewards, summed over requests: behind generation, training, or one another",
        "time",
        gives_way=1,
        formerly="reward_hidden_sec",
        former_title="hidden reward",
    ),
)
LOOP_STEPS: Final = Table(
    name="loop_steps",
    row="a step of the training loop",
    commands=("loop",),
    make=_steps,
    columns=(_STEP, VALIDATE, *_TIMES),
)
LOOP_MEAN: Final = Table(
    name="loop_mean",
    row="the mean of all steps, without the first and the last where rollouts run ahead; only --json has it",
    commands=("loop",),
    columns=(
        *_TIMES,
        Column(
            "trainer_waits_share",
            "share of the time, without validation, in which the trainer waits",
            "share",
            formerly="trainer_waits",
        ),
        Column("rollout_waits_share", "the same of the rollout", "share", formerly="rollout_waits"),
    ),
)
LOOP_LEDGER: Final = Table(
    name="loop_ledger",
    row="a part of a step and of a side; only --json has it, a terminal prints the sums of the next table",
    commands=("loop",),
    make=_ledger,
    columns=(
        _STEP,
        VALIDATE,
        Column("side", "trainer or rollout"),
        Column("part", "what this side does; the parts of a side add up to to_next_step_sec"),
        Column("sec", "for how long", "time"),
    ),
)
LOOP_SIDES: Final = Table(
    name="loop_sides",
    row="what a side does, of all chosen steps together; only a terminal has it",
    commands=("loop",),
    columns=(
        Column("part", "what a side does; both sides add up to the same time"),
        Column("trainer_sec", "seconds of the trainer's side", "time"),
        Column("trainer_share", "of all time", "share", title="trainer's share"),
        Column("rollout_sec", "seconds of the rollout's side", "time"),
        Column("rollout_share", "of all time", "share", title="rollout's share"),
    ),
)
REPLICAS: Final = Table(
    name="replicas",
    row="a step, as it would be with more or fewer servers",
    commands=("loop",),
    option="--replicas",
    columns=(
        _STEP,
        VALIDATE,
        _TO_NEXT,
        _ROLLOUT,
        Column(
            "rollout_saved_sec",
            "by how much sooner the rollout would end; negative: later",
            "time",
            former_title="rollout sooner",
        ),
        Column("saved_sec", "by how much shorter the step would be; negative: longer", "time"),
        Column(
            "saved_share",
            "the same as a share of to_next_step_sec",
            "share",
            title="saved share",
            json=False,
            frame=False,
        ),
    ),
)
