"""Sort spans into lanes: one per asyncio task or thread, or per request where a log has no tasks."""

from typing import Final, NamedTuple

import polars as pl

# The most that rounding takes off an end: 1 us each for the start, the duration and its float.
ROUNDING_US: Final = 3
# In logs without `start_us` a start is the timestamp, taken when the line was written, minus the duration.
WRITING_US: Final = 1_000
#: Stands for "no row" in columns of row numbers; nulls would cost another pass in each operation.
NONE: Final = -1

#: A lane and a time are packed into one number of 63 bits.
TIME_BITS: Final = 40
_LANE_BITS: Final = 22
_WIDEST: Final = 2**31
_OF_LANES: Final = (
    *("source", "task", "spawned_by", "request_id", "phase", "exact"),
    *("start_us", "end_us", "duration_sec"),
)
_MOST_WITHOUT_SPANS: Final = 16  # tasks between two that have spans; this ends circles
_NO_REQUEST: Final = -1  # the task of records that have neither a task nor a request


class Lanes(NamedTuple):
    """The spans of a batch, lane by lane, so that every span comes after those that contain it.

    `near` is the end of a span that is known exactly: its start, or, mirrored in time, its end.

    Attributes:
        row: The span's row among the records.
        lane: The number of its lane, from 0.
        near, far: Its two ends.
        slack_us: How far `far` may be off.
        spawner: For each lane (not span), the lane that contains its outermost spans, or NONE.
    """

    row: pl.Series
    lane: pl.Series
    near: pl.Series
    far: pl.Series
    slack_us: pl.Series
    spawner: pl.Series


class _Tasks(NamedTuple):
    """Tasks as small numbers below `width`; `spawned_by` is null where that task has no record."""

    task: pl.Series
    spawned_by: pl.Series
    width: int
    of_no_request: int


def in_lanes(records: pl.DataFrame) -> Lanes:
    """Return the spans among records sorted into lanes; an instant event may say what spawned its task."""
    columns = [name for name in _OF_LANES if name in records.columns]
    is_telling = pl.col("duration_sec").is_not_null() | pl.col("spawned_by").is_not_null()
    telling = records.select(columns).filter(is_telling)
    timed = telling["duration_sec"].is_not_null()
    spans, tasks = telling.filter(timed), _tasks(telling)
    thread = telling["source"] * tasks.width + tasks.task
    spawned = _spawned(thread, tasks, timed)
    near, far, slack_us = _ends(spans)
    mirrored = (~spans["exact"]).cast(pl.Int64)
    name = thread.filter(timed) * 2 + mirrored
    row = _order(compact(name, _LANE_BITS), near, far)
    ordered = name.gather(row)
    first = (ordered != ordered.shift(1)).fill_null(True)
    lane = first.cast(pl.Int64).cum_sum() - 1
    names = ordered.filter(first)
    spawner = _spawners(spans, name, names, tasks, spawned)
    return Lanes(row, lane, near.gather(row), far.gather(row), slack_us.gather(row), spawner)


def compact(values: pl.Series, bits: int) -> pl.Series:
    """Return values as numbers from 0 in the same order, of `bits` bits if their range allows."""
    lowest, highest = values.min(), values.max()
    if not isinstance(lowest, int) or not isinstance(highest, int):
        return values
    small = values - lowest if highest - lowest < 2**bits else values.rank("dense") - 1
    compacted: pl.Series = small.cast(pl.Int64)
    return compacted


def packed(lane: pl.Series, moment: pl.Series) -> pl.Series:
    """Return one number that sorts by lane, and within a lane by time."""
    key: pl.Series = lane * 2**TIME_BITS + moment
    return key


def _ends(spans: pl.DataFrame) -> tuple[pl.Series, pl.Series, pl.Series]:
    exact, starts, ends = spans["exact"], spans["start_us"], spans["end_us"]
    sure = pl.repeat(ROUNDING_US, len(spans), dtype=pl.Int64, eager=True)
    if exact.all():
        return starts, ends, sure
    unsure = pl.repeat(WRITING_US, len(spans), dtype=pl.Int64, eager=True)
    return starts.zip_with(exact, -ends), ends.zip_with(exact, -starts), sure.zip_with(exact, unsure)


def _tasks(spans: pl.DataFrame) -> _Tasks:
    task, spawned_by = spans["task"], spans["spawned_by"]
    if task.null_count():
        asked = spans["request_id"].rank("dense").cast(pl.Int64).fill_null(0)
        task = task.zip_with(task.is_not_null(), _NO_REQUEST - asked)
    lowest, highest = task.min(), task.max()
    if isinstance(lowest, int) and isinstance(highest, int) and highest - lowest < _WIDEST:
        width = highest - lowest + 1
        spawned = spawned_by - lowest
        is_known = (spawned >= 0) & (spawned < width)
        return _Tasks(task - lowest, spawned.set(~is_known, None), width, _NO_REQUEST - lowest)
    known = pl.concat([task, spawned_by, pl.Series([_NO_REQUEST], dtype=pl.Int64)])
    number = known.rank("dense").cast(pl.Int64)
    tasks, spawned = number.head(len(task)), number.slice(len(task), len(task))
    return _Tasks(tasks, spawned, len(known) + 1, int(number[-1]))


def _order(lane: pl.Series, near: pl.Series, far: pl.Series) -> pl.Series:
    """Return the rows sorted by lane, `near`, and descending `far`; of equal rows, the last written first."""
    key = packed(lane, compact(near, TIME_BITS))
    # A span that ends in the same microsecond as its child is written after it; reverse() puts it first.
    rows = pl.DataFrame({"key": key, "far": far}).with_row_index("row").reverse()
    quick = rows.sort("key", maintain_order=True)
    same = (quick["key"] == quick["key"].shift(1)) & (quick["far"] > quick["far"].shift(1))
    if same.any():  # the log was not written in the order of ends
        quick = rows.sort("key", "far", descending=[False, True], maintain_order=True)
    return quick["row"]


def _spawned(thread: pl.Series, tasks: _Tasks, timed: pl.Series) -> pl.DataFrame:
    """Return for each `thread` (a task of a source) the nearest one above it that has spans, `above`.

    A task without spans of its own may stand between: then what spawned that one counts.
    """
    above = thread + tasks.spawned_by - tasks.task
    logged = pl.DataFrame({"thread": thread, "above": above}).drop_nulls("above")
    logged = logged.unique("thread", keep="first", maintain_order=True)
    with_spans = pl.DataFrame({"above": thread.filter(timed).unique()})
    spawned, open_ended = [logged.join(with_spans, on="above", how="semi")], logged
    for _ in range(_MOST_WITHOUT_SPANS):
        open_ended = open_ended.join(with_spans, on="above", how="anti").join(
            logged.rename({"thread": "above", "above": "higher"}), on="above"
        )
        if open_ended.is_empty():
            break
        open_ended = open_ended.select("thread", above="higher")
        spawned.append(open_ended.join(with_spans, on="above", how="semi"))
    return pl.concat(spawned)


def _spawners(
    spans: pl.DataFrame, name: pl.Series, names: pl.Series, tasks: _Tasks, spawned: pl.DataFrame
) -> pl.Series:
    """Return for each lane the lane that contains its outermost spans.

    Tasks without a known spawner, and requests of logs without tasks, belong to the home of their source: the
    lane of its spans of phase "step", or of its records without a request.
    """
    numbered = pl.DataFrame({"name": names}).with_row_index("lane").cast(pl.Int64)
    source_width = 2 * tasks.width
    source = names // source_width
    stepping = name.filter(spans["phase"].cast(pl.Categorical) == "step").unique()
    without_request = names.filter((names % source_width) // 2 == tasks.of_no_request)
    homes: dict[int, int] = {}
    for lane in [*sorted(stepping), *sorted(without_request)]:
        homes.setdefault(lane // source_width, lane)
    at_home = pl.DataFrame(
        {"source": list(homes), "home": list(homes.values())}, schema={"source": pl.Int64, "home": pl.Int64}
    )
    lanes = (
        numbered.with_columns(source=source, thread=names // 2)
        .join(spawned, on="thread", how="left", maintain_order="left")
        .with_columns(wanted=pl.col("above") * 2 + pl.col("name") % 2)
        .join(numbered.select(wanted="name", spawner="lane"), on="wanted", how="left", maintain_order="left")
        .join(at_home, on="source", how="left", maintain_order="left")
        .join(numbered.select(home="name", at_home="lane"), on="home", how="left", maintain_order="left")
    )
    spawner = pl.coalesce("spawner", "at_home", NONE)
    return lanes.select(pl.when(spawner == pl.col("lane")).then(NONE).otherwise(spawner)).to_series()
