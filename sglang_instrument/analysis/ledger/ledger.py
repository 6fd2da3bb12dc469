"""Share out the wall time of each step along its critical path: what was each second spent on?

A step lasts from its begin to the begin of the next one. Each second of it belongs to the worker that decided
how long it took: `deciding_paths` tells which.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest, with_texts
from sglang_instrument.analysis.ledger.deciding_paths import MOST_PIECES
from sglang_instrument.analysis.ledger.deciding_paths import PARTS as PARTS
from sglang_instrument.analysis.ledger.deciding_paths import STEP as STEP
from sglang_instrument.analysis.ledger.deciding_paths import STEP_OF_WORKER as STEP_OF_WORKER
from sglang_instrument.analysis.ledger.deciding_paths import Paths as Paths
from sglang_instrument.analysis.ledger.deciding_paths import step_windows as step_windows
from sglang_instrument.analysis.ledger.flows import TRAINERS, TRAINS
from sglang_instrument.analysis.ledger.intervals import one_at_a_time, sec_between

NOT_RECORDED: Final = "(not recorded)"
END_OF_STEP: Final = "(end of step)"  # the event of the wait for workers that end later
_LEAST_SEC: Final = 1e-6  # the clocks' resolution: less is no time of its own
_LEDGER: Final[dict[str, Any]] = {
    "step": pl.Int64,
    "validate": pl.Boolean,
    "worker": pl.Int64,
    "part": pl.String,
    "event": pl.String,
    "waited_for": pl.Int64,
    "sec": pl.Float64,
}


def worker_ledger(run: Digest | Paths) -> pl.DataFrame:
    """Return what each worker's wall time of each step was spent on.

    Returns:
        step, validate, worker; part: one of `PARTS`; event; waited_for: of a barrier, the worker that came
        last; sec. The seconds of a worker add up to its step's `to_next_step_sec` of `step_windows`.
    """
    paths = Paths.of(run)
    windows = paths.worker_windows
    slowest = pl.col("worker").sort_by("end_us").last().over(STEP)
    late = windows.select(*STEP_OF_WORKER, part=pl.lit("late start"), sec=sec_between("begin_us", "start_us"))
    ended = windows.select(
        *STEP_OF_WORKER,
        part=pl.lit("barrier"),
        event=pl.lit(END_OF_STEP),
        waited_for=slowest,
        sec=sec_between("end_us", "done_us"),
    )
    between = between_steps(paths).join(windows.select(STEP_OF_WORKER), on=STEP)
    rows = [paths.waiting_sums, late, ended, between]
    return _summed(rows, windows.select(*STEP_OF_WORKER, "to_next_step_sec"), STEP_OF_WORKER)


def step_ledger(run: Digest | Paths) -> pl.DataFrame:
    """Return what the wall time of each step was spent on, by the workers that decided how long it took.

    Returns:
        step, validate; worker: the one that decided, null between steps; part, event, waited_for, sec as in
        `worker_ledger`. The seconds of a step add up to its `to_next_step_sec` of `step_windows`.
    """
    paths = Paths.of(run)
    first = paths.segments.filter(pl.col("segment") == 0).select(*STEP_OF_WORKER, "to_us")
    late = paths.worker_windows.join(first, on=STEP_OF_WORKER).select(
        *STEP_OF_WORKER,
        part=pl.lit("late start"),
        sec=(pl.min_horizontal("start_us", "to_us") - pl.col("begin_us")) / 1e6,
    )
    rows = [paths.deciding_sums, late, between_steps(paths)]
    return _summed(rows, paths.windows.select(*STEP, "to_next_step_sec"), STEP)


def worker_parts(run: Digest | Paths) -> pl.DataFrame:
    """Return what each worker did outside of requests: step, validate, worker, part, event, sec."""
    return Paths.of(run).outside_sums


def between_steps(run: Digest | Paths) -> pl.DataFrame:
    """Return what happened after each step until the next began, by the records of the trainer.

    The trainer's clock counts as that of the worker with the lowest rank.

    Returns:
        step, validate, part ("between steps"), event, sec.
    """
    paths = Paths.of(run)
    gaps = paths.windows.select(*STEP, from_us="done_us", to_us="next_us")
    rows = overlaps(gaps.filter(pl.col("to_us") > pl.col("from_us")), _of_trainer(paths, pl.lit(True)))
    rows = rows.group_by(*STEP, "event", maintain_order=True).agg(pl.col("sec").sum())  # the next sum's order
    known = gaps.join(rows.group_by(STEP).agg(pl.col("sec").sum()), on=STEP, how="left")
    rest = known.select(
        *STEP, event=pl.lit(NOT_RECORDED), sec=sec_between("from_us", "to_us") - pl.col("sec").fill_null(0.0)
    )
    rows = pl.concat([rows, rest.filter(pl.col("sec") > _LEAST_SEC)])
    return rows.select(*STEP, "event", "sec", part=pl.lit("between steps"))


def trainer_phases(run: Digest | Paths) -> pl.DataFrame:
    """Return what the trainer did, on the workers' clock, without overlaps.

    Returns:
        of_step: the step of its record; event, phase, from_us, to_us.
    """
    return _of_trainer(Paths.of(run), pl.lit(True))


def trained_meanwhile(run: Digest | Paths) -> pl.DataFrame:
    """Return for how long the trainer trained while a step was going on: step, validate, sec."""
    paths = Paths.of(run)
    steps = one_at_a_time(paths.windows.select(*STEP, from_us="begin_us", to_us="done_us"), [])
    rows = overlaps(steps, _of_trainer(paths, pl.col("phase") == TRAINS))
    return rows.group_by(STEP).agg(pl.col("sec").sum())


def _of_trainer(paths: Paths, condition: pl.Expr) -> pl.DataFrame:
    """Return what the trainer did, on the workers' clock and without overlaps, as `trainer_phases`."""
    path = paths.digest.path
    roles = path["role"].unique()
    role = next((role_between for role_between in TRAINERS if role_between in roles), None)
    of_lowest_rank = path.filter(pl.col("role").eq_missing(pl.lit(role)))
    of_lowest_rank = of_lowest_rank.filter(pl.col("worker") == pl.col("worker").min()).filter(condition)
    ahead = paths.aligned.sort("worker")["ahead_us"].first() or 0
    times = [(pl.col(name) - ahead).alias(to) for name, to in (("start_us", "from_us"), ("end_us", "to_us"))]
    rows = with_texts(of_lowest_rank.select("event", "phase", *times, of_step="step"))
    return one_at_a_time(rows, [])


def overlaps(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Join intervals that overlap, with the seconds of the overlap. Within a table, none may overlap."""
    ends = [table[name] for table in (left, right) for name in ("from_us", "to_us")]
    points: pl.DataFrame = (
        pl.concat(ends).unique().sort().to_frame("at_us").with_columns(pl.col("at_us").set_sorted())
    )
    points = points.with_columns(until_us=pl.col("at_us").shift(-1))
    for table, end in ((left, "left_us"), (right, "right_us")):
        begun = table.sort("from_us").rename({"to_us": end})
        points = points.join_asof(begun, left_on="at_us", right_on="from_us").drop("from_us")
    inside = (pl.col("until_us") <= pl.col("left_us")) & (pl.col("until_us") <= pl.col("right_us"))
    return points.filter(inside).with_columns(sec=sec_between("at_us", "until_us"))


def _summed(tables: list[pl.DataFrame], walls: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Sum up rows by part and event; what is left of the wall time is unaccounted."""
    if sum(map(len, tables)) <= MOST_PIECES:
        return _summed_at_once(tables, walls, key)
    blocks = list(_blocks(walls["step"].unique().sort(), sum(map(len, tables))))
    return pl.concat(
        _summed_at_once([table.filter(of_block) for table in tables], walls.filter(of_block), key)
        for validate in (False, True)
        for of_block in [(pl.col("validate") == validate) & block for block in blocks]
    )


def _blocks(steps: pl.Series, rows: int) -> Iterator[pl.Expr]:
    """Yield a condition for each of some ranges of steps, with about `MOST_PIECES` of all rows."""
    begins = steps.gather_every(max(1, len(steps) * MOST_PIECES // rows)).to_list()[1:]
    for begin, end in pairwise([None, *begins, None]):
        bounds = [pl.lit(value=True)]
        if begin is not None:
            bounds.append(pl.col("step") >= begin)
        if end is not None:
            bounds.append(pl.col("step") < end)
        yield pl.all_horizontal(bounds)


def _summed_at_once(tables: list[pl.DataFrame], walls: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    tables = [pl.DataFrame(schema=_LEDGER), *tables]
    rows = pl.concat(tables, how="diagonal_relaxed").select(list(_LEDGER)).filter(pl.col("sec") > 0)
    sec = pl.col("sec").sort().sum()  # in this order, for that of the rows differs from call to call
    rest = walls.join(rows.group_by(key).agg(sec), on=key, how="left")
    rest = rest.select(
        *key,
        part=pl.lit("unaccounted"),
        event=pl.lit(NOT_RECORDED),
        sec=pl.col("to_next_step_sec") - pl.col("sec").fill_null(0.0),
    )
    rows = pl.concat([rows, rest.filter(pl.col("sec") > _LEAST_SEC)], how="diagonal_relaxed")
    order = pl.col("part").replace_strict({part: number for number, part in enumerate(PARTS)}, default=99)
    summed = rows.group_by(*STEP_OF_WORKER, "part", "event", "waited_for").agg(sec)
    return summed.sort("validate", "step", order, "event", "worker", "waited_for").select(list(_LEDGER))
