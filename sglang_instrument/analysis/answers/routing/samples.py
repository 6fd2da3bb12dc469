"""Read what schedulers logged at each admission of requests: queue, batch, key-value cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.records import engine_files, iter_records
from sglang_instrument.analysis.reading.records.engine_fields import count, kv_shares, rids_of
from sglang_instrument.analysis.run.cached_tables import cached_table

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_ADMIT: Final = "scheduler_admit"
_LOGGED: Final[dict[str, Any]] = {
    "rid": pl.String,
    "waiting": pl.Int64,
    "running": pl.Int64,
    "kv_share": pl.Float64,
    "kv_held_share": pl.Float64,
}


def server_samples(run: Run, calls: pl.DataFrame) -> pl.DataFrame:
    """Return one row per admission of requests by a scheduler, in the order of time.

    Args:
        run: The run.
        calls: Rows of `server_calls`; admissions of other requests are left out.

    Returns:
        server, step, validate, start_us: of the first admitted request's call; waiting: requests that still
        waited; running: requests in the batch; kv_held_share: share of the key-value cache that running
        requests hold; kv_share: with what the prefix cache keeps. Null where the scheduler did not log it.
    """
    logged = cached_table(run, "server_samples", lambda: logged_samples(run))
    of_calls = calls.select(
        *(pl.coalesce(f"prefill_{name}", name).alias(name) for name in ("rid", "server")),
        *("step", "validate", "start_us"),
    )
    return logged.join(of_calls, on="rid", how="inner", maintain_order="left").drop("rid").sort("start_us")


def logged_samples(run: Run) -> pl.DataFrame:
    """Return the admissions as schedulers logged them, each with the `rid` of its first request."""
    return pl.DataFrame(list(_rows(run)), schema=_LOGGED, strict=False)


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    for _, _, fields in iter_records(run, engine_files(run), events=(_ADMIT,)):
        rids = rids_of(fields)
        if rids:
            held, used = kv_shares(fields)
            yield {
                "rid": rids[0],
                "waiting": count(fields.waiting),
                "running": count(fields.running),
                "kv_share": used,
                "kv_held_share": held,
            }
