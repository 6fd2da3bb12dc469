"""List requests, the slowest first, and split one into its turns and events."""

from collections.abc import Iterable
from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.unfinished import UnendedSpan
from sglang_instrument.analysis.digests.digest import KINDS, Digest
from sglang_instrument.analysis.reading.all_fields import TEXT_COLUMNS
from sglang_instrument.analysis.reading.last_open import UNENDED

_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_OPEN_ROW: Final = {
    "event": pl.String,
    "turn": pl.Int64,
    "start_us": pl.Int64,
    "duration_sec": pl.Float64,
    "depth": pl.Int64,
    "unended": pl.Boolean,
}


def request_table(digest: Digest) -> pl.DataFrame:
    """Return one row per request, the slowest first.

    Returns:
        step, validate, worker, request_id, attempt, start_us, end_us, duration_sec, turns, response_tokens,
        finish_reason, reward, error: as logged; engine_sec, tool_sec, interaction_sec, reward_sec: the time
        in each kind of work, without spans inside another of their kind; concurrent tools count one by one;
        null of a kind of which `digest` has none; other_sec: the duration minus all of these, at least 0;
        unended: whether it did not end as far as the log goes: its times are those until then.
    """
    other = pl.col("duration_sec") - sum((pl.col(f"{kind}_sec") for kind in KINDS), start=pl.lit(0.0))
    requests = digest.of_workers().requests.drop("source", "role", "implied")
    unended = (pl.col("error") == UNENDED).fill_null(False)
    table = requests.with_columns(
        other_sec=other.clip(lower_bound=0.0),
        unended=unended,
        error=pl.when(~unended).then("error"),
    )
    table = without_unrecorded(table, digest)
    return table.sort("duration_sec", "request_id", "attempt", descending=[True, False, False])


def without_unrecorded(rows: pl.DataFrame, digest: Digest) -> pl.DataFrame:
    """Return rows with null as the time of each kind of work of which the digest of a run has none."""
    mine = digest.of_workers()
    names = [f"{kind}_sec" for kind in KINDS if f"{kind}_sec" in rows.columns]
    lacking = [
        name for name in names if not any((table[name] > 0).any() for table in (mine.requests, mine.turns))
    ]
    return rows.with_columns(pl.lit(None, pl.Float64).alias(name) for name in lacking)


def cdf_table(requests: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return percentiles of the durations of requests.

    Args:
        requests: As `request_table` returns them.
        by: The columns to group by, such as `["step", "worker"]`.

    Returns:
        `by`, requests, unended, mean_sec, p50_sec, p90_sec, p95_sec, p99_sec, p99_9_sec, max_sec.
    """
    duration = pl.col("duration_sec")
    quantiles = [
        duration.quantile(share, "linear").alias(f"p{share * 100:g}_sec".replace(".", "_"))
        for share in _QUANTILES
    ]
    counts = [pl.len().alias("requests"), pl.col("unended").sum()]
    columns = [*(count.cast(pl.Int64) for count in counts), duration.mean().alias("mean_sec"), *quantiles]
    return requests.group_by(by).agg(*columns, max_sec=duration.max()).sort(by)


def waterfall(
    spans: pl.DataFrame,
    request_id: str | None,
    instants: pl.DataFrame | None = None,
    attempt: int | None = None,
    still_open: Iterable[UnendedSpan] = (),
) -> pl.DataFrame:
    """Return the events of a request in the order of time.

    Args:
        spans: Nested spans of its worker and step.
        request_id: As logged; None has no events.
        instants: Instant events, to be shown as well.
        attempt: Only events of this `attempt`, a column of both tables; None stands for all.
        still_open: Its spans that did not end.

    Returns:
        event, turn, start_sec since the request began, duration_sec, without_nested_sec, active_sec where
        measured, and depth below the request; unended: whether it did not end, so that its duration is that
        until the last report; the spans' `all_fields.TEXT_COLUMNS`, if they have them. Instant events have
        no duration.
    """
    of_request = pl.lit(False) if request_id is None else pl.col("request_id") == request_id
    of_request = of_request if attempt is None else of_request & (pl.col("attempt") == attempt)
    mine = spans.filter(of_request).sort("start_us", "span")
    instants = mine.clear() if instants is None else instants.filter(of_request)
    texts = [name for name in TEXT_COLUMNS if name in mine.columns]
    rows = _placed(mine, instants).with_columns(pl.col("event").cast(pl.String), unended=pl.lit(value=False))
    opened = _open_rows(still_open)
    rows = pl.concat([rows, opened], how="diagonal_relaxed").sort("start_us", maintain_order=True)
    return rows.select(
        *("event", "turn", "duration_sec", "without_nested_sec", "active_sec", "unended", *texts),
        start_sec=(pl.col("start_us") - pl.col("start_us").min()) / 1e6,
        depth="depth",
    )


def _open_rows(opened: Iterable[UnendedSpan]) -> pl.DataFrame:
    """Return a row for each of a request's spans that did not end: the older contain the younger."""
    rows = [
        (span.event, span.turn, span.begun_us, span.age_sec, depth, True)
        for depth, span in enumerate(sorted(opened, key=lambda span: -span.age_sec))
    ]
    return pl.DataFrame(rows, schema=_OPEN_ROW, orient="row")


def _placed(mine: pl.DataFrame, instants: pl.DataFrame) -> pl.DataFrame:
    """Return spans and instant events of a request in the order of time, with their `depth`."""
    above = dict(mine.select("span", "parent").iter_rows())
    depths: dict[int, int] = {}

    def depth(span: int) -> int:
        if span not in depths:
            parent = above[span]
            depths[span] = depth(parent) + 1 if parent in above else 0
        return depths[span]

    spans = mine.with_columns(depth=pl.Series([depth(span) for span in mine["span"]], dtype=pl.Int64))
    times = spans.select("task", "start_us", "end_us", "depth").rows()
    below = [
        max(
            (span_depth + 1 for of, start, end, span_depth in times if of == task and start <= moment <= end),
            default=1,
        )
        for task, moment in instants.select("task", "start_us").iter_rows()
    ]
    points = instants.with_columns(depth=pl.Series(below, dtype=pl.Int64))
    return pl.concat([spans, points], how="diagonal").sort("start_us", maintain_order=True)
