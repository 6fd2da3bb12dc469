"""Share out the wall time of each step along its critical path: what was each second spent on?

A step lasts from its begin to the begin of the next one. Up to each barrier, the worker that arrives there last
decides; after the last barrier, the one that takes longest. Where workers meet at no barrier, the one that ends
last decides.
"""

from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.clocks import clock_table
from sglang_instrument.analysis.run.digest import Digest

STEP: Final = ["step", "validate"]
STEP_OF_WORKER: Final = [*STEP, "worker"]
#: The parts, in the order in which a step meets them.
PARTS: Final = (
    *("late start", "preprocess", "waiting for own requests", "engine", "tool", "interaction", "reward"),
    *("held loop", "postprocess", "barrier", "broadcast", "cache", "weights", "other", "between steps"),
    "unaccounted",
)
NOT_RECORDED: Final = "(not recorded)"
_OF_PHASE: Final = {
    "generate": "engine",
    **dict.fromkeys(("step", "request", "turn", "loop"), "unaccounted"),
}
_OF_EVENT: Final = {"request_wait": "waiting for own requests"}
_ROLES_BETWEEN: Final = (
    "trainer",
    "learner",
)  # whose records tell what happens between steps, the best first
_LEDGER: Final[dict[str, Any]] = {
    "step": pl.Int64,
    "validate": pl.Boolean,
    "worker": pl.Int64,
    "part": pl.String,
    "event": pl.String,
    "waited_for": pl.Int64,
    "sec": pl.Float64,
}


def worker_ledger(digest: Digest) -> pl.DataFrame:
    """Return what each worker's wall time of each step was spent on.

    Returns:
        step, validate, worker; part: one of `PARTS`; event; waited_for: of a barrier, the worker that came last;
        sec. The seconds of a worker add up to its step's `wall_sec` of `step_windows`.
    """
    rows = _segmented(digest)
    last = _last_at_barriers(rows)
    rows = rows.join(last, on=[*STEP, "segment"], how="left", maintain_order="left")
    is_barrier = pl.col("part") == "barrier"
    rows = rows.with_columns(waited_for=pl.when(is_barrier).then("last_worker"))
    windows = _worker_windows(digest)
    slowest = pl.col("worker").sort_by("end_us").last().over(STEP)
    edges = windows.with_columns(slowest=slowest)
    late = edges.select(*STEP_OF_WORKER, part=pl.lit("late start"), sec=_sec("start_us", "begin_us"))
    waits = edges.select(
        *STEP_OF_WORKER,
        part=pl.lit("barrier"),
        event=pl.lit("(end of step)"),
        waited_for=pl.when(pl.col("slowest") != pl.col("worker")).then("slowest"),
        sec=_sec("done_us", "end_us"),
    )
    between = _between(digest).join(windows.select(*STEP_OF_WORKER), on=STEP)
    return _summed([rows, late, waits, between], windows.select(*STEP_OF_WORKER, "wall_sec"), STEP_OF_WORKER)


def step_ledger(digest: Digest) -> pl.DataFrame:
    """Return what the wall time of each step was spent on, by the workers that decided how long it took.

    Returns:
        step, validate; worker: the one that decided, null between steps; part, event, waited_for, sec as in
        `worker_ledger`. The seconds of a step add up to its `wall_sec` of `step_windows`.
    """
    rows = _segmented(digest)
    decided = _deciders(digest, rows)
    rows = rows.join(decided, on=[*STEP, "segment", "worker"], how="semi", maintain_order="left")
    first = decided.filter(pl.col("segment") == 0).select(STEP_OF_WORKER)
    late = _worker_windows(digest).join(first, on=STEP_OF_WORKER)
    late = late.select(*STEP_OF_WORKER, part=pl.lit("late start"), sec=_sec("start_us", "begin_us"))
    return _summed([rows, late, _between(digest)], step_windows(digest).select(*STEP, "wall_sec"), STEP)


def worker_parts(digest: Digest) -> pl.DataFrame:
    """Return what each worker did outside of requests in each step: step, validate, worker, part, event, sec."""
    rows = _segmented(digest).filter(pl.col("request_id").is_null() & (pl.col("part") != "barrier"))
    return rows.group_by(*STEP_OF_WORKER, "part", "event").agg(pl.col("sec").sum())


def between_steps(digest: Digest) -> pl.DataFrame:
    """Return what happened after each step until the next began, by the records of the trainer.

    Returns:
        step, validate, part ("between steps"), event, sec.
    """
    return _between(digest)


def step_windows(digest: Digest) -> pl.DataFrame:
    """Return when each step was, on the clocks as barriers align them, one row per step in the order of time.

    Returns:
        step, validate; begin_us, done_us: from the first worker's begin to the last one's end; next_us: the
        begin of the next step, or `done_us` of the last step or of one that the next overlaps; wall_sec:
        from begin_us to next_us; overlap_sec: how long the next step had been going on before this was done.
    """
    steps = (
        _aligned(digest).group_by(STEP).agg(begin_us=pl.col("start_us").min(), done_us=pl.col("end_us").max())
    )
    steps = steps.sort("begin_us", *STEP)
    begun = pl.col("begin_us").shift(-1)
    steps = steps.with_columns(next_us=pl.max_horizontal("done_us", begun))
    overlap = ((pl.col("done_us") - begun) / 1e6).clip(lower_bound=0.0).fill_null(0.0)
    return steps.with_columns(wall_sec=_sec("next_us", "begin_us"), overlap_sec=overlap)


def _sec(to_us: str, from_us: str) -> pl.Expr:
    return (pl.col(to_us) - pl.col(from_us)) / 1e6


def _aligned(digest: Digest) -> pl.DataFrame:
    """Return start_us and end_us of each worker's step, on the clock of the median worker."""
    digest = digest.of_workers()
    steps = digest.steps.group_by(STEP_OF_WORKER).agg(
        pl.col("start_us").min(),
        end_us=(pl.col("start_us") + (pl.col("duration_sec").fill_null(0.0) * 1e6).round())
        .max()
        .cast(pl.Int64),
    )
    offsets = clock_table(digest).select(
        "worker", ahead_us=(pl.col("offset_sec") * 1e6).round().cast(pl.Int64)
    )
    aligned = steps.join(offsets, on="worker", how="left")
    ahead = pl.col("ahead_us").fill_null(0)
    return aligned.select(
        *STEP_OF_WORKER, ahead_us=ahead, start_us=pl.col("start_us") - ahead, end_us=pl.col("end_us") - ahead
    )


def _worker_windows(digest: Digest) -> pl.DataFrame:
    return _aligned(digest).join(step_windows(digest), on=STEP).sort(STEP_OF_WORKER)


def _segmented(digest: Digest) -> pl.DataFrame:
    """Return the path of each worker within its steps; `segment` counts the barriers that it has passed."""
    digest = digest.of_workers()
    steps = _aligned(digest).select(
        *STEP_OF_WORKER,
        begin_us=pl.col("start_us") + pl.col("ahead_us"),
        end_us=pl.col("end_us") + pl.col("ahead_us"),
    )
    path = digest.path.drop("role", "source").rename({"end_us": "until_us"})
    path = path.join(steps, on=STEP_OF_WORKER)
    path = path.filter((pl.col("start_us") >= pl.col("begin_us")) & (pl.col("until_us") <= pl.col("end_us")))
    path = _held_apart(path.with_columns(part=_part())).sort(*STEP_OF_WORKER, "start_us", maintain_order=True)
    passed = (pl.col("part") == "barrier").cast(pl.Int64).cum_sum().over(STEP_OF_WORKER)
    path = path.with_columns(segment=passed - (pl.col("part") == "barrier"))
    return path.select(*STEP_OF_WORKER, "request_id", "segment", "part", "event", "start_us", sec="path_sec")


def _part() -> pl.Expr:
    """Return the part for which a span counts. A call that only contains others has no part."""
    lasted = (pl.col("until_us") - pl.col("start_us")) / 1e6
    contains = (
        (pl.col("phase") == "generate") & pl.col("request_id").is_null() & (pl.col("path_sec") < lasted)
    )
    phase = pl.col("phase").replace(_OF_PHASE)
    return (
        pl.when(contains)
        .then(pl.lit("unaccounted"))
        .otherwise(pl.col("event").replace_strict(_OF_EVENT, default=phase, return_dtype=pl.String))
    )


def _held_apart(path: pl.DataFrame) -> pl.DataFrame:
    """Give the time in which the event loop was held rows of its own."""
    held = path.filter(pl.col("held_sec") > 0)
    held = held.with_columns(part=pl.lit("held loop"), path_sec="held_sec")
    rest = path.with_columns(path_sec=pl.col("path_sec") - pl.col("held_sec"))
    return pl.concat([rest, held])


def _last_at_barriers(rows: pl.DataFrame) -> pl.DataFrame:
    """Return which worker waited least at the barrier that ends each segment."""
    waits = (
        rows.filter(pl.col("part") == "barrier").group_by(*STEP_OF_WORKER, "segment").agg(pl.col("sec").sum())
    )
    return waits.group_by(*STEP, "segment").agg(last_worker=pl.col("worker").sort_by("sec", "worker").first())


def _deciders(digest: Digest, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the worker that decided how long each segment took: step, validate, segment, worker."""
    segments = rows.group_by(*STEP_OF_WORKER, "segment").agg(
        busy_sec=pl.col("sec").filter(pl.col("part") != "barrier").sum(),
        wait_sec=pl.col("sec").filter(pl.col("part") == "barrier").sum(),
        waits=(pl.col("part") == "barrier").any(),
    )
    counts = segments.group_by(STEP_OF_WORKER).agg(barriers=pl.col("waits").sum())
    even = counts.group_by(STEP).agg(pl.col("barriers").min(), most=pl.col("barriers").max())
    even = even.with_columns(meets=pl.col("barriers") == pl.col("most")).select(*STEP, "meets")
    segments = segments.join(even, on=STEP)
    together = segments.filter("meets").sort(
        "waits", "wait_sec", "busy_sec", "worker", descending=[True, False, True, False]
    )
    together = together.group_by(*STEP, "segment").agg(pl.col("worker").first())
    apart = _aligned(digest).sort("end_us", "worker").group_by(STEP).agg(pl.col("worker").last())
    apart = apart.join(even.filter(~pl.col("meets")), on=STEP).select(*STEP_OF_WORKER)
    apart = segments.join(apart, on=STEP_OF_WORKER).select(*STEP, "segment", "worker")
    return pl.concat([together, apart])


def _between(digest: Digest) -> pl.DataFrame:
    """Return what happened after each step until the next began, by the records of the trainer."""
    gaps = step_windows(digest).select(*STEP, from_us="done_us", to_us="next_us")
    roles = digest.path["role"].unique()
    role = next((one for one in _ROLES_BETWEEN if one in roles), None)
    told = digest.path.filter(pl.col("role").eq_missing(pl.lit(role)))
    told = told.filter(pl.col("worker") == pl.col("worker").min())
    crossed = gaps.join(told.select("event", "start_us", "end_us", "path_sec"), how="cross").filter(
        (pl.col("end_us") > pl.col("from_us")) & (pl.col("start_us") < pl.col("to_us"))
    )
    inside = pl.min_horizontal("end_us", "to_us") - pl.max_horizontal("start_us", "from_us")
    share = inside / (pl.col("end_us") - pl.col("start_us"))
    rows = crossed.group_by(*STEP, "event").agg(sec=(pl.col("path_sec") * share).sum())
    known = gaps.join(rows.group_by(STEP).agg(pl.col("sec").sum()), on=STEP, how="left")
    rest = known.select(
        *STEP,
        event=pl.lit(NOT_RECORDED),
        sec=(_sec("to_us", "from_us") - pl.col("sec").fill_null(0.0)).clip(lower_bound=0.0),
    )
    return pl.concat([rows, rest]).with_columns(part=pl.lit("between steps"))


def _summed(tables: list[pl.DataFrame], walls: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Sum up rows by part and event; what is left of the wall time is unaccounted."""
    rows = pl.concat(tables, how="diagonal_relaxed").filter(pl.col("sec") > 0)
    rows = pl.concat([pl.DataFrame(schema=_LEDGER), rows], how="diagonal_relaxed").select(list(_LEDGER))
    rest = walls.join(rows.group_by(key).agg(pl.col("sec").sum()), on=key, how="left")
    rest = rest.with_columns(
        part=pl.lit("unaccounted"),
        event=pl.lit("(clocks)"),
        sec=pl.col("wall_sec") - pl.col("sec").fill_null(0.0),
    )
    rest = rest.filter(pl.col("sec").abs() > 1e-6).drop("wall_sec")
    rows = pl.concat([rows, rest], how="diagonal_relaxed")
    order = pl.col("part").replace_strict({part: number for number, part in enumerate(PARTS)}, default=99)
    summed = rows.group_by(*STEP_OF_WORKER, "part", "event", "waited_for").agg(pl.col("sec").sum())
    return summed.sort("validate", "step", "worker", order, "event").select(list(_LEDGER))
