"""Number the stretches of work of a log, which stand for steps, and say what each line covers in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import polars as pl

from sglang_instrument.analysis.foreign.records.windows import number_windows
from sglang_instrument.analysis.foreign.sglang.decoding import BatchLine, cover, interval_of, lines_in

_DECODE: Final = pl.col("kind") == "Decode"


@dataclass
class Stretches:
    """The lines about batches with what they cover, and the steps.

    Attributes:
        batches: The lines, with `worker`, `step`, `start_us` and `busy_us`: null where a line covers no time.
        lines: The lines of decode that cover some time, by worker and step, in the order of time.
        requests: What the server logged of requests, with `step` and `start_us`.
        uncovered: Workers whose lines of decode are too few to tell what they cover.
    """

    batches: pl.DataFrame
    lines: dict[tuple[int, int], list[BatchLine]]
    requests: pl.DataFrame
    uncovered: int

    def step_at(self, stamps: pl.Series) -> pl.Series:
        """Return the step that had begun last at each time; the first one for earlier times."""
        begins = self.batches.select("step", "start_us").extend(self.requests.select("step", "start_us"))
        first = begins.group_by("step").agg(begin=pl.col("start_us").min()).sort("begin")
        times = stamps.rename("begin").to_frame().with_row_index("row").sort("begin")
        steps = times.join_asof(first, on="begin").sort("row")["step"]
        return steps.fill_null(first["step"].first() if len(first) else 0)


def stretches(batches: pl.DataFrame, requests: pl.DataFrame, intervals: dict[int, int]) -> Stretches:
    """Return what lines cover, by steps.

    Args:
        batches: Lines about batches with their `worker`, in the order of time within each worker, and their
            `trainer_step`; null where nothing tells it.
        requests: What servers logged of requests: `stamp`, when each ended, and `latency_us`.
        intervals: The decode steps from line to line, by file, where the settings in the log tell.
    """
    table = batches.with_row_index("row").with_columns(is_first=_is_first_rank(batches))
    workers = table.filter("is_first").partition_by("worker", maintain_order=True)
    by_worker = [(of_worker, lines_in(of_worker)) for of_worker in workers]
    measured = [interval_of(lines) for _, lines in by_worker]
    usual = median(known) if (known := [value for value in measured if value is not None]) else None
    busy: list[int | None] = [None] * len(table)
    uncovered = 0
    for (of_worker, lines), of_lines in zip(by_worker, measured, strict=True):
        interval = intervals.get(int(of_worker["file"][0]), of_lines or usual)
        cover(lines, interval)
        decodes = [line for line in lines if line.is_decode]
        uncovered += bool(decodes) and all(line.busy_us is None for line in decodes)
        for row, line in zip(of_worker["row"], lines, strict=True):
            busy[row] = line.busy_us
    table = table.with_columns(busy_us=pl.Series(busy, dtype=pl.Int64))
    table = table.with_columns(start_us=pl.col("stamp") - pl.col("busy_us").fill_null(0))
    requests = requests.with_columns(start_us=pl.col("stamp") - pl.col("latency_us"))
    times = table.select("start_us", "stamp").extend(requests.select("start_us", "stamp"))
    steps = number_windows(times["start_us"], times["stamp"])
    table = table.with_columns(step=pl.coalesce("trainer_step", steps.head(len(table))))
    requests = requests.with_columns(step=pl.coalesce("trainer_step", steps.tail(len(requests))))
    return Stretches(table.drop("row", "is_first"), dict(_by_step(table, by_worker)), requests, uncovered)


def _is_first_rank(batches: pl.DataFrame) -> pl.Series:
    """Return whether a line is one of the first rank of its worker: the others repeat what it says."""
    first = pl.col("ranks").min().over("worker", "kind")
    return batches.select(pl.col("ranks") == first).to_series()


def _by_step(
    table: pl.DataFrame, by_worker: Sequence[tuple[pl.DataFrame, list[BatchLine]]]
) -> Iterator[tuple[tuple[int, int], list[BatchLine]]]:
    steps = table["step"]
    for of_worker, lines in by_worker:
        worker = int(of_worker["worker"][0])
        of_step: dict[int, list[BatchLine]] = {}
        for row, line in zip(of_worker["row"], lines, strict=True):
            if line.is_decode and line.busy_us is not None:
                of_step.setdefault(int(steps[row]), []).append(line)
        for step, covering in of_step.items():
            yield (worker, step), covering
