"""Find what each step of a worker waited for: the chain of spans that led from its begin to its end.

The walk goes back from the end of a step. Of the spans inside, it takes the one that ended last, walks that
one in the same way, goes on at its start with the last one that had ended by then, and so on. So each moment
of the step belongs to exactly one span: the innermost on this path.
"""

from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.timing.grouped_sums import US
from sglang_instrument.analysis.timing.lanes import ROUNDING_US
from sglang_instrument.analysis.timing.nesting import clipped_children
from sglang_instrument.schema import LOOP_BLOCK, ROLLOUT, kind_of

_TRAINER: Final = "trainer_"
_OUTLIVES_US: Final = 1_000  # no span waited for a child in another lane that ends so much later


def critical_path(spans: pl.DataFrame, children: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the spans on the critical paths of the steps in which they lie.

    Args:
        spans: Nested spans; `place` numbers the steps of workers. Those without a step are on no path.
        children: The result of `nesting.clipped_children`, if already computed.

    Returns:
        One row per piece of a path, in no order: span, the innermost one on the path; from_us, to_us;
        blocked_sec: how much of it the worker's event loop was blocked; contains: whether the span has others
        inside it on the path. The pieces of a step do not overlap, and cover its outermost spans on the path.
    """
    children = clipped_children(spans) if children is None else children
    blocks = spans.filter(_is_block(spans)).select("place", "start_us", "end_us")
    links = _walk(spans, _waited_for(spans, children))
    pieces = _uncovered(links)
    pieces = pieces.with_columns(
        place=spans["place"].gather(pieces["span"]), contains=pieces["span"].is_in(links["parent"].implode())
    )
    blocked = _covered_us(pieces, blocks) * US
    return pieces.select("span", "from_us", "to_us", "contains", blocked_sec=blocked)


def _is_block(spans: pl.DataFrame) -> pl.Series:
    """Return which records tell of blocked loops: they lie beside the spans that they delay, in no lane."""
    return _is_event(spans, LOOP_BLOCK)


def _is_event(spans: pl.DataFrame, event: str) -> pl.Series:
    is_event: pl.Series = spans["event"].cast(pl.Categorical) == event
    return is_event


def _is_work_of_trainer(spans: pl.DataFrame) -> pl.Series:
    """Return which spans are phases of a trainer in which it does not wait for its rollout."""
    events = spans["event"].cast(pl.Categorical)
    names = [event for event in events.unique().cast(pl.String).drop_nulls() if event.startswith(_TRAINER)]
    works: pl.Series = events.is_in(
        [event for event in names if kind_of(event).phase not in ("generate", "step")]
    )
    return works


def _waited_for(spans: pl.DataFrame, children: pl.DataFrame) -> pl.DataFrame:
    """Return the clipped children that their parents may have waited for: span, parent, from_us, to_us.

    A parent cannot have waited for a child in another lane that outlives it. The nearest span above that ends
    later may have: tasks outlive the span that started them, and the step waits. Nor does a phase of a
    trainer wait for a rollout in another lane, which makes the next batch meanwhile.
    """
    ends, names = spans["end_us"], ("span", "parent", "from_us", "to_us")
    is_rollout, works = _is_event(spans, ROLLOUT) & spans["concurrent"], _is_work_of_trainer(spans)
    is_block = _is_block(spans).gather(children["span"])
    rows = children.filter(~is_block & (children["to_us"] > children["from_us"])).select(*names)
    waits = [rows.clear()]
    while len(rows):
        outlives = ends.gather(rows["span"]) > ends.gather(rows["parent"]) + _OUTLIVES_US
        outlives &= spans["concurrent"].gather(rows["span"])
        outlives |= is_rollout.gather(rows["span"]) & works.gather(rows["parent"])
        waits.append(rows.filter(~outlives))
        rows = rows.filter(outlives)
        rows = rows.with_columns(parent=spans["parent"].gather(rows["parent"])).drop_nulls("parent")
        until = pl.min_horizontal(ends.gather(rows["span"]), ends.gather(rows["parent"]))
        rows = rows.with_columns(to_us=until)
    return pl.concat(waits)


def _walk(spans: pl.DataFrame, children: pl.DataFrame) -> pl.DataFrame:
    """Return the links of all paths, by level: span, parent (null for the outermost), from_us, to_us."""
    level = _chain(_outermost(spans), "place").with_columns(parent=pl.lit(None, pl.Int64)).drop("place")
    levels = [level.select("span", "parent", "from_us", "to_us")]
    while len(level):
        is_on = pl.repeat(False, len(spans), eager=True).scatter(level["span"], True)
        inside = children.filter(is_on.gather(children["parent"]))
        limits = level.select(parent="span", lowest="from_us", highest="to_us")
        inside = inside.join(limits, on="parent", maintain_order="left").select(
            "span",
            "parent",
            from_us=pl.col("from_us").clip("lowest", "highest"),
            to_us=pl.col("to_us").clip("lowest", "highest"),
        )
        level = _chain(inside, "parent")
        levels.append(level)
    return pl.concat(levels)


def _outermost(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of steps, and what lies before and after them; without any, all outermost spans."""
    outermost = spans.filter(spans["parent"].is_null() & spans["step"].is_not_null() & ~_is_block(spans))
    is_step = pl.col("span") == pl.col("step_span")
    begin = pl.col("start_us").filter(is_step).min().over("place")
    end = pl.col("end_us").filter(is_step).max().over("place")
    beside = (pl.col("end_us") <= begin + ROUNDING_US) | (pl.col("start_us") >= end - ROUNDING_US)
    chosen = outermost.filter(is_step.fill_null(False) | begin.is_null() | beside)
    return chosen.select("span", "place", from_us="start_us", to_us="end_us")


def _chain(candidates: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return for each value of `key` the last candidate to end, the last that had ended at its start, ...

    Two that overlap by no more than rounding came one after the other. Then the earlier one ends where the
    later one starts.
    """
    ordered = candidates.filter(pl.col("to_us") > pl.col("from_us"))
    ordered = ordered.sort(key, "to_us", "from_us", descending=[False, False, True], maintain_order=True)
    if ordered.is_empty():
        return ordered
    starts, ends = _one_after_the_other(ordered[key], ordered["from_us"], ordered["to_us"])
    before = _last_until(ends, starts + ROUNDING_US)
    row = pl.int_range(len(ordered), dtype=pl.Int64, eager=True)
    before = (row - 1).zip_with(before >= row, before)  # a span that short would lead to itself
    before = before.set(before < 0, None)
    before = before.set(ordered[key].gather(before).ne_missing(ordered[key]), None)
    last: pl.Series = ordered[key].ne_missing(ordered[key].shift(-1))
    chosen = ordered.filter(_reached(last, before))
    begun = pl.col("from_us").reverse().cum_min().reverse().shift(-1).over(key)
    return chosen.with_columns(to_us=pl.min_horizontal("to_us", begun)).filter(
        pl.col("to_us") > pl.col("from_us")
    )


def _one_after_the_other(group: pl.Series, *times: pl.Series) -> list[pl.Series]:
    """Shift times so that the groups, which are numbered in ascending order, follow one another."""
    every: list[Any] = [edge for time in times for edge in (time.min(), time.max())]
    lowest, highest = min(every), max(every)
    shift = (group.rank("dense").cast(pl.Int64) - 1) * (highest - lowest + 1) - lowest
    return [time + shift for time in times]


def _last_until(ordered: pl.Series, sought: pl.Series) -> pl.Series:
    """Return for each sought value the row of the last ordered value that is not larger, or null."""
    # An expression, because Series.search_sorted() of older polars needs numpy.
    place = pl.select(pl.lit(ordered).search_sorted(pl.lit(sought), side="right").cast(pl.Int64)).to_series()
    row: pl.Series = (place - 1).set(place == 0, None)
    return row


def _reached(taken: pl.Series, before: pl.Series) -> pl.Series:
    """Return the rows that are taken, or lead to one: `before` is the row before each, or null."""
    while before.null_count() < len(before):
        earlier = before.filter(taken).drop_nulls()
        taken = taken.scatter(earlier, True)
        before = before.gather(before)  # the next round goes twice as far
    return taken


def _uncovered(links: pl.DataFrame) -> pl.DataFrame:
    """Return when each span of a path was its innermost one: span, from_us, to_us."""
    inner = links.drop_nulls("parent").sort("parent", "from_us")
    extents = links.select(parent="span", lowest="from_us", highest="to_us")
    inner = inner.join(extents, on="parent", maintain_order="left")
    last_end = pl.col("to_us").shift(1).over("parent")
    between = inner.select(span="parent", from_us=pl.coalesce(last_end, "lowest"), to_us="from_us")
    after = inner.group_by("parent").agg(pl.col("to_us").max(), pl.col("highest").first())
    after = after.select(span="parent", from_us="to_us", to_us="highest")
    alone = links.join(inner.select(span="parent"), on="span", how="anti").select("span", "from_us", "to_us")
    return pl.concat([between, after, alone]).filter(pl.col("to_us") > pl.col("from_us"))


def _covered_us(intervals: pl.DataFrame, covers: pl.DataFrame) -> pl.Series:
    """Return how many microseconds of each interval the covers of its place cover, each moment once."""
    half = len(intervals)
    if covers.is_empty() or not half:
        return pl.zeros(half, dtype=pl.Int64, eager=True)
    place = pl.concat([intervals["place"], intervals["place"], covers["place"]])
    begun = pl.concat([intervals["from_us"], intervals["to_us"], covers["start_us"]])
    ended = pl.concat([intervals["from_us"], intervals["to_us"], covers["end_us"]])
    begun, ended = _one_after_the_other(place, begun, ended)
    held = pl.DataFrame({"begin": begun, "end": ended}).slice(2 * half).sort("begin")
    held = held.with_columns(begin=pl.max_horizontal("begin", pl.col("end").cum_max().shift(1)))
    held = held.filter(pl.col("end") > pl.col("begin"))
    before = (held["end"] - held["begin"]).cum_sum() - (held["end"] - held["begin"])
    moments = begun.head(2 * half)
    last = _last_until(held["begin"], moments)
    inside = pl.select(
        pl.min_horizontal(moments, held["end"].gather(last)) - held["begin"].gather(last)
    ).to_series()
    until = (before.gather(last) + inside).fill_null(0)
    covered: pl.Series = until.tail(half) - until.head(half)
    return covered
