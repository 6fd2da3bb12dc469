"""Summarise a long run in one row a day or a week: its steps, its speed, what its time was spent on."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.steps import STEP, step_table
from sglang_instrument.analysis.ledger.ledger import PARTS, Paths, step_ledger, worker_ledger
from sglang_instrument.analysis.reading.files import run_begins
from sglang_instrument.analysis.run.logged_runs import runs_of_trainers
from sglang_instrument.analysis.run.losses import left_out_by_file
from sglang_instrument.analysis.run.opening import Run

#: The periods, and how polars names their length.
PERIODS: Final = {"day": "1d", "week": "1w"}
_NAMES: Final = {"day": "%Y-%m-%d", "week": "%G-W%V"}  # 2026-W48 is the ISO week
_OF_STEP: Final = ["period", *STEP]
_COUNTS: Final = ("failed", "unended", "dropped", "restarts")


def period_table(run: Run, paths: Paths, by: str, chosen: pl.Expr) -> pl.DataFrame:
    """Return one row per day or week in which a step or a launch began, in order. All times are UTC.

    Args:
        run: The run.
        paths: Its critical paths.
        by: One of `PERIODS`; a week begins on Monday.
        chosen: Whether a row's `step` and `validate` count: training or validation, all steps or some.

    Returns:
        period: 2026-11-23, or the ISO week 2026-W48; begin: its first day; steps, requests, response_tokens;
        p50_sec, p90_sec: of the steps' durations, interpolated linearly; wall_sec: of the steps, each until
        the next one begins; tokens_per_sec: response tokens by wall time; slowest_step, slowest_sec; failed:
        requests that ended with an error; unended: steps that a worker did not close; dropped: records that
        the writers lost; restarts: launches that began in it, without the first of the run; waiting: as in
        `summary_table`; share_<part>: the share, from 0 to 1, of each part of the ledger in the wall time,
        with underscores in the part's name.
    """
    placed = step_table(run.digest).filter(chosen)
    placed = placed.with_columns(period=_begins(pl.col("start_us"), by))
    known = placed.select(_OF_STEP)
    table = _of_steps(placed)
    for more in (_shares(known, paths), _waiting(known, paths), _losses(known, run)):
        table = table.join(more, on="period", how="left")
    table = table.join(_restarts(run, by), on="period", how="full", coalesce=True).sort("period")
    speed = pl.col("response_tokens") / pl.col("wall_sec")
    return table.select(
        period=pl.col("period").dt.strftime(_NAMES[by]),
        begin=pl.col("period").dt.date(),
        **{name: pl.col(name).fill_null(0).cast(pl.Int64) for name in ("steps", "requests")},
        **{name: pl.col(name) for name in ("response_tokens", "p50_sec", "p90_sec", "wall_sec")},
        tokens_per_sec=pl.when(pl.col("wall_sec") > 0).then(speed),
        **{name: pl.col(name) for name in ("slowest_step", "slowest_sec")},
        **{name: pl.col(name).fill_null(0).cast(pl.Int64) for name in _COUNTS},
        waiting="waiting",
        **{share_of(part): pl.col(share_of(part)) for part in PARTS},
    )


def _begins(time_us: pl.Expr, by: str) -> pl.Expr:
    """Return when the day or week of a time begins."""
    return time_us.cast(pl.Datetime("us", "UTC")).dt.truncate(PERIODS[by])


def _of_steps(placed: pl.DataFrame) -> pl.DataFrame:
    duration = pl.col("duration_sec")
    tokens = pl.col("response_tokens")
    return placed.group_by("period").agg(
        steps=pl.len(),
        requests=pl.col("requests").sum(),
        response_tokens=pl.when(tokens.count() > 0).then(tokens.sum()),
        p50_sec=duration.quantile(0.5, "linear"),
        p90_sec=duration.quantile(0.9, "linear"),
        slowest_step=pl.col("step").sort_by("duration_sec", "step", descending=[True, False]).first(),
        slowest_sec=duration.max(),
    )


def _shares(known: pl.DataFrame, paths: Paths) -> pl.DataFrame:
    sec, part = pl.col("sec"), pl.col("part")
    spent = step_ledger(paths).join(known, on=STEP)
    whole = pl.when(sec.sum() > 0).then(sec.sum())
    shares = [(sec.filter(part == name).sum() / whole).alias(share_of(name)) for name in PARTS]
    return spent.group_by("period").agg(*shares, wall_sec=sec.sum())


def share_of(part: str) -> str:
    """Return the name of the column with the share of a part."""
    return f"share_{part.replace(' ', '_')}"


def _waiting(known: pl.DataFrame, paths: Paths) -> pl.DataFrame:
    sec = pl.col("sec")
    waiting = sec.filter(pl.col("part") == "barrier").sum() / sec.sum()
    return worker_ledger(paths).join(known, on=STEP).group_by("period").agg(waiting=waiting)


def _losses(known: pl.DataFrame, run: Run) -> pl.DataFrame:
    """Return failed requests, steps without an end, and dropped records."""
    failed = run.digest.of_workers().requests.filter(pl.col("error").is_not_null())
    unended = {(step, validate) for step, validate, _ in run.health.unclosed}
    dropped = [
        (file.place.step, file.place.validate, dropped)
        for file, dropped, _ in left_out_by_file(run.files)
        if dropped and file.place is not None
    ]
    of_step = {"step": pl.Int64, "validate": pl.Boolean}
    tables = (
        failed.group_by(STEP).agg(failed=pl.len()),
        pl.DataFrame(sorted(unended), schema=of_step, orient="row").with_columns(unended=1),
        pl.DataFrame(dropped, schema={**of_step, "dropped": pl.Int64}, orient="row")
        .group_by(STEP)
        .agg(pl.col("dropped").sum()),
    )
    for table in tables:
        known = known.join(table, on=STEP, how="left")
    return known.group_by("period").agg(pl.col("failed", "unended", "dropped").sum())


def _restarts(run: Run, by: str) -> pl.DataFrame:
    """Return how many launches began in each period, without the first of the run."""
    trainers = set(runs_of_trainers(run.files))
    begun = [begun for one, begun in run_begins(run.files).items() if one in trainers]
    times = pl.DataFrame({"period": begun[1:]}, schema={"period": pl.Int64})
    return times.group_by(_begins(pl.col("period"), by)).agg(restarts=pl.len())
