"""Tell apart the requests of one id in a step: a retry uses the id of a request that ended before it."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any, Final

import polars as pl

_ID: Final = ["place", "request_id"]
_STEP_ID: Final = ["step", "validate", "request_id"]


def with_attempts(requests: pl.DataFrame) -> pl.DataFrame:
    """Number the requests of each id within a step of a worker, from 0, in the order of their begin.

    Args:
        requests: `_ID`, start_us and end_us of each.
    """
    ordered = requests.sort(*_ID, "start_us", "end_us", maintain_order=True)
    return ordered.with_columns(attempt=pl.int_range(pl.len(), dtype=pl.Int64).over(_ID))


def parts_with_attempts(parts: pl.DataFrame, requests: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Add to the parts of requests the `attempt` that they belong to.

    A part belongs to the request around it; outside of all of its id, to the last one that had begun.

    Args:
        parts: `_ID` and start_us; `span`, its number.
        requests: Of `with_attempts`, with `span`; those that have no span have null.
        spans: Nested spans: the number of each one's `parent`.
    """
    again = requests.filter(pl.col("attempt").max().over(_ID) > 0)
    if again.is_empty():
        return parts.with_columns(attempt=pl.lit(0, pl.Int64))
    around = _requests_around(again["span"].drop_nulls(), spans["parent"]).gather(parts["span"])
    begun = again.select(*_ID, "attempt", start_us="start_us").sort("start_us")
    numbered = parts.with_row_index("number").with_columns(around=around).sort("start_us")
    numbered = numbered.join_asof(begun, on="start_us", by=_ID, strategy="backward", check_sortedness=False)
    inside = again.select(*_ID, around="span", inside="attempt").drop_nulls("around")
    numbered = numbered.join(inside, on=[*_ID, "around"], how="left")
    attempt = pl.coalesce("inside", "attempt", 0)
    return numbered.sort("number").with_columns(attempt=attempt).drop("number", "around", "inside")


def rewards_with_attempts(rewards: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Add to rewards the `attempt` of the request that they are of: the last one that had begun.

    A reward that another process logged, on a clock of its own, is one of the last request of its id.

    Args:
        rewards: source, `_STEP_ID` and start_us.
        requests: source, `_STEP_ID`, attempt and start_us.
    """
    if requests["attempt"].max() in (0, None):
        return rewards.with_columns(attempt=pl.lit(0, pl.Int64))
    key = ["source", *_STEP_ID]
    begun = requests.select(*key, "attempt", "start_us").sort("start_us")
    last = requests.group_by(_STEP_ID).agg(last=pl.col("attempt").max())
    numbered = rewards.with_row_index("number").sort("start_us")
    numbered = numbered.join_asof(begun, on="start_us", by=key, strategy="backward", check_sortedness=False)
    numbered = numbered.join(last, on=_STEP_ID, how="left").sort("number")
    return numbered.with_columns(attempt=pl.coalesce("attempt", "last")).drop("number", "last")


def _requests_around(requests: pl.Series, parent: pl.Series) -> pl.Series:
    """Return for each span the nearest of these spans among itself and its ancestors; null for none."""
    numbers = pl.int_range(len(parent), dtype=pl.Int64, eager=True)
    is_request = pl.repeat(False, len(parent), eager=True).scatter(requests, True)
    nearest = numbers.set(~is_request, None)
    up = parent
    for _ in range(len(parent).bit_length()):  # each round doubles the number of ancestors seen
        if up.null_count() == len(up):
            break
        nearest = pl.select(pl.coalesce(nearest, nearest.gather(up))).to_series()
        up = up.gather(up)
    return nearest


def in_attempt(requests: pl.DataFrame, row: Mapping[str, Any]) -> Callable[[int | None], bool]:
    """Return whether a moment is of a request, or of another one of its id: of the last that had begun.

    Args:
        requests: All requests of the rollout workers: step, validate, worker, request_id, attempt, start_us.
        row: The request, one of these rows.
    """
    place = {name: row[name] for name in ("step", "validate", "worker", "request_id")}
    of_id = requests.filter(pl.col(name).eq_missing(value) for name, value in place.items())
    begun: list[int] = of_id.sort("attempt")["start_us"].to_list()
    if len(begun) == 1:
        return lambda moment: True
    return lambda moment: max(0, bisect_right(begun, moment or 0) - 1) == row["attempt"]
