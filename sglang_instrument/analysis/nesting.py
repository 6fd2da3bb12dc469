"""Find which span ran inside which, and so what each span did itself.

Within one lane (an asyncio task or a thread; for logs without `task`: the records of one request) a span lies
inside the innermost span that contains it. The outermost spans of a lane lie inside the span that was open,
where their task was spawned, when they began: its concurrent children. No moment of a parent is counted
twice, whatever runs at the same time below it.
"""

from collections.abc import Iterable
from typing import Final

import polars as pl

from sglang_instrument.schema import PHASES

# What rounding may take from an end: one microsecond of the start, one of the duration, one of its float.
ROUNDING_US: Final = 3
# In logs without `start_us` a start is a timestamp, taken when the line was written, minus a duration.
WRITING_US: Final = 1_000

_STRUCTURE: Final = ("step", "request", "turn", "loop")  # phases that are made of parts of other phases
_LANE_BITS: Final = 2**33  # lanes of a source: tasks count up from 0, requests without a task down from -1
PHASE: Final = pl.Enum(PHASES)


def nest(records: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of `records`, nested.

    Args:
        records: A table with the columns of `reader.COLUMNS`, or those of them that are asked for.

    Returns:
        The rows that have a duration, with these columns added.
        span: The row's number.
        parent: The number of the span that it ran inside, or null.
        concurrent: Whether the parent belongs to another lane.
        step_span: The number of the outermost span of phase "step" above or at this one, or null.
        counts_for: The phase; for a span of phase "other" that of what it ran inside.
        fresh_sec: The part of the parent's time that this child covers and no earlier one.
        self_sec: The duration minus the union of the children's times.
    """
    spans = records.filter(pl.col("duration_sec").is_not_null())
    order = _ordered(spans)
    spans = spans[order["row"]]
    parent, concurrent = _parents(order, spans["start_us"].to_list(), spans["end_us"].to_list())
    spans = spans.with_columns(
        span=pl.int_range(len(spans), dtype=pl.Int64), parent=parent, concurrent=concurrent
    )
    fresh, covered_us = _covered_times(spans)
    itself = (pl.col("duration_sec") - covered_us / 1e6).clip(lower_bound=0.0)
    return spans.with_columns(
        step_span=_step_spans(spans), counts_for=_counted_phases(spans), fresh_sec=fresh, self_sec=itself
    )


def _ordered(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of each lane so that every span comes after those that contain it.

    `near` is the end of a span that is exactly known: the start, or, mirrored in time, the end.

    Returns:
        row: Of `spans`.
        lane: A number of source and task, or of source and request.
        near, far: The ends; slack: by how much `far` may be wrong.
        stepping: Whether the span is of phase "step"; spawned_by: as in the log.
    """
    asked = pl.col("request_id").rank("dense").cast(pl.Int64)
    task = pl.coalesce("task", -1 - asked.fill_null(0)) if spans["task"].null_count() else pl.col("task")
    exact = pl.col("exact")
    keys = spans.with_row_index("row").select(
        "row",
        "source",
        "spawned_by",
        lane=(pl.col("source") * _LANE_BITS + task) * 2 + exact.cast(pl.Int64),
        near=pl.when(exact).then("start_us").otherwise(-pl.col("end_us")),
        far=pl.when(exact).then("end_us").otherwise(-pl.col("start_us")),
        slack=pl.when(exact).then(ROUNDING_US).otherwise(WRITING_US),
        stepping=pl.col("phase").cast(pl.Categorical) == "step",
    )
    # A span that ends in the same microsecond as its child was written after it: hence the reversal.
    return keys.reverse().sort("lane", "near", "far", descending=[False, False, True], maintain_order=True)


def _spawners(order: pl.DataFrame) -> dict[int, int]:
    """Return for each lane the lane that its outermost spans lie in, if there is one.

    A task of which nobody knows the spawner, and a request of a log without tasks, belong to their source's
    home: the lane of its spans of phase "step", or of the records that belong to no request.
    """
    lanes = (
        order.group_by("lane", "source")
        .agg(spawned_by=pl.col("spawned_by").drop_nulls().first(), stepping=pl.col("stepping").any())
        .sort("lane")
    )
    homes: dict[int, tuple[int, int]] = {}
    for lane, source, _, stepping in lanes.iter_rows():
        rank = 0 if stepping else 1 if _task_of(lane, source) == -1 else 2
        if rank < homes.get(source, (2, 0))[0]:
            homes[source] = (rank, lane)
    there = set(lanes["lane"])
    found = {}
    for lane, source, spawned_by, _ in lanes.iter_rows():
        named = None if spawned_by is None else lane + 2 * (spawned_by - _task_of(lane, source))
        spawner = named if named in there else homes.get(source, (2, None))[1]
        if spawner is not None and spawner != lane:
            found[lane] = spawner
    return found


def _task_of(lane: int, source: int) -> int:
    return lane // 2 - source * _LANE_BITS


def _parents(order: pl.DataFrame, starts: list[int], ends: list[int]) -> tuple[pl.Series, pl.Series]:
    """Return the parent of each span, and whether it is in another lane."""
    lanes = order["lane"].to_list()
    parents = _contain(lanes, *(order[name].to_list() for name in ("near", "far", "slack")))
    within = pl.Series("parent", parents, pl.Int64)
    orphaned = within.is_null().arg_true().to_list()
    spawners = _spawners(order)
    orphans: dict[int, list[int]] = {}
    for row in orphaned:
        spawner = spawners.get(lanes[row])
        if spawner is not None:
            orphans.setdefault(spawner, []).append(row)
    found = _above(orphans, _rows_of(order, orphans.keys() | set(spawners.values())), spawners, starts, ends)
    if not found:
        return within, pl.Series("concurrent", [False], pl.Boolean).new_from_index(0, len(within))
    rows = pl.Series(list(found), dtype=pl.UInt32)
    concurrent = pl.repeat(False, len(within), eager=True).scatter(rows, True)
    return within.scatter(rows, list(found.values())), concurrent.alias("concurrent")


def _rows_of(order: pl.DataFrame, lanes: Iterable[int]) -> dict[int, list[int]]:
    """Return the rows of some lanes; a lane's rows follow one another."""
    wanted = pl.DataFrame({"lane": list(lanes)}, schema={"lane": pl.Int64})
    rows = order.select("lane", at=pl.int_range(len(order), dtype=pl.Int64)).join(wanted, on="lane")
    return dict(rows.group_by("lane").agg(pl.col("at").sort()).iter_rows())


def _above(
    orphans: dict[int, list[int]],
    rows: dict[int, list[int]],
    spawners: dict[int, int],
    starts: list[int],
    ends: list[int],
) -> dict[int, int]:
    """Return the parents, in other lanes, of the outermost spans of lanes."""
    found = {}
    for _ in range(16):  # spawners of spawners; far deeper than tasks nest, and a circle ends
        higher: dict[int, list[int]] = {}
        for lane, children in orphans.items():
            for child, parent in _open_at(rows.get(lane, []), children, starts, ends):
                if parent is not None and parent != child:
                    found[child] = parent
                elif lane in spawners:
                    higher.setdefault(spawners[lane], []).append(child)
        orphans = higher
    return found


def _contain(lanes: list[int], nears: list[int], fars: list[int], slacks: list[int]) -> list[int | None]:
    """Return for each span of sorted lanes the last one before it, in its lane, that contains it."""
    parents: list[int | None] = [None] * len(lanes)
    stack: list[int] = []
    current = None
    for row, (lane, near, far, slack) in enumerate(zip(lanes, nears, fars, slacks, strict=True)):
        if lane != current:
            current, stack = lane, []
        while stack:
            top = stack[-1]
            if far <= fars[top] + slack and (near < fars[top] or near == nears[top]):
                parents[row] = top
                break
            stack.pop()
        stack.append(row)
    return parents


def _open_at(
    lane: list[int], children: list[int], starts: list[int], ends: list[int]
) -> Iterable[tuple[int, int | None]]:
    """Yield each child with the span of a lane that was open, and began last, when the child began."""
    begun = sorted(lane, key=lambda row: (starts[row], -ends[row]))
    following, stack = 0, list[int]()
    for child in sorted(children, key=starts.__getitem__):
        moment = starts[child]
        while following < len(begun) and starts[begun[following]] <= moment:
            stack.append(begun[following])
            following += 1
        while stack and ends[stack[-1]] <= moment:
            stack.pop()
        yield child, stack[-1] if stack else None


def _step_spans(spans: pl.DataFrame) -> pl.Series:
    """Return the outermost span of phase "step" on each span's way up, itself included."""
    stepping = pl.col("phase").cast(pl.Categorical) == "step"
    found = spans.select(pl.when(stepping).then("span")).to_series()
    up = spans["parent"]
    for _ in range(20):  # each round looks twice as far up as the one before
        if up.null_count() == len(up):
            break
        higher = found.gather(up)
        found = pl.select(pl.coalesce(higher, found)).to_series()
        up = up.gather(up)
    return found


def _counted_phases(spans: pl.DataFrame) -> pl.Series:
    """Return the phase that each span counts for: its own, or, for "other", that of what it ran inside.

    A user's own span in a tool is part of the tool; in a turn, among the turn's parts, it is something else.
    So is a span of a phase that is a user's own.
    """
    named = spans["phase"].cast(pl.Categorical)
    own = named.unique().cast(pl.String).to_list()
    if all(phase in PHASES and phase != "other" for phase in own):
        plain: pl.Series = named.cast(PHASE)
        return plain
    other: pl.Series = named == "other"
    known = named.cast(pl.String).cast(PHASE, strict=False).fill_null("other")
    found = pl.select(pl.when(~other).then(known)).to_series()
    up = spans["parent"]
    for _ in range(20):  # each round looks twice as far up as the one before
        if up.null_count() == len(up):
            break
        found = pl.select(pl.coalesce(found, found.gather(up))).to_series()
        up = up.gather(up)
    inside = pl.when(found.is_in(_STRUCTURE)).then(pl.lit("other")).otherwise(found).fill_null("other")
    return pl.select(pl.when(other).then(inside.cast(PHASE)).otherwise(known)).to_series()


def covered(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the children, clipped to their parents, those of a parent one after another and in time.

    Columns: `span`, `parent`, `from_us`, `to_us`, and `reach`: up to there earlier ones cover the parent.
    """
    children = spans.select("span", "parent", "start_us", "end_us").filter(pl.col("parent").is_not_null())
    children = children.with_columns(
        parent_start=spans["start_us"].gather(children["parent"]),
        parent_end=spans["end_us"].gather(children["parent"]),
    )
    clipped = children.select(
        "span",
        "parent",
        "parent_start",
        "parent_end",
        from_us=pl.col("start_us").clip("parent_start", "parent_end"),
        to_us=pl.col("end_us").clip("parent_start", "parent_end"),
    )
    # On one scale on which parents follow one another, one running maximum serves them all.
    long = (clipped["parent_end"] - clipped["parent_start"]).max() or 0
    base = pl.col("parent") * (int(long) + 1) - pl.col("parent_start")
    clipped = clipped.with_columns(begun=base + pl.col("from_us")).sort("begun", maintain_order=True)
    so_far = (base + pl.col("to_us")).cum_max().shift(1).fill_null(0)
    reach = pl.max_horizontal(so_far - base, pl.col("parent_start"))
    return clipped.with_columns(reach=reach).drop("begun")


def _covered_times(spans: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return for each span its `fresh_sec`, and the microseconds that its children cover."""
    fresh = (pl.col("to_us") - pl.max_horizontal("from_us", "reach")).clip(lower_bound=0)
    children = covered(spans).select("span", "parent", fresh=fresh)
    sums = children.group_by("parent").agg(pl.col("fresh").sum())
    own = pl.repeat(None, len(spans), dtype=pl.Float64, eager=True)
    own = own.scatter(children["span"], children["fresh"] / 1e6)
    all_children = pl.zeros(len(spans), dtype=pl.Int64, eager=True).scatter(sums["parent"], sums["fresh"])
    return own, all_children
