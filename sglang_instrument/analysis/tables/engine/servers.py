"""Servers that ran the engine's calls: load, queue, cache, and whether conversations stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    import polars as pl

    from sglang_instrument.analysis.answers.routing.load import server_table
    from sglang_instrument.analysis.answers.routing.samples import server_samples
    from sglang_instrument.analysis.answers.routing.server_calls import server_calls

    calls = server_calls(run).filter(~pl.col("validate"))
    return server_table(calls, server_samples(run, calls))


def _when(row: Mapping[str, Any]) -> str | None:
    if "slice" in row:
        return f"{row['from_sec']:,.1f} to {row['to_sec']:,.1f} s"
    return None if row["step"] is None else f"step {row['step']}"


_CALLS: Final = Column("calls", "how many engine calls it served", "count")
_MEAN_IN_FLIGHT: Final = Column(
    "mean_in_flight",
    "its calls in flight, on average while any server had some",
    "number",
    formerly="load",
    former_title="load",
)
_COMPLETION: Final = Column("completion_tokens", "tokens of its replies", "count", 9, former_title="written")
_RETRACTIONS: Final = Column(
    "retractions",
    "how often it took calls out of its batch to free memory",
    "count",
    former_title="retracted",
)
_QUEUE: Final = Column(
    "queue_share", "share of its calls' time in which they waited for a place in the batch", "share"
)
_CACHED: Final = Column("cached_share", "share of the prompts' tokens that were in its cache", "share")
_RUNNING: Final = Column(
    "kv_cache_running_share",
    "the most of its key-value cache that running calls held at an admission: without prefixes that no "
    "running call uses",
    "share",
    gives_way=1,
    title="KV cache running",
    formerly="kv_held_share",
    former_title="KV held",
)
_FILLED: Final = Column(
    "kv_cache_share",
    "the most of its key-value cache that was in use at an admission, kept prefixes included",
    "share",
    gives_way=8,
    title="KV cache",
    formerly="kv_share",
    former_title="KV",
)
_HIDDEN: Final = (
    Column("call_sec", "time of its calls, summed", "time", terminal=False),
    Column("queue_sec", "waiting for a place in the batch, summed", "time", terminal=False),
    Column("prompt_tokens", "tokens of prompts, of calls that tell the cache", "count", terminal=False),
    Column("cached_tokens", "of these, tokens that were in its cache", "count", terminal=False),
    Column("waiting", "the most calls that waited at an admission", "count", terminal=False),
)
SERVERS: Final = Table(
    name="servers",
    row="a server that served calls of the engine",
    commands=("servers",),
    make=_make,
    columns=(
        Column(
            "server", "the process that served the calls, its scheduler if it has several, or its address"
        ),
        Column("role", "prefill or decode, where these are apart", gives_way=10, if_any=True),
        _CALLS,
        Column(
            "conversations",
            "of how many conversations: requests of the rollout",
            "count",
            gives_way=5,
            former_title="talks",
        ),
        Column(
            "stayed",
            "later calls of conversations whose call before ran on this server, too",
            "count",
            terminal=False,
        ),
        Column(
            "moved_here",
            "later calls of conversations whose call before ran on another server",
            "count",
            formerly="moved_in",
        ),
        _MEAN_IN_FLIGHT,
        Column(
            "over_time",
            "the same in 16 slices of the time; the highest bar is the highest of any server",
            gives_way=2,
            json=False,
            frame=False,
        ),
        Column(
            "max_in_flight",
            "the most calls in flight at once",
            "count",
            gives_way=4,
            formerly="most_load",
            former_title="most",
        ),
        Column("p50_sec", "half of its calls took at most this long", "time", gives_way=6),
        Column("p99_sec", "99 % of its calls took at most this long", "time", gives_way=3),
        _QUEUE,
        _CACHED,
        _COMPLETION,
        Column(
            "tokens_per_sec",
            "tokens of its replies a second, while any server had calls",
            "rounded",
            gives_way=7,
            title="tokens/s",
        ),
        _RETRACTIONS,
        _FILLED,
        _RUNNING,
        *_HIDDEN,
    ),
)
SERVERS_OVER_TIME: Final = Table(
    name="servers_over_time",
    row="a server in a step, or in a slice of the time since the first call",
    commands=("servers",),
    option="--over-time",
    columns=(
        Column("when", "the step, or the slice of time", cell=_when, json=False, frame=False),
        Column("step", "the training step, where rows are of steps", "id", terminal=False, optional=True),
        Column(
            "validate",
            "whether it is validation, where rows are of steps",
            "flag",
            terminal=False,
            optional=True,
        ),
        Column("slice", "the slice, from 0, if rows are of slices", "count", terminal=False, optional=True),
        Column("from_sec", "its begin, after the first call", "time", terminal=False, optional=True),
        Column("to_sec", "its end", "time", terminal=False, optional=True),
        Column("server", "the server"),
        Column("calls", "calls that began", "count"),
        Column("conversations", "of how many conversations", "count", terminal=False),
        _MEAN_IN_FLIGHT,
        Column("p50_sec", "half of these calls took at most this long", "time", terminal=False),
        Column("p99_sec", "99 % of these calls took at most this long", "time", gives_way=2),
        _QUEUE,
        _CACHED,
        _COMPLETION,
        _RETRACTIONS,
        Column("kv_cache_share", "as of servers", "share", terminal=False, formerly="kv_share"),
        _RUNNING,
        *_HIDDEN,
    ),
)
