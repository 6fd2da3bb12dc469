"""Read the lines that slime and Miles print of their timers: "Timer train_wait end (elapsed: 11.3s)".

`slime/utils/timer.py` prints them in the trainer's first rank. A line has the time at which the timer ended;
with the line "perf 12: {...}" a step of the trainer ends.
"""

import re
from typing import Final

import polars as pl

from sglang_instrument.analysis.foreign.sglang.log_prefixes import prefixes

MARKS: Final = (b" end (elapsed: ", b"perf ")
PATTERN: Final = r"\bTimer [\w./-]{1,100} end \(elapsed: |\bperf \d{1,9}: ?\{"
_TIMER: Final = (
    r"^(?P<prefix>.*?)\bTimer (?P<name>[\w./-]{1,100}) end "
    r"\(elapsed: (?P<value>\d{1,9}(?:\.\d{1,9})?)(?P<unit>m?s)\)"
)
_PERF: Final = re.compile(r"\bperf (\d{1,9}): ?\{")
_EVENTS: Final = {
    "update_weights": "weights_update",
    "actor_train": "trainer_update_actor",
    "critic_train": "trainer_update_critic",
    "log_probs": "trainer_old_log_prob",
    "ref_log_probs": "trainer_ref_log_prob",
    "values": "trainer_values",
    "save_model": "trainer_save_checkpoint",
}
_SPAN: Final = {"event": pl.String, "step": pl.Int64, "start_us": pl.Int64, "end_us": pl.Int64}
_SECOND_US: Final = 1_000_000
_FIRST: Final = "train_wait"  # a step begins when the trainer begins to wait for its samples


def timers_in(lines: pl.DataFrame, changed_us: dict[int, int]) -> pl.DataFrame:
    """Return the spans of timers: `event`, `step`, `start_us`, `end_us`; without those of unknown times.

    Args:
        lines: `file` and `line`, in the order of the files, of lines that match `PATTERN`.
        changed_us: When each file was last changed.
    """
    parts = lines.with_columns(pl.col("line").str.extract_groups(_TIMER).alias("timer")).unnest("timer")
    parts = parts.with_columns(step=_steps(parts))
    timers = parts.drop_nulls("name").with_columns(rest=pl.lit(""))
    stamps = prefixes(timers, changed_us)["stamp"]
    scale = pl.when(pl.col("unit") == "ms").then(1e3).otherwise(1e6)
    lasted_us = (pl.col("value").cast(pl.Float64) * scale).round().cast(pl.Int64)
    spans = timers.select(
        "file", "step", lasted_us=lasted_us, event=pl.col("name").replace(_EVENTS), end_us=stamps
    )
    spans = spans.drop_nulls("end_us")
    frames = [_nested(of_step) for of_step in spans.partition_by("file", "step", maintain_order=True)]
    return pl.concat([pl.DataFrame(schema=_SPAN), *frames])


def _nested(timers: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of one step so that none overlaps another one in part.

    The times show whole seconds, and a timer that contains others ends after them.
    """
    rows: list[tuple[str, int, int, int]] = []
    before: list[tuple[int, int]] = []  # spans that no later one contains yet
    for event, step, lasted_us, end_us in timers.select("event", "step", "lasted_us", "end_us").iter_rows():
        stop_us = max(end_us, before[-1][1] if before else end_us)
        begin_us = stop_us - lasted_us
        first = next((n for n, span in enumerate(before) if span[0] >= begin_us - _SECOND_US), len(before))
        inner = before[first:] if lasted_us > _SECOND_US else []
        if before[: len(before) - len(inner)]:
            begin_us = max(begin_us, before[len(before) - len(inner) - 1][1])
        begin_us = min([begin_us, *(span[0] for span in inner[:1])])
        before[len(before) - len(inner) :] = [(begin_us, stop_us)]
        rows.append((event, step, begin_us, stop_us))
    return pl.DataFrame(rows, schema=_SPAN, orient="row")


def _steps(parts: pl.DataFrame) -> pl.Series:
    """Return the step of each line: that of the line "perf" which is printed next, else counted from 0."""
    numbers = [match and int(match[1]) for match in map(_PERF.search, parts["line"])]
    if any(number is not None for number in numbers):
        printed = pl.Series(numbers, dtype=pl.Int64).fill_null(strategy="backward")
        last = max(number for number in numbers if number is not None)
        return printed.fill_null(last + 1)
    waits = (parts["name"] == _FIRST).fill_null(False)
    names = parts["name"].drop_nulls()
    begins = waits if waits.any() or names.is_empty() else (parts["name"] == names[0]).fill_null(False)
    steps: pl.Series = (begins.cast(pl.Int64).cum_sum() - 1).clip(lower_bound=0)
    return steps


def of_trainer(timers: pl.DataFrame) -> pl.DataFrame:
    """Return the timers as rows of the trainer."""
    return timers.with_columns(role=pl.lit("trainer"), task=pl.lit(0))


def trainer_spans(timers: pl.DataFrame) -> pl.DataFrame:
    """Return the timers with a span around those of each step, as rows of the trainer."""
    around = timers.group_by("step").agg(
        pl.col("start_us").min(), pl.col("end_us").max(), event=pl.lit("trainer_step").first()
    )
    return of_trainer(pl.concat([timers, around.select(timers.columns)]))
