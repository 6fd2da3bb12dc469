"""Split the wall time of a step over the spans at work in it, so that the shares add up to the step."""

from typing import Any

import polars as pl

from sglang_instrument.analysis.timing.group_ids import assign_group_ids, sort_order
from sglang_instrument.analysis.timing.grouped_sums import US
from sglang_instrument.analysis.timing.nesting import clipped_children


def split_wall_time(spans: pl.DataFrame, children: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return nested spans with `steps_sec`: the time of a step, split equally over the spans at work.

    A running span is at work while none of its children runs. With k(t) spans of a worker's step at work at
    time t, steps_sec(s) is the integral of 1 / k(t) over the times when s is at work. So the sum over a
    worker's step is the duration of that step. Spans outside of every step get 0. `children` is the result of
    `nesting.clipped_children`, if already computed.
    """
    between, rest = _intervals(spans, children)
    share_us = _shares(pl.concat([between, rest]))
    # The intervals between the children of a span are adjacent rows; of the rest, a span has one.
    last = between["span"] != between["span"].shift(-1, fill_value=-1)
    up_to = _sum_up(share_us.head(len(between)), between["worker_step"]).filter(last)
    step = between["worker_step"].filter(last)
    before = pl.DataFrame({"up_to": up_to, "step": step}).select(
        pl.col("up_to").shift(1, fill_value=0.0).over("step")
    )
    wall_us = pl.zeros(len(spans), dtype=pl.Float64, eager=True)
    wall_us = wall_us.scatter(between["span"].filter(last), up_to - before.to_series())
    spans_of_rest = rest["span"]
    wall_us = wall_us.scatter(spans_of_rest, wall_us.gather(spans_of_rest) + share_us.tail(len(rest)))
    return spans.with_columns(steps_sec=wall_us * US)


def self_intervals(spans: pl.DataFrame, children: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return when each span of a step was at work itself: one row per interval, clipped to the step.

    Columns: `span`, `worker_step` (the number of the worker's step), `from_us`, `to_us`.
    """
    return pl.concat(_intervals(spans, children))


def _intervals(spans: pl.DataFrame, children: pl.DataFrame | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the intervals before each child of a span, in order, and those after the last one."""
    children = clipped_children(spans) if children is None else children
    before = children.select(span="parent", from_us="reach", to_us="from_us")
    last = children.filter(pl.col("parent") != pl.col("parent").shift(-1, fill_value=-1))
    after = last.select(span="parent", from_us=pl.max_horizontal("reach", "to_us"), to_us="parent_end")
    has_children = pl.repeat(False, len(spans), eager=True).scatter(last["parent"], True)
    alone = spans.filter(~has_children).select("span", from_us="start_us", to_us="end_us")
    windows = _step_windows(spans)
    return _clip_to_steps(before, windows), _clip_to_steps(pl.concat([after, alone]), windows)


def _clip_to_steps(intervals: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Clip intervals to the steps of their spans, and drop those that are empty or in no step."""
    intervals = intervals.filter(pl.col("to_us") > pl.col("from_us"))
    clipped = pl.concat([intervals, windows[intervals["span"]]], how="horizontal").with_columns(
        from_us=pl.max_horizontal("from_us", "step_from_us"), to_us=pl.min_horizontal("to_us", "step_to_us")
    )
    inside = clipped.filter((pl.col("to_us") > pl.col("from_us")) & pl.col("worker_step").is_not_null())
    return inside.select("span", "worker_step", "from_us", "to_us")


def _shares(intervals: pl.DataFrame) -> pl.Series:
    """Return the integral of 1 / k(t) over each interval, in microseconds."""
    # Shift the steps so that they follow one another; no span is at work between, so one sort serves all.
    steps = intervals.group_by("worker_step", maintain_order=True).agg(
        first=pl.col("from_us").min(), last=pl.col("to_us").max()
    )
    after = (steps["last"] - steps["first"] + 1).cum_sum()
    highest: Any = steps["worker_step"].max()
    offset_of = pl.zeros((highest or 0) + 1, dtype=pl.Int64, eager=True)
    offset_of = offset_of.scatter(steps["worker_step"], after.shift(1, fill_value=0) - steps["first"])
    shift = offset_of.gather(intervals["worker_step"])
    begun, ended = intervals["from_us"] + shift, intervals["to_us"] + shift
    elapsed = _shared_time(begun, ended, intervals["worker_step"])
    half = len(intervals)
    shares: pl.Series = elapsed.tail(half) - elapsed.head(half)
    return shares


def _shared_time(begun: pl.Series, ended: pl.Series, step: pl.Series) -> pl.Series:
    """Return, for all starts and then all ends, the integral of 1 / k(t) from the begin of its step on."""
    time = pl.concat([begun, ended])
    order = sort_order(time)
    half = len(begun)
    ordered = pl.DataFrame(
        {"time": time.gather(order), "order": order, "step": pl.concat([step, step]).gather(order)}
    )
    change = pl.when(pl.col("order") < half).then(1).otherwise(-1)
    # Until each time, the spans at work are those that began before it and have not ended.
    at_work = change.cum_sum().shift(1, fill_value=0)
    passed = pl.col("time").diff().fill_null(0)
    shared = ordered.select(pl.when(at_work > 0).then(passed / at_work).otherwise(0.0)).to_series()
    until = _sum_up(shared, ordered["step"])
    return pl.zeros(len(time), dtype=pl.Float64, eager=True).scatter(order, until)


def _sum_up(values: pl.Series, step: pl.Series) -> pl.Series:
    """Return the running sum of each step by itself, so that it does not depend on others in the batch."""
    sums = pl.DataFrame({"value": values, "step": step})
    return sums.select(pl.col("value").cum_sum().over("step")).to_series()


def _step_windows(spans: pl.DataFrame) -> pl.DataFrame:
    """Number the steps of workers, and return for each span its step and the times between which it counts.

    The spans of phase "step" make up a worker's step; without any, all its spans do.
    """
    worker_step, steps = assign_group_ids(spans, ("source", "step", "validate"))
    in_step = spans["step_span"].is_not_null()
    stepless = pl.repeat(True, len(steps), eager=True).scatter(worker_step.filter(in_step).unique(), False)
    counts = steps["step"].is_not_null().gather(worker_step) & (in_step | stepless.gather(worker_step))
    return spans.select(
        worker_step=worker_step.set(~counts, None),
        step_from_us=pl.coalesce(spans["start_us"].gather(spans["step_span"]), "start_us"),
        step_to_us=pl.coalesce(spans["end_us"].gather(spans["step_span"]), "end_us"),
    )
