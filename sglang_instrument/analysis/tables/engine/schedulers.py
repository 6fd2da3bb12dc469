"""Schedulers side by side: what each held and did, second by second and in all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.routing.schedulers import scheduler_table

    return scheduler_table(run)


def _course(name: str, meaning: str, gives_way: int, title: str = "") -> Column:
    return Column(
        name,
        f"{meaning}, in up to 16 slices of the time; the highest bar is the highest of any scheduler",
        gives_way=gives_way,
        title=title,
        json=False,
        frame=False,
    )


SCHEDULERS: Final = Table(
    name="schedulers",
    row="a scheduler of an engine; each data-parallel rank has one",
    commands=("servers",),
    make=_make,
    columns=(
        Column("scheduler", "the scheduler's log, such as scheduler_0_tp0"),
        Column("seconds", "how many seconds it ran batches in, and logged how full it was", "count", 9),
        Column("running_mean", "requests in the running batch, on average over those seconds", "number"),
        Column("running_max", "the most of them", "count", 6),
        _course("running_over_time", "running requests", 2),
        Column("waiting_mean", "requests that waited for a place in the batch, on average", "number"),
        Column("waiting_max", "the most of them", "count", 5),
        _course("waiting_over_time", "waiting requests", 4),
        Column(
            "kv_cache_used_share_mean",
            "of the key-value cache what was in use, kept prefixes included, on average",
            "share",
            title="KV cache mean",
        ),
        Column("kv_cache_used_share_max", "the most of it", "share", 7, title="KV cache max"),
        _course("kv_cache_over_time", "the share of the key-value cache in use", 3, "KV cache over time"),
        Column("requests", "requests of the engine that it ran", "count", terminal=False),
        Column("prompt_tokens", "tokens of their prompts", "count", terminal=False),
        Column("cached_tokens", "of these, tokens that were in the cache", "count", 8),
        Column(
            "cached_host_tokens",
            "of the cached ones, those in the memory of the host (HiCache)",
            "count",
            if_any=True,
        ),
        Column(
            "cached_storage_tokens",
            "of the cached ones, those in a store beyond it (HiCache)",
            "count",
            if_any=True,
        ),
        Column("retractions", "how often it took a request out of its batch to free memory", "count", 1),
        Column(
            "retracted_tokens",
            "tokens that it computed again after that",
            "count",
            terminal=False,
        ),
        Column(
            "preemptions",
            "how often a request of a higher priority took the place of another",
            "count",
            if_any=True,
        ),
        Column("aborts", "requests that were aborted", "count", if_any=True),
        Column(
            "forward_passes",
            "batches that the model ran, as SGLang's stream of forward-pass metrics tells",
            "count",
            terminal=False,
        ),
        Column("forward_sec", "their time on the GPU", "time", terminal=False),
        Column(
            "forward_share",
            "of the time from one of them to the next, less than a second, that in which the GPU ran one; in "
            "the rest it waited for the CPU",
            "share",
            if_any=True,
            title="on GPU",
        ),
    ),
)
