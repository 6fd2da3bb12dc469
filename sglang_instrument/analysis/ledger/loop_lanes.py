"""Place what the trainer and the rollout did on one clock: two lanes, one part of each at every moment.

The trainer's lane is the path of its steps. The rollout's lane is what its workers' paths tell, and whether
requests are in flight: asynchronous rollouts have requests of several steps at once.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest, with_texts
from sglang_instrument.analysis.ledger.deciding_paths import STEP, Paths
from sglang_instrument.analysis.ledger.intervals import one_at_a_time, sec_between

#: The parts of the loop. Those of `WORKS` are the trainer's own work, those of `GENERATES` the rollout's.
TRAINER_WAITS: Final = "waiting for rollout"
ROLLOUT_WAITS: Final = "waiting for trainer"
WEIGHTS: Final = "weight sync"
VALIDATION: Final = "validation"
REWARD: Final = "reward"
OTHER: Final = "other"
NOT_RECORDED: Final = "not recorded"
GENERATION: Final = "generation"
WORKS: Final = (REWARD, "log-probs", "update", "checkpoint", OTHER)
GENERATES: Final = (GENERATION, "tools", REWARD, OTHER)
LOOP_PARTS: Final = (
    *(GENERATION, "tools", REWARD, "log-probs", "update", WEIGHTS, "checkpoint", VALIDATION, OTHER),
    *(TRAINER_WAITS, ROLLOUT_WAITS, NOT_RECORDED),
)
#: Events that only a trainer's own work has: without any of them, its phases are not in the log.
TRAINS: Final = {
    "trainer_old_log_prob": "log-probs",
    "trainer_ref_log_prob": "log-probs",
    "trainer_values": "log-probs",
    "trainer_update_actor": "update",
    "trainer_update_critic": "update",
}
_PART_OF_EVENT: Final = {
    **TRAINS,
    "trainer_save_checkpoint": "checkpoint",
    "requests_submit": TRAINER_WAITS,
    "request_wait": TRAINER_WAITS,
}
_PART_OF_PHASE: Final = {"generate": TRAINER_WAITS, "reward": REWARD, "weights": WEIGHTS}
_PART_OF_PIECE: Final = {
    **dict.fromkeys(("engine", "waiting for own requests", "blocked loop"), GENERATION),
    **dict.fromkeys(("tool", "interaction", "environment"), "tools"),
    "reward": REWARD,
    "weights": WEIGHTS,
}
ROLES: Final = ("trainer", "learner")  # whose records tell what the trainer did, the best first
_PIECE: Final = {"part": pl.String, "event": pl.String, "from_us": pl.Int64, "to_us": pl.Int64}
_TRAINER: Final = "trainer_"  # begins the names of the events of a trainer's step
_UNION: Final = ["validate"]


@dataclass(frozen=True, eq=False)
class LoopLanes:
    """The two lanes of a run, on the clock of its workers. Each table is computed once.

    Attributes:
        paths: Of the run's workers.
        everything: With records of requests outside of any step: those of asynchronous rollouts.
        outside: Weight updates of the trainer's processes outside of any step: event, start_us, end_us on
            their own clock.
    """

    paths: Paths
    everything: Digest
    outside: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(
            schema={"event": pl.String, "start_us": pl.Int64, "end_us": pl.Int64}
        )
    )

    @cached_property
    def role(self) -> str | None:
        """The role whose records tell what the trainer did; None if the log does not hold its phases."""
        path = self.paths.digest.path
        trains = path.filter(pl.col("event").is_in(list(TRAINS)) & pl.col("role").is_in(list(ROLES)))
        return next((role for role in ROLES if role in trains["role"]), None)

    @cached_property
    def ahead_us(self) -> int:
        """How far the trainer's clock is ahead: as that of the worker with the lowest rank."""
        known: list[int] = self.paths.aligned.sort("worker")["ahead_us"].head(1).to_list()
        return next(iter(known), 0)

    @cached_property
    def has_rollout(self) -> bool:
        """Whether the log holds records of rollout workers."""
        return "worker" in self.everything.steps["role"]

    @cached_property
    def windows(self) -> pl.DataFrame:
        """The steps of the loop: step, validate, from_us, to_us; they do not overlap.

        A step lasts from its begin to that of the next, the last one of a launch to its end. Where a trainer
        logs its steps, they are the trainer's; else the rollout's.
        """
        if self.role == "trainer":
            path = self._of_trainer(self.paths.digest.path).filter(~pl.col("validate"))
            first = path.filter(pl.col("event").str.starts_with(_TRAINER))["start_us"].min()
            steps = self._of_trainer(self.paths.digest.steps).filter(~pl.col("validate"))
            steps = steps.filter(pl.col("end_us") > first)  # weights may be sent before the first step
            ahead = pl.lit(self.ahead_us)
        else:
            steps = self.paths.windows.filter(~pl.col("validate"))
            steps = steps.rename({"begin_us": "start_us", "done_us": "end_us"})
            ahead = pl.lit(0)
        steps = steps.group_by(*STEP, "launch").agg(pl.col("start_us").min(), pl.col("end_us").max())
        steps = steps.sort("start_us", "step")
        resumed = (pl.col("launch") != pl.col("launch").shift(-1)).fill_null(False)
        begun = pl.when(~resumed).then(pl.col("start_us").shift(-1))
        windows = steps.select(
            *STEP, from_us=pl.col("start_us") - ahead, to_us=pl.coalesce(begun, "end_us") - ahead
        )
        windows = one_at_a_time(
            windows.with_columns(pl.max_horizontal("from_us", "to_us").alias("to_us")), []
        )
        return windows.select(*STEP, "from_us", "to_us")

    @cached_property
    def trainer(self) -> pl.DataFrame:
        """What the trainer did: part, event, from_us, to_us, without overlaps."""
        path = self._of_trainer(self.paths.digest.path)
        named = path.filter((pl.col("phase") != "step") & ~pl.col("validate")).select(
            "event", "start_us", "end_us", part=_part_of_trainer()
        )
        validates = path.filter("validate").select("event", "start_us", "end_us", part=pl.lit(VALIDATION))
        outside = self.outside.select("event", "start_us", "end_us", part=pl.lit(WEIGHTS))
        steps = path.filter((pl.col("phase") == "step") & ~pl.col("validate"))
        steps = steps.select("event", "start_us", "end_us", part=pl.lit(OTHER))
        waits = pl.col("part") == TRAINER_WAITS  # a thread may wait for rollouts while another trains
        tables = [pl.concat([validates, outside]), named.filter(~waits), named.filter(waits), steps]
        return _first_of([self._aligned(lane) for lane in tables])

    @cached_property
    def pieces(self) -> pl.DataFrame:
        """What the workers that decided did: part, event, from_us, to_us, validate, without overlaps."""
        pieces = self.paths.deciding_pieces
        part = pl.col("part").replace_strict(_PART_OF_PIECE, default=OTHER, return_dtype=pl.String)
        pieces = pieces.select("validate", "event", "from_us", "to_us", part=part)
        return one_at_a_time(pieces.filter(pl.lit(self.has_rollout)), [])

    @cached_property
    def in_flight(self) -> pl.DataFrame:
        """When requests were in flight: validate, from_us, to_us; without overlaps for each `validate`."""
        ahead = self.paths.aligned.group_by("worker").agg(pl.col("ahead_us").median().cast(pl.Int64))
        requests = self.everything.of_workers().requests.join(ahead, on="worker", how="left")
        ahead_us = pl.col("ahead_us").fill_null(0)
        requests = requests.select(
            "validate", from_us=pl.col("start_us") - ahead_us, to_us=pl.col("end_us") - ahead_us
        )
        return one_at_a_time(requests.drop_nulls().filter(pl.lit(self.has_rollout)), _UNION)

    def _of_trainer(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of the trainer: of its lowest rank."""
        of_role = table.filter(pl.col("role").eq_missing(pl.lit(self.role, pl.String)))
        return with_texts(of_role.filter(pl.col("worker") == pl.col("worker").min()))

    def _aligned(self, table: pl.DataFrame) -> pl.DataFrame:
        times = [
            (pl.col(name) - self.ahead_us).alias(to)
            for name, to in (("start_us", "from_us"), ("end_us", "to_us"))
        ]
        return one_at_a_time(table.select("part", "event", *times), []).select(list(_PIECE))


def moments(lanes: LoopLanes) -> pl.DataFrame:
    """Cut the steps of the loop where any lane changes.

    Returns:
        step, validate, from_us, to_us, sec; trainer, rollout: the part of each lane; trainer_event,
        rollout_event; flying: whether training requests were in flight.
    """
    flying = lanes.in_flight.filter(~pl.col("validate")).select("from_us", "to_us", flying=pl.lit(True))
    tested = lanes.in_flight.filter(pl.col("validate")).select("from_us", "to_us", tested=pl.lit(True))
    trainer = lanes.trainer.rename({"part": "trained", "event": "trainer_event"})
    rollout = lanes.pieces.rename({"part": "piece", "event": "rollout_event", "validate": "piece_validates"})
    tables = [lanes.windows, trainer, rollout, flying, tested]
    ends = [table[name] for table in tables for name in ("from_us", "to_us")]
    points = pl.concat(ends).unique().sort().to_frame("at_us")
    points = points.with_columns(until_us=pl.col("at_us").shift(-1)).drop_nulls()
    for table in tables:
        points = looked_up(points, table)
    points = points.drop_nulls("step").with_columns(
        pl.col("flying", "tested", "piece_validates").fill_null(False)
    )
    points = points.with_columns(rollout=_rollout_part(), trainer=_trainer_part(lanes.role))
    points = points.with_columns(rollout=_waits())
    events = ("trainer_event", "rollout_event", "flying")
    names = {"at_us": "from_us", "until_us": "to_us"}
    cuts: pl.DataFrame = points.select(*STEP, *names, "trainer", "rollout", *events).rename(names)
    return cuts.with_columns(sec=sec_between("from_us", "to_us"))


def _part_of_trainer() -> pl.Expr:
    phase = pl.col("phase").replace_strict(_PART_OF_PHASE, default=OTHER, return_dtype=pl.String)
    return pl.col("event").replace_strict(_PART_OF_EVENT, default=phase, return_dtype=pl.String)


def _first_of(tables: list[pl.DataFrame]) -> pl.DataFrame:
    """Return what the first table has, and where it has nothing what the next has, and so on."""
    first = tables[0]
    for table in tables[1:]:
        ends = [intervals[name] for intervals in (first, table) for name in ("from_us", "to_us")]
        points = pl.concat(ends).unique().sort().to_frame("at_us")
        points = points.with_columns(until_us=pl.col("at_us").shift(-1)).drop_nulls()
        points = looked_up(points, first.rename({"part": "part_1", "event": "event_1"}))
        points = looked_up(points, table.rename({"part": "part_2", "event": "event_2"}))
        chosen = points.select(
            part=pl.coalesce("part_1", "part_2"),
            event=pl.when(pl.col("part_1").is_null()).then("event_2").otherwise("event_1"),
            from_us="at_us",
            to_us="until_us",
        )
        first = chosen.drop_nulls("part")
    return first


def looked_up(points: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Add to each moment what a table without overlaps says of it; null where it says nothing."""
    names = [name for name in table.columns if name not in ("from_us", "to_us")]
    begun = table.sort("from_us").rename({"from_us": "at_us", "to_us": "ends_us"})
    looked_up = points.join_asof(begun, on="at_us", strategy="backward")
    inside = pl.col("until_us") <= pl.col("ends_us")
    return looked_up.with_columns(pl.when(inside).then(pl.col(name)).alias(name) for name in names).drop(
        "ends_us"
    )


def _rollout_part() -> pl.Expr:
    """Return the part of the rollout's lane; null where it does nothing."""
    piece = pl.col("piece")
    unnamed = piece.is_null() | (piece == OTHER)
    busy = pl.when(pl.col("flying") & unnamed).then(pl.lit(GENERATION)).otherwise(piece)
    tests = ~pl.col("flying") & (pl.col("tested") | pl.col("piece_validates"))
    syncs = (pl.col("trained") == WEIGHTS).fill_null(False)
    return (
        pl.when((pl.col("trained") == VALIDATION).fill_null(False) | tests)
        .then(pl.lit(VALIDATION))
        .when(syncs)
        .then(pl.lit(WEIGHTS))
        .otherwise(busy)
    )


def _trainer_part(role: str | None) -> pl.Expr:
    """Return the part of the trainer's lane.

    A training process without a driver's records (`learner`) logs nothing while it waits.
    """
    rollout = _rollout_part()
    silent = pl.lit(TRAINER_WAITS if role == "learner" else NOT_RECORDED)
    idle = (
        pl.when(rollout == VALIDATION)
        .then(pl.lit(VALIDATION))
        .when(rollout == WEIGHTS)
        .then(pl.lit(WEIGHTS))
        .when(rollout.is_not_null())
        .then(silent)
        .otherwise(pl.lit(NOT_RECORDED))
    )
    return pl.coalesce("trained", idle)


def _waits() -> pl.Expr:
    """Return the part of the rollout's lane; where it does nothing while the trainer works, it waits."""
    works = pl.col("trainer").is_in(list(WORKS))
    idle = pl.when(works).then(pl.lit(ROLLOUT_WAITS)).otherwise(pl.lit(NOT_RECORDED))
    return pl.coalesce("rollout", idle)
