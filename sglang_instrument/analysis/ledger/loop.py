"""Share out the wall time of the whole loop: what trainer and rollout did, and which waited for the other.

A step lasts from its begin to that of the next. Each side has a lane of its own, and the parts of a lane add
up to the step's wall time.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, Literal

import polars as pl

from sglang_instrument.analysis.ledger.deciding_paths import STEP
from sglang_instrument.analysis.ledger.loop_lanes import (
    GENERATES,
    LOOP_PARTS,
    REWARD,
    ROLLOUT_WAITS,
    TRAINER_WAITS,
    VALIDATION,
    WEIGHTS,
    WORKS,
    LoopLanes,
    moments,
)

Shape = Literal["synchronous", "one step off", "asynchronous"]
SIDES: Final = ("trainer", "rollout")
_NO_TRAINER: Final = (
    "the log does not hold the trainer's phases: the trainer's process was not reached, or no patch table "
    "names the phases of this version"
)
_NO_ROLLOUT: Final = "the log does not hold the rollout: no rollout worker was reached"
_NO_WEIGHTS: Final = (
    "how long weights are sent is not known: no process of the trainer logs `weights_update`, as the tables "
    "of verl, slime and AReaL do"
)
_NO_REWARD: Final = (
    "what rewards take is not known: neither `reward_calculation` in requests nor `trainer_reward` is in "
    "the log"
)
_LEAST_OVERLAP: Final = 0.05  # of the wall time in which both sides work; less is a hand-over
_MOST: Final = 0.5
_FEWEST: Final = 4  # steps; of fewer, none is left out
_LEDGER: Final = {
    "step": pl.Int64,
    "validate": pl.Boolean,
    "part": pl.String,
    "sec": pl.Float64,
    "side": pl.String,
}
_ORDER: Final = {part: number for number, part in enumerate(LOOP_PARTS)}


class Loop:
    """The loop of a run: its lanes and what they add up to. Each table is computed once.

    Attributes:
        lanes: Its lanes.
        moments: Its steps, cut where a lane changes: `loop_lanes.moments`.
    """

    def __init__(self, lanes: LoopLanes) -> None:
        self.lanes = lanes
        self.moments = moments(lanes)

    @property
    def is_seen(self) -> bool:
        """Whether the log holds the trainer's phases."""
        return self.lanes.role is not None

    def missing(self) -> list[str]:
        """Return what the log would need to answer fully, as sentences; [] if nothing is missing."""
        steps = self.steps()
        lacks = {
            _NO_TRAINER: not self.is_seen,
            _NO_ROLLOUT: not self.lanes.has_rollout,
            _NO_WEIGHTS: self.is_seen and not self._syncs,
            _NO_REWARD: not steps["reward_sec"].count(),
        }
        return [sentence for sentence, lacking in lacks.items() if lacking]

    def ledger(self) -> pl.DataFrame:
        """Return what the time of each side was spent on.

        Returns:
            step, validate; side: "trainer" or "rollout"; part: one of `LOOP_PARTS`; sec. The seconds of a
            step and side add up to its `to_next_step_sec` of `steps`. A side without records is left out.
        """
        is_logged = {"trainer": self.is_seen, "rollout": self.lanes.has_rollout}
        sides = [side for side in SIDES if is_logged[side]]
        tables = [
            self.moments.group_by(*STEP, part=pl.col(side))
            .agg(pl.col("sec").sum())
            .select(*STEP, "part", "sec", side=pl.lit(side))
            for side in sides
        ]
        order = pl.col("part").replace_strict(_ORDER, default=99)
        table = pl.concat([pl.DataFrame(schema=_LEDGER), *tables]).sort(
            "step", pl.col("side") == "rollout", order
        )
        return table.select(*STEP, "side", "part", "sec")

    def steps(self) -> pl.DataFrame:
        """Return one row per step, in the order of time; null is what the log does not tell.

        Returns:
            step, validate, to_next_step_sec; rollout_sec: in which the rollout works (generation, tools,
            rewards); train_sec: in which the trainer works (rewards, log-probs, update, checkpoint);
            both_work_sec: in which both do; weights_sec; validation_sec; trainer_waits_sec,
            rollout_waits_sec; reward_sec: of all rewards, summed over requests, and of the trainer's;
            reward_alone_sec: in which nothing but rewards goes on; reward_overlapped_sec: the others, behind
            generation, training, or one another.
        """
        return self._steps

    @cached_property
    def _steps(self) -> pl.DataFrame:
        seen, both = self.is_seen, self.is_seen and self.lanes.has_rollout
        works, generates = pl.col("trainer").is_in(list(WORKS)), pl.col("rollout").is_in(list(GENERATES))
        scores, rewards = pl.col("trainer") == REWARD, pl.col("rollout") == REWARD
        alone = (scores & (rewards | ~generates)) | (rewards & ~works)

        def seconds(condition: pl.Expr, known: bool = True) -> pl.Expr:
            return pl.col("sec").filter(condition).sum() if known else pl.lit(None, pl.Float64)

        table = self.moments.group_by(STEP).agg(
            begin_us=pl.col("from_us").min(),
            to_next_step_sec=pl.col("sec").sum(),
            rollout_sec=seconds(generates, self.lanes.has_rollout),
            train_sec=seconds(works, seen),
            both_work_sec=seconds(works & generates, both),
            weights_sec=seconds((pl.col("trainer") == WEIGHTS) | (pl.col("rollout") == WEIGHTS), self._syncs),
            validation_sec=seconds((pl.col("trainer") == VALIDATION) | (pl.col("rollout") == VALIDATION)),
            trainer_waits_sec=seconds(pl.col("trainer") == TRAINER_WAITS, seen),
            rollout_waits_sec=seconds(pl.col("rollout") == ROLLOUT_WAITS, both),
            scored_sec=seconds(scores),
            reward_alone_sec=seconds(alone, seen),
        )
        table = table.join(self._rewards(), on=STEP, how="left").sort("begin_us")
        known = total(table["reward_sec"]) + total(table["scored_sec"]) > 0
        whole = pl.col("reward_sec").fill_null(0.0) + pl.col("scored_sec")
        exposed = pl.min_horizontal("reward_alone_sec", whole) if known and seen else pl.lit(None, pl.Float64)
        table = table.with_columns(
            reward_sec=whole if known else pl.lit(None, pl.Float64), reward_alone_sec=exposed
        )
        table = table.with_columns(reward_overlapped_sec=pl.col("reward_sec") - pl.col("reward_alone_sec"))
        return table.drop("begin_us", "scored_sec")

    def shape(self) -> Shape | None:
        """Return how rollout and training take turns; None without the records of both.

        One after the other is synchronous. Where both work at once, the rollout is asynchronous if requests
        are in flight while weights are sent, or those of several steps at once; else it is one step ahead.
        """
        return self._shape

    @cached_property
    def _shape(self) -> Shape | None:
        if not self.is_seen or not self.lanes.has_rollout or self.moments.is_empty():
            return None
        # Each step counts the same: the first one may take longer than all others, and does not overlap.
        wall = pl.col("to_next_step_sec") - pl.col("validation_sec")
        steps = _inner(self.steps()).filter(wall > 0)
        overlap = steps.select((pl.col("both_work_sec") / wall).mean()).item()
        if overlap is None or overlap < _LEAST_OVERLAP:
            return "synchronous"
        sent = self.moments.filter(trainer=WEIGHTS)
        carried = total(sent.filter("flying")["sec"])
        if carried > _MOST * total(sent["sec"]) or self._steps_overlap():
            return "asynchronous"
        return "one step off"

    def mean(self, steps: Sequence[int] | None = None) -> dict[str, float | None]:
        """Return `averages` of these steps; by default of those in which both sides are at work."""
        table = self.steps()
        chosen = steady(table, self.shape()) if steps is None else table.filter(pl.col("step").is_in(steps))
        return averages(chosen)

    @property
    def _syncs(self) -> bool:
        return WEIGHTS in self.moments["trainer"] or WEIGHTS in self.moments["rollout"]

    def _steps_overlap(self) -> bool:
        """Return whether most rollouts begin before the one before is done."""
        rollouts = self.lanes.paths.windows.filter(~pl.col("validate"))
        took = (pl.col("done_us") - pl.col("begin_us")) / 1e6
        share = rollouts.select((pl.col("overlap_sec") > _LEAST_OVERLAP * took).mean()).item()
        return share is not None and share > _MOST

    def _rewards(self) -> pl.DataFrame:
        """Return the seconds of rewards of the requests that ended in a step: step, validate, reward_sec."""
        requests = self.lanes.everything.of_workers().requests.filter(~pl.col("validate"))
        ahead = self.lanes.paths.aligned.group_by("worker").agg(pl.col("ahead_us").median().cast(pl.Int64))
        requests = requests.join(ahead, on="worker", how="left").select(
            "reward_sec", at_us=pl.col("end_us") - pl.col("ahead_us").fill_null(0)
        )
        windows = self.lanes.windows.sort("from_us")
        ended = requests.sort("at_us").join_asof(windows, left_on="at_us", right_on="from_us")
        ended = ended.filter(pl.col("at_us") <= pl.col("to_us"))
        return ended.group_by(STEP).agg(pl.col("reward_sec").sum())


def total(seconds: pl.Series) -> float:
    """Return the sum of a column of seconds."""
    return float(seconds.sum())


def steady(steps: pl.DataFrame, shape: Shape | None) -> pl.DataFrame:
    """Return the steps in which both sides are at work.

    Where rollouts run ahead, the trainer waits for the first one, and the rollout has ended before the last.
    """
    return steps if shape in (None, "synchronous") else _inner(steps)


def _inner(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps but for the first and the last; all, if there are few."""
    return steps.slice(1, len(steps) - 2) if len(steps) >= _FEWEST else steps


def averages(steps: pl.DataFrame) -> dict[str, float | None]:
    """Return the mean of each column of `Loop.steps`, a step; null where the log does not tell.

    With trainer_waits_share, rollout_waits_share: of the wall time without validation.
    """
    names = [name for name in steps.columns if name.endswith("_sec")]
    means: dict[str, Any] = {name: None if steps[name].null_count() else steps[name].mean() for name in names}
    wall = (means["to_next_step_sec"] or 0.0) - (means["validation_sec"] or 0.0)
    for side in SIDES:
        sec = means[f"{side}_waits_sec"]
        means[f"{side}_waits_share"] = None if sec is None or wall <= 0 else sec / wall
    return means
