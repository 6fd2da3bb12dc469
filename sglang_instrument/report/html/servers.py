"""Collect what the report says of the servers that ran the engine's calls, and of their gauges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.routing.conversations import affinity, followed_calls
from sglang_instrument.analysis.answers.routing.gauges import gauge_table, gpu_table
from sglang_instrument.analysis.answers.routing.idle import gpu_shares, idle_table, idle_words
from sglang_instrument.analysis.answers.routing.load import balance, load_by_slice, server_table
from sglang_instrument.analysis.answers.routing.samples import server_samples
from sglang_instrument.analysis.answers.routing.server_calls import server_calls
from sglang_instrument.analysis.answers.routing.words import (
    affinity_words,
    balance_words,
    bars,
    unknown_words,
)
from sglang_instrument.analysis.digests.digest import with_texts

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.report.html.chosen import Chosen

_SLICES: Final = 32
_POINTS: Final = 600  # of a line
_PIECES: Final = 400  # of the path; shorter ones become part of their neighbour
_MOST: Final = 64  # servers with a row


def server_section(run: Run) -> dict[str, Any] | None:
    """Return the rows and sentences of the section; None if the log names no server.

    Returns:
        rows: of `server_table`, each with `bars`, its load over time; of_rows: how many there are; sentences.
    """
    calls = server_calls(run).filter(~pl.col("validate"))
    if not calls["server"].count():
        return None
    table = server_table(calls, server_samples(run, calls))
    drawn = bars(load_by_slice(calls, _SLICES))
    words = (balance_words(balance(table)), *affinity_words(affinity(followed_calls(calls))))
    idle = idle_table(run)
    idles = idle_words(idle, gpu_shares(run)) if len(idle) else []
    return {
        "rows": [{**row, "bars": drawn.get(row["server"], "")} for row in table.head(_MOST).to_dicts()],
        "of_rows": len(table),
        "sentences": [*filter(None, words), *idles, *unknown_words(table)],
    }


def gauge_facts(run: Run, chosen: Sequence[Chosen]) -> dict[str, dict[str, Any]]:
    """Return by step how full all schedulers were, what the GPUs did, and what the step was spent on then.

    Returns:
        For each step with a gauge: lines: {name: {at_sec, values}}, where running and waiting are sums over
        the schedulers, kv_cache the fullest cache, and gpus_busy the mean over the GPUs; path: the critical
        path of the worker that ended last, as [phase, from_sec, to_sec]. Times are since the step began.
    """
    gauges, gpus = gauge_table(run), gpu_table(run)
    if gauges.is_empty() and gpus.is_empty():
        return {}
    facts = {step.key: _gauges_of_step(run, step, gauges, gpus) for step in chosen}
    return {key: fact for key, fact in facts.items() if fact["lines"]}


def _gauges_of_step(run: Run, step: Chosen, gauges: pl.DataFrame, gpus: pl.DataFrame) -> dict[str, Any]:
    here = (pl.col("step") == step.step) & (pl.col("validate") == step.validate)
    workers = run.digest.of_workers().steps.filter(here).drop_nulls(["start_us", "end_us"])
    if workers.is_empty():
        return {"lines": {}}
    begun: Any = workers["start_us"].min()
    ended: Any = workers["end_us"].max()
    bin_us = max(1_000_000, (ended - begun) // _POINTS)
    within = pl.col("at_us").is_between(begun, ended)
    number = ((pl.col("at_us") - begun) // bin_us).alias("number")
    busy = gpus.filter(within).group_by(number, "host", "gpu").agg(pl.col("busy_share").mean())
    full = (
        gauges.filter(within)
        .group_by(number, "scheduler")
        .agg(pl.col("running", "waiting", "kv_cache_used_share").mean())
    )
    all_schedulers = full.group_by("number").agg(
        pl.col("running", "waiting").sum(), kv_cache=pl.col("kv_cache_used_share").max()
    )
    tables = {
        **{name: all_schedulers.select("number", name) for name in ("running", "waiting", "kv_cache")},
        "gpus_busy": busy.group_by("number").agg(gpus_busy=pl.col("busy_share").mean()),
    }
    lines = {name: _line(table.drop_nulls(name), name, bin_us) for name, table in tables.items()}
    last = workers.sort("end_us")["worker"][-1]
    path = with_texts(run.digest.path.filter(here & (pl.col("worker") == last)))
    return {
        "lines": {name: line for name, line in lines.items() if line["at_sec"]},
        "worker": last,
        "duration_sec": (ended - begun) / 1e6,
        "path": _path(path, begun, ended),
    }


def _line(table: pl.DataFrame, name: str, bin_us: int) -> dict[str, list[Any]]:
    """Return a line, with null between bins that do not follow one another: no batch ran there."""
    at_sec: list[float] = []
    values: list[float | None] = []
    before = None
    for number, value in table.sort("number").iter_rows():
        # Gauges come a little more than a second apart, so one bin between two of them may be empty.
        if before is not None and number > before + 2:
            at_sec.append(round((before + 1) * bin_us / 1e6, 3))
            values.append(None)
        at_sec.append(round((number + 0.5) * bin_us / 1e6, 3))
        values.append(round(value, 4))
        before = number
    return {"at_sec": at_sec, "values": values}


def _path(pieces: pl.DataFrame, begun: int, ended: int) -> list[tuple[str, float, float]]:
    """Return the pieces of a path in the order of time, those of one phase together."""
    least_us = (ended - begun) / _PIECES
    joined: list[tuple[str, float, float]] = []
    for phase, start_us, end_us in pieces.sort("start_us").select("phase", "start_us", "end_us").iter_rows():
        first, last = (round((time_us - begun) / 1e6, 3) for time_us in (start_us, end_us))
        if joined and (joined[-1][0] == phase or end_us - start_us < least_us):
            joined[-1] = (joined[-1][0], joined[-1][1], last)
        elif first < last:
            joined.append((phase, first, last))
    return joined
