"""Split the wall time of a step over all that went on in it, so that the shares add up to the whole."""

from typing import Any

import polars as pl

from sglang_instrument.analysis.nesting import covered
from sglang_instrument.analysis.numbering import numbered, ranked


def split_wall(spans: pl.DataFrame, children: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return nested spans with `wall_sec`: each moment of a step split equally over the spans at work in it.

    At work is a span of which no child covers the moment. With k(t) of them in a step of a worker,
    wall_sec(s) is the integral of 1 / k(t) over the moments when s is at work, so that the sum over a step
    of a worker is the duration of that step. Spans outside of every step get 0. `children` are those of
    `nesting.covered`, if they are there already.
    """
    between, rest = _stretches(spans, children)
    share_us = _shares(pl.concat([between, rest]))
    # Those between the children of a span follow one another; of the rest a span has one.
    last = between["span"] != between["span"].shift(-1, fill_value=-1)
    up_to = share_us.head(len(between)).cum_sum().filter(last)
    wall_us = pl.zeros(len(spans), dtype=pl.Float64, eager=True)
    wall_us = wall_us.scatter(between["span"].filter(last), up_to - up_to.shift(1, fill_value=0.0))
    own = rest["span"]
    wall_us = wall_us.scatter(own, wall_us.gather(own) + share_us.tail(len(rest)))
    return spans.with_columns(wall_sec=wall_us / 1e6)


def self_stretches(spans: pl.DataFrame, children: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return when each span of a step was itself at work: a row a stretch, clipped to the step.

    Columns: `span`, `page` (the step of a worker), `from_us`, `to_us`.
    """
    return pl.concat(_stretches(spans, children))


def _stretches(spans: pl.DataFrame, children: pl.DataFrame | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the stretches before each child of a span, in order, and those after the last or without any."""
    children = covered(spans) if children is None else children
    before = children.select(span="parent", from_us="reach", to_us="from_us")
    last = children.filter(pl.col("parent") != pl.col("parent").shift(-1, fill_value=-1))
    after = last.select(span="parent", from_us=pl.max_horizontal("reach", "to_us"), to_us="parent_end")
    has_children = pl.repeat(False, len(spans), eager=True).scatter(last["parent"], True)
    alone = spans.filter(~has_children).select("span", from_us="start_us", to_us="end_us")
    pages = _pages(spans)
    return _in_pages(before, pages), _in_pages(pl.concat([after, alone]), pages)


def _in_pages(stretches: pl.DataFrame, pages: pl.DataFrame) -> pl.DataFrame:
    """Clip stretches to the steps of their spans, and leave out what is empty or in no step."""
    stretches = stretches.filter(pl.col("to_us") > pl.col("from_us"))
    clipped = pl.concat([stretches, pages[stretches["span"]]], how="horizontal").with_columns(
        from_us=pl.max_horizontal("from_us", "page_from"), to_us=pl.min_horizontal("to_us", "page_to")
    )
    kept = clipped.filter((pl.col("to_us") > pl.col("from_us")) & pl.col("page").is_not_null())
    return kept.select("span", "page", "from_us", "to_us")


def _shares(stretches: pl.DataFrame) -> pl.Series:
    """Return the integral of 1 / k(t) over each stretch, in microseconds."""
    # Pages follow one another on one scale, and at the end of each nobody is at work: one sum serves all.
    pages = stretches.group_by("page").agg(first=pl.col("from_us").min(), last=pl.col("to_us").max())
    after = (pages["last"] - pages["first"] + 1).cum_sum()
    highest: Any = pages["page"].max()
    by_page = pl.zeros((highest or 0) + 1, dtype=pl.Int64, eager=True)
    by_page = by_page.scatter(pages["page"], after.shift(1, fill_value=0) - pages["first"])
    shift = by_page.gather(stretches["page"])
    elapsed = _shared_time(stretches["from_us"] + shift, stretches["to_us"] + shift)
    half = len(stretches)
    shares: pl.Series = elapsed.tail(half) - elapsed.head(half)
    return shares


def _shared_time(begun: pl.Series, ended: pl.Series) -> pl.Series:
    """Return, for all begins and then all ends, the integral of 1 / k(t) up to that moment."""
    moment = pl.concat([begun, ended])
    order = ranked(moment)
    half = len(begun)
    ordered = pl.DataFrame({"moment": moment.gather(order), "order": order})
    change = pl.when(pl.col("order") < half).then(1).otherwise(-1)
    # Up to each moment those are at work who began before it, and did not end.
    at_work = change.cum_sum().shift(1, fill_value=0)
    passed = pl.col("moment").diff().fill_null(0)
    until = ordered.select(pl.when(at_work > 0).then(passed / at_work).otherwise(0.0).cum_sum()).to_series()
    return pl.zeros(len(moment), dtype=pl.Float64, eager=True).scatter(order, until)


def _pages(spans: pl.DataFrame) -> pl.DataFrame:
    """Number the steps of workers, and give each span the times to which it counts there.

    A step of a worker is made of its spans of phase "step"; where it has none, of all its spans.
    """
    page, pages = numbered(spans, ("source", "step", "validate"))
    in_step = spans["step_span"].is_not_null()
    stepless = pl.repeat(True, len(pages), eager=True).scatter(page.filter(in_step).unique(), False)
    counts = pages["step"].is_not_null().gather(page) & (in_step | stepless.gather(page))
    return spans.select(
        page=page.set(~counts, None),
        page_from=pl.coalesce(spans["start_us"].gather(spans["step_span"]), "start_us"),
        page_to=pl.coalesce(spans["end_us"].gather(spans["step_span"]), "end_us"),
    )
