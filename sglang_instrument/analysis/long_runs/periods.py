"""Summarise a long run in one row a day or a week: its steps, its speed, what its time was spent on."""

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.steps import STEP, step_table
from sglang_instrument.analysis.ledger.ledger import PARTS, Paths, step_ledger, worker_ledger
from sglang_instrument.analysis.reading.files import File, RunFiles
from sglang_instrument.analysis.reading.last_open import UNENDED
from sglang_instrument.analysis.run.logged_runs import runs_of_trainers
from sglang_instrument.analysis.run.losses import left_out_by_file
from sglang_instrument.analysis.run.opening import Run

#: The periods, and how polars names their length.
PERIODS: Final = {"day": "1d", "week": "1w"}
_NAMES: Final = {"day": "%Y-%m-%d", "week": "%G-W%V"}  # 2026-W48 is the ISO week
_COUNTS_OF_STEP: Final = ("failed", "unended", "dropped")
_COUNTS: Final = (*_COUNTS_OF_STEP, "restarts")


def period_table(rows: pl.DataFrame, launches: Sequence[int], by: str) -> pl.DataFrame:
    """Return one row per day or week in which a step or a launch began, in order. All times are UTC.

    Args:
        rows: Of `step_rows`, those that count: training or validation, all steps or some.
        launches: When each launch of the trainer began, in Unix microseconds, the first of the run first.
        by: One of `PERIODS`; a week begins on Monday.

    Returns:
        period: 2026-11-23, or the ISO week 2026-W48; begin: its first day; steps, requests, response_tokens;
        p50_sec, p90_sec: of the steps' durations, interpolated linearly; to_next_step_sec: of the steps, each
        until the next one begins; tokens_per_sec: response tokens by that time; slowest_step, slowest_sec;
        failed: requests that ended with an error; unended: steps that a worker did not close; dropped:
        records that the writers lost; restarts: launches that began in it, without the first of the run;
        workers_waited_share: as in `summary_table`; share_<part>: the share of each part of the ledger in
        `to_next_step_sec`, with underscores in the part's name.
    """
    table = rows.group_by(period=_begins(pl.col("start_us"), by)).agg(_of_steps())
    begun = pl.DataFrame({"at_us": launches[1:]}, schema={"at_us": pl.Int64})
    restarts = begun.group_by(period=_begins(pl.col("at_us"), by)).agg(restarts=pl.len())
    table = table.join(restarts, on="period", how="full", coalesce=True).sort("period")
    wall = pl.col("to_next_step_sec")
    return table.select(
        period=pl.col("period").dt.strftime(_NAMES[by]),
        begin=pl.col("period").dt.date(),
        steps=pl.col("steps").fill_null(0).cast(pl.Int64),
        requests=pl.col("requests").cast(pl.Int64),
        **{name: pl.col(name) for name in ("response_tokens", "p50_sec", "p90_sec", "to_next_step_sec")},
        tokens_per_sec=pl.when(wall > 0).then(pl.col("response_tokens") / wall),
        **{name: pl.col(name) for name in ("slowest_step", "slowest_sec")},
        **{name: pl.col(name).fill_null(0).cast(pl.Int64) for name in _COUNTS},
        workers_waited_share="workers_waited_share",
        **{share_of(part): pl.col(share_of(part)) for part in PARTS},
    )


def _begins(time_us: pl.Expr, by: str) -> pl.Expr:
    """Return when the day or week of a time begins."""
    return time_us.cast(pl.Datetime("us", "UTC")).dt.truncate(PERIODS[by])


def _of_steps() -> list[pl.Expr]:
    """Return what a period tells of its steps."""
    duration, tokens = pl.col("duration_sec"), pl.col("response_tokens")
    wall, spent = pl.col("to_next_step_sec"), pl.col("workers_sec")
    whole = pl.when(wall.sum() > 0).then(wall.sum())
    slowest = pl.col("step").sort_by("duration_sec", "step", descending=[True, False]).first()
    return [
        pl.len().alias("steps"),
        pl.when(pl.col("requests").count() > 0).then(pl.col("requests").sum()),
        pl.col(*_COUNTS_OF_STEP).sum(),
        pl.when(tokens.count() > 0).then(tokens.sum()).alias("response_tokens"),
        duration.quantile(0.5, "linear").alias("p50_sec"),
        duration.quantile(0.9, "linear").alias("p90_sec"),
        slowest.alias("slowest_step"),
        duration.max().alias("slowest_sec"),
        pl.when(wall.count() > 0).then(wall.sum()).alias("to_next_step_sec"),
        (pl.col("waiting_sec").sum() / pl.when(spent.sum() > 0).then(spent.sum())).alias(
            "workers_waited_share"
        ),
        *((pl.col(_sec_of(part)).sum() / whole).alias(share_of(part)) for part in PARTS),
    ]


def share_of(part: str) -> str:
    """Return the name of the column with the share of a part."""
    return f"share_{part.replace(' ', '_')}"


def _sec_of(part: str) -> str:
    return f"{part.replace(' ', '_')}_sec"


def step_rows(run: Run, paths: Paths) -> pl.DataFrame:
    """Return one row per step with what periods are made of.

    Args:
        run: The run.
        paths: Its critical paths.

    Returns:
        step, validate; start_us, duration_sec, requests, response_tokens: as in `step_table`;
        to_next_step_sec, and <part>_sec of each part: its ledger; waiting_sec, workers_sec: of the ledgers of
        all workers, at barriers and in all; failed: requests that ended with an error; unended: 1 if a worker
        did not close the step; dropped: records that the writers lost. Null stands for what no record tells.
    """
    sec, part = pl.col("sec"), pl.col("part")
    of_steps = ("start_us", "duration_sec", "requests", "response_tokens")
    spent = [sec.filter(part == name).sum().alias(_sec_of(name)) for name in PARTS]
    waiting = sec.filter(part == "barrier").sum()
    tables = (
        step_ledger(paths).group_by(STEP).agg(*spent, to_next_step_sec=sec.sum()),
        worker_ledger(paths).group_by(STEP).agg(waiting_sec=waiting, workers_sec=sec.sum()),
        *_losses(run),
    )
    rows = step_table(run.digest).select(*STEP, *of_steps)
    for table in tables:
        rows = rows.join(table, on=STEP, how="left", maintain_order="left")
    return rows


def _losses(run: Run) -> Iterator[pl.DataFrame]:
    """Yield failed requests, steps without an end, and dropped records by step."""
    failed = run.digest.of_workers().requests.filter(pl.col("error") != UNENDED)
    yield failed.group_by(STEP).agg(failed=pl.len())
    of_step = {"step": pl.Int64, "validate": pl.Boolean}
    unended = {(step, validate) for step, validate, _ in run.health.unclosed}
    yield pl.DataFrame(sorted(unended), schema=of_step, orient="row").with_columns(unended=1)
    dropped = [
        (file.place.step, file.place.validate, dropped)
        for file, dropped, _ in left_out_by_file(run.files)
        if dropped and file.place is not None
    ]
    table = pl.DataFrame(dropped, schema={**of_step, "dropped": pl.Int64}, orient="row")
    yield table.group_by(STEP).agg(pl.col("dropped").sum())


def launches_of(files: Sequence[File]) -> list[int]:
    """Return when each launch of the trainer began, in Unix microseconds, in order."""
    trainers = set(runs_of_trainers(files))
    return [begun for run_id, begun in RunFiles.of(files).begins.items() if run_id in trainers]
