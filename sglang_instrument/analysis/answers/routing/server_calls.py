"""List the calls of the engine, each with the server that ran it, its caller, and what was in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.gateway import gateway_calls
from sglang_instrument.analysis.answers.engine.join import with_step
from sglang_instrument.analysis.answers.engine.records import iter_records
from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests, with_whole_queue
from sglang_instrument.analysis.answers.engine.round_trips import ahead_us
from sglang_instrument.analysis.answers.engine.used_again import with_names
from sglang_instrument.analysis.reading.records.engine_fields import EngineFields, count
from sglang_instrument.analysis.run.cached_tables import cached_table

if TYPE_CHECKING:
    from sglang_instrument.analysis.reading.files import File
    from sglang_instrument.analysis.run.opening import Run

#: The requests of a rollout: a conversation is one of them.
CONVERSATION: Final = ("step", "validate", "worker", "request_id")
#: Ends with the name of the server that the client of verl chose for the next call.
_CHOSEN: Final = "server_wait"
_CALL: Final = "turn_engine_call"
#: Names a call before the engine has taken it; each of several samples then gets a name of its own.
_PREPARED: Final = "engine_tokenize"
_TIMES: Final = ("queue_sec", "prefill_sec", "transfer_sec", "decode_sec")
_SIZES: Final = ("prompt_tokens", "cached_tokens", "completion_tokens")
#: What a gateway's call has of these.
_OF_GATEWAYS: Final = ("rid", "step", "validate", "worker", "request_id", "turn", "called_us", "caller_sec")
CALLS: Final[dict[str, Any]] = {
    "rid": pl.String,
    "server": pl.String,
    "prefill_server": pl.String,
    "prefill_rid": pl.String,
    "step": pl.Int64,
    "validate": pl.Boolean,
    "worker": pl.Int64,
    "request_id": pl.String,
    "turn": pl.Int64,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "call_sec": pl.Float64,
    **dict.fromkeys(_TIMES, pl.Float64),
    **dict.fromkeys(_SIZES, pl.Int64),
    "retractions": pl.Int64,
}
_CALLER: Final = {
    **{name: CALLS[name] for name in ("rid", *CONVERSATION, "turn")},
    "address": pl.String,
    "called_us": pl.Int64,
    "caller_sec": pl.Float64,
    "reported_queue_sec": pl.Float64,
    **{f"reported_{name}": pl.Int64 for name in (*_SIZES, "retractions")},
}


def server_calls(run: Run) -> pl.DataFrame:
    """Return one row per engine call that has a `rid`, in the order of time; from the cache if it can be.

    Returns:
        rid; server: the process that served it, by its log, or its address, by the log of its caller. Of a
        server with several schedulers, each of which has a cache of its own, "server_0 scheduler_1_tp0".
        prefill_server, prefill_rid: the server that read its prompt and its name there, if that is another.
        step, validate, worker, request_id, turn: of the caller; without one, the step is known by time alone.
        start_us, end_us, call_sec: of the call, as its caller logged it, or the server, if no caller did; on
        the clock of the median worker.
        queue_sec, prefill_sec, transfer_sec, decode_sec; prompt_tokens, of which cached_tokens were cached;
        completion_tokens; retractions: as the engine's processes logged them, else as the caller did. Null
        where neither did.
    """
    return cached_table(run, "server_calls", lambda: _made(run))


def _made(run: Run) -> pl.DataFrame:
    if run.other is not None and run.other.workers_are_servers:
        return _of_servers(run.rows_of_other)
    served = with_whole_queue(cached_engine_requests(run))
    alone = with_step(served.join(called := _called(run, served), on="rid", how="anti"), run)
    known = called.join(served, on="rid", how="left", maintain_order="left")
    calls = pl.concat([known, alone], how="diagonal").with_columns(
        start_us=pl.coalesce("called_us", "start_us"),
        call_sec=pl.coalesce("caller_sec", "duration_sec"),
        queue_sec=pl.coalesce("queue_sec", "reported_queue_sec"),
        validate=pl.col("validate").fill_null(False),
        **{name: pl.coalesce(name, f"reported_{name}") for name in (*_SIZES, "retractions")},
    )
    length_us = (pl.col("call_sec") * 1e6).cast(pl.Int64)
    calls = _named(calls).with_columns(end_us=pl.col("start_us") + length_us)
    return calls.select(pl.col(name).cast(kind) for name, kind in CALLS.items()).sort("start_us", "rid")


def _of_servers(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the calls in a log of servers, each of which is a worker there; who called is not known."""
    called = pl.col("event").cast(pl.String) == _CALL
    calls = rows.filter(called & pl.col("duration_sec").is_not_null()).with_columns(
        rid="request_id",
        server=pl.format("server_{}", "worker"),
        call_sec="duration_sec",
        completion_tokens="response_tokens",
        **dict.fromkeys(("worker", "request_id", "turn"), pl.lit(None)),
    )
    missing = [pl.lit(None).alias(name) for name in CALLS if name not in calls.columns]
    calls = calls.with_columns(missing).select(pl.col(name).cast(kind) for name, kind in CALLS.items())
    return calls.sort("start_us", "rid")


def _named(calls: pl.DataFrame) -> pl.DataFrame:
    """Give each call the name of its server: one name for a process, and one row for each cache."""
    known_name = pl.col("server")
    by_address = (
        calls.drop_nulls(["server", "address"])
        .group_by("address")
        .agg(known=known_name.mode().sort().first())
    )
    calls = calls.join(by_address, on="address", how="left", maintain_order="left")
    name = pl.coalesce("server", "known", "address")
    several = pl.col("scheduler").drop_nulls().n_unique().over(name) > 1
    inside = pl.concat_str(name, "scheduler", separator=" ")
    return calls.with_columns(
        server=pl.when(several & name.is_not_null() & pl.col("scheduler").is_not_null())
        .then(inside)
        .otherwise(pl.coalesce(name, "scheduler"))
    )


def _called(run: Run, served: pl.DataFrame) -> pl.DataFrame:
    """Return what callers logged of each call; of spans with one `rid`, the outermost has the times."""
    files = [file for file in run.files if file.place is not None and file.place.folder != "engine"]
    table = pl.DataFrame(list(_rows(run, files)), schema=_CALLER, orient="row", strict=False)
    table = with_names(table, served, "caller_sec")
    reported = [name for name in _CALLER if name.startswith("reported_") or name == "address"]
    of_replies = table.group_by("rid").agg(pl.col(name).drop_nulls().first() for name in reported)
    outermost = table.sort("caller_sec", descending=True).unique("rid", keep="first", maintain_order=True)
    known = outermost.drop(reported).join(of_replies, on="rid", how="left", maintain_order="left")
    others = gateway_calls(run).rename({"call_sec": "caller_sec"}).select(_OF_GATEWAYS)
    return pl.concat([known, others.join(known, on="rid", how="anti")], how="diagonal")


def _rows(run: Run, files: list[File]) -> Iterator[tuple[Any, ...]]:
    chosen: dict[tuple[Any, Any], str] = {}  # the server that was chosen last for a request, in this file
    before, place, ahead = None, None, ahead_us(run)
    for file, line, fields in iter_records(run, files, events=(_CHOSEN,), keys=("rid",)):
        if file is not before:
            before, place = file, file.place
            chosen.clear()
        if place is None:
            continue
        key = (fields.request_id, fields.turn)
        if line.event == _CHOSEN and isinstance(fields.server, str):
            chosen[key] = fields.server
        elif line.event == _PREPARED:
            continue
        elif isinstance(fields.rid, str) and fields.request_id is not None and line.duration_sec is not None:
            server = fields.server if isinstance(fields.server, str) else chosen.get(key)
            yield (
                *(fields.rid, place.step, place.validate, place.worker, str(fields.request_id)),
                *(count(fields.turn), server, (line.start_us or 0) - ahead.get(place.stem, 0)),
                *(line.duration_sec, *_reported(fields)),
            )


def _reported(fields: EngineFields) -> tuple[float | int | None, ...]:
    """Return what the caller was told of a call: the columns `reported_...`."""
    written = fields.generated_tokens if fields.completion_tokens is None else fields.completion_tokens
    sizes = (fields.prompt_tokens, fields.cached_tokens, written, fields.retractions)
    return _seconds(fields.queue_time), *map(count, sizes)


def _seconds(value: Any) -> float | None:
    return (
        float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
        else None
    )
