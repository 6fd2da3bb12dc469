"""Place the critical paths of workers on one clock, and tell which worker decided how long a step took.

Up to each barrier, the worker that arrives there last decides; after the last barrier, the one that ends
last. Where workers do not meet at the same barriers, the one that ends last decides alone.
"""

from typing import Final

import polars as pl

from sglang_instrument.analysis.run.clocks import clock_table, numbered_barriers
from sglang_instrument.analysis.run.digest import Digest

STEP: Final = ["step", "validate"]
STEP_OF_WORKER: Final = [*STEP, "worker"]
#: The parts of a step, in the order in which it meets them.
PARTS: Final = (
    *("late start", "preprocess", "waiting for own requests", "engine", "tool", "interaction", "reward"),
    *("blocked loop", "postprocess", "barrier", "broadcast", "cache", "weights", "other", "between steps"),
    "unaccounted",
)
_OF_PHASE: Final = {
    "generate": "engine",
    **dict.fromkeys(("step", "request", "turn", "loop"), "unaccounted"),
}
_LEAST_SEC: Final = 1e-6  # the clocks' resolution: less is no time of its own
_OF_EVENT: Final = {"request_wait": "waiting for own requests"}


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
    return steps.with_columns(wall_sec=sec_between("begin_us", "next_us"), overlap_sec=overlap)


def worker_windows(digest: Digest) -> pl.DataFrame:
    """Return `step_windows`, with start_us and end_us of each worker."""
    return _aligned(digest).join(step_windows(digest), on=STEP).sort(STEP_OF_WORKER)


def pieces_of_workers(digest: Digest) -> pl.DataFrame:
    """Return the critical paths of workers, piece by piece, in the order of time.

    Returns:
        step, validate, worker; segment: how many barriers it has left by then; part, event, request_id;
        from_us, to_us: on the clocks as barriers align them; sec. Time in which the event loop was blocked is a
        piece of its own.
    """
    steps = _aligned(digest).rename({"start_us": "begin_us", "end_us": "stop_us"})
    path = digest.of_workers().path.join(steps, on=STEP_OF_WORKER)
    ahead = pl.col("ahead_us")
    path = path.select(
        *STEP_OF_WORKER,
        *("request_id", "event", "begin_us", "stop_us", "blocked_sec"),
        part=_part(),
        from_us=pl.col("start_us") - ahead,
        to_us=pl.col("end_us") - ahead,
    )
    path = one_at_a_time(_blocked_apart(path), STEP_OF_WORKER)
    path = _with_segment(clipped(path, "begin_us", "stop_us"), _barriers(digest))
    return path.select(*STEP_OF_WORKER, "segment", "part", "event", "request_id", "from_us", "to_us", "sec")


def segments_of(digest: Digest, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the segments of steps: up to each barrier, and from the last one on.

    Returns:
        step, validate, segment; worker: the one that decided how long it took; from_us, to_us.
    """
    barriers = _barriers(digest).join(_shared_barriers(digest, windows), on=STEP, how="semi")
    last = barriers.sort("wait_us", "worker").group_by(*STEP, "barrier", maintain_order=True).first()
    up_to = last.select(*STEP, segment="barrier", worker="worker", to_us="exit_us")
    after = windows.sort("end_us", "worker").group_by(STEP, maintain_order=True).last()
    number = up_to.group_by(STEP).agg(segment=pl.col("segment").max() + 1)
    after = after.join(number, on=STEP, how="left").select(
        *STEP, segment=pl.col("segment").fill_null(0), worker="worker", to_us="end_us"
    )
    limits = windows.select(*STEP, "begin_us", "done_us").unique()
    segments = pl.concat([up_to, after]).join(limits, on=STEP).sort(*STEP, "segment")
    reached = pl.min_horizontal("to_us", "done_us").cum_max().over(STEP)
    segments = segments.with_columns(to_us=pl.max_horizontal(reached, "begin_us"))
    begun = pl.col("to_us").shift(1).over(STEP)
    return segments.select(*STEP, "segment", "worker", "to_us", from_us=pl.coalesce(begun, "begin_us"))


def sec_between(from_us: str, to_us: str) -> pl.Expr:
    """Return the seconds from one column of microseconds to another."""
    return (pl.col(to_us) - pl.col(from_us)) / 1e6


def one_at_a_time(pieces: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Let each instant of a key belong to one piece: the first. Several files of a worker may tell of it."""
    pieces = pieces.sort(*key, "from_us", "to_us")
    reach = pl.col("to_us").cum_max().shift(1)
    reach = reach.over(key) if key else reach
    pieces = pieces.with_columns(from_us=pl.max_horizontal("from_us", reach))
    return pieces.filter(pl.col("to_us") > pl.col("from_us"))


def clipped(pieces: pl.DataFrame, begin: str, end: str) -> pl.DataFrame:
    """Return what of each piece lies between these columns, with its seconds."""
    pieces = pieces.with_columns(
        from_us=pl.max_horizontal("from_us", begin), to_us=pl.min_horizontal("to_us", end)
    )
    return pieces.filter(pl.col("to_us") > pl.col("from_us")).with_columns(
        sec=sec_between("from_us", "to_us")
    )


def _aligned(digest: Digest) -> pl.DataFrame:
    """Return start_us and end_us of each worker's step, on the clock of the median worker."""
    steps = digest.of_workers().steps.group_by(STEP_OF_WORKER)
    offsets = clock_table(digest).select(
        "worker", ahead_us=(pl.col("offset_sec") * 1e6).round().cast(pl.Int64)
    )
    aligned = steps.agg(pl.col("start_us").min(), pl.col("end_us").max()).join(
        offsets, on="worker", how="left"
    )
    ahead = pl.col("ahead_us").fill_null(0)
    return aligned.select(
        *STEP_OF_WORKER, ahead_us=ahead, start_us=pl.col("start_us") - ahead, end_us=pl.col("end_us") - ahead
    )


def _part() -> pl.Expr:
    """Return the part for which a span counts. A call that only contains others has no part."""
    contains = (pl.col("phase") == "generate") & pl.col("request_id").is_null() & pl.col("contains")
    phase = pl.col("phase").replace(_OF_PHASE)
    return (
        pl.when(contains)
        .then(pl.lit("unaccounted"))
        .otherwise(pl.col("event").replace_strict(_OF_EVENT, default=phase, return_dtype=pl.String))
    )


def _blocked_apart(path: pl.DataFrame) -> pl.DataFrame:
    """Give the time in which the event loop was blocked rows of its own, before what else a piece was."""
    blocked = path.filter(pl.col("blocked_sec") > 0)
    until = pl.min_horizontal("to_us", pl.col("from_us") + (pl.col("blocked_sec") * 1e6).round().cast(pl.Int64))
    blocked = blocked.with_columns(part=pl.lit("blocked loop"), to_us=until)
    rest = path.with_columns(from_us=pl.when(pl.col("blocked_sec") > 0).then(until).otherwise("from_us"))
    return pl.concat([rest, blocked]).drop("blocked_sec")


def _with_segment(pieces: pl.DataFrame, barriers: pl.DataFrame) -> pl.DataFrame:
    """Count for each piece the barriers that its worker had left before."""
    exits = barriers.select(*STEP_OF_WORKER, from_us="exit_us", left=pl.lit(1))
    both = pl.concat([pieces.with_columns(left=pl.lit(0)), exits], how="diagonal_relaxed")
    both = both.sort(*STEP_OF_WORKER, "from_us", "left", descending=[False] * 4 + [True])
    both = both.with_columns(segment=pl.col("left").cast(pl.Int64).cum_sum().over(STEP_OF_WORKER))
    return both.filter(pl.col("left") == 0)


def _barriers(digest: Digest) -> pl.DataFrame:
    """Return when workers came to each barrier and left it, on aligned clocks: `barrier` counts from 0."""
    known = _aligned(digest).select(*STEP_OF_WORKER, "ahead_us")
    barriers = numbered_barriers(digest).join(known, on=STEP_OF_WORKER)
    return barriers.select(
        *STEP_OF_WORKER,
        "barrier",
        wait_us=pl.col("end_us") - pl.col("start_us"),
        exit_us=pl.col("end_us") - pl.col("ahead_us"),
    )


def _shared_barriers(digest: Digest, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the steps in which all workers meet at the same barriers."""
    counts = windows.select(STEP_OF_WORKER).join(
        _barriers(digest).group_by(STEP_OF_WORKER).len(), on=STEP_OF_WORKER, how="left"
    )
    counts = counts.group_by(STEP).agg(least=pl.col("len").fill_null(0).min(), most=pl.col("len").max())
    return counts.filter(pl.col("least") == pl.col("most")).select(STEP)
