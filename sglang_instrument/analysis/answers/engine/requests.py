"""Collect what the engine's processes logged of each request: queue, prefill, decode, retractions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.engine_request import EngineRequest
from sglang_instrument.analysis.answers.engine.records import engine_files, iter_records
from sglang_instrument.analysis.answers.engine.round_trips import ahead_us
from sglang_instrument.analysis.reading.records.engine_fields import (
    EngineFields,
    number,
    of_request,
    rids_of,
    tokens_of,
)
from sglang_instrument.analysis.run.cached_tables import cached_table

if TYPE_CHECKING:
    from sglang_instrument.analysis.reading.files import File
    from sglang_instrument.analysis.reading.records.lines import Line
    from sglang_instrument.analysis.run.opening import Run

_SCHEMA: Final[dict[str, Any]] = {
    "rid": pl.String,
    "server": pl.String,
    "scheduler": pl.String,
    "prefill_server": pl.String,
    "prefill_rid": pl.String,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "duration_sec": pl.Float64,
    "tokenize_sec": pl.Float64,
    "queue_sec": pl.Float64,
    "bootstrap_sec": pl.Float64,
    "prefill_sec": pl.Float64,
    "transfer_sec": pl.Float64,
    "decode_sec": pl.Float64,
    "retracted_sec": pl.Float64,
    "retractions": pl.Int64,
    "prompt_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "cached_host_tokens": pl.Int64,
    "cached_storage_tokens": pl.Int64,
    "completion_tokens": pl.Int64,
    "verifications": pl.Int64,
    "finish_reason": pl.String,
    "retracted_tokens": pl.Int64,
}


_TRANSITIONS: Final = {
    "scheduler_admit": "admit",
    "scheduler_first_tokens": "first",
    "scheduler_retract": "retract",
    "scheduler_preallocate": "preallocate",
    "scheduler_transfer": "transfer",
    "scheduler_prebuilt": "prebuilt",
}


_BEGIN_A_REQUEST: Final = (
    *("engine_request", "engine_stream", "server_generate"),
    *("engine_tokenize", "scheduler_receive"),
)


def engine_requests(run: Run, files: Sequence[File] | None = None) -> pl.DataFrame:
    """Return one row per request of the engine, by its `rid`, in the order of arrival.

    Args:
        run: The run.
        files: Files of workers to read as well, which have the tokenizer manager of an engine inside them.
            None: all files, if the engine's own processes log no ends of requests: in logs of version 0.2 and
            before, without a detokenizer (`skip_tokenizer_init`), only the tokenizer manager knows them.

    Returns:
        rid: with " (2)" behind it where the id was used again after its request had ended, not by an abort;
        server, scheduler: the stems of their files; prefill_server, prefill_rid: the server that read
        the prompt, if not that which wrote the reply, and the request's name there; start_us, end_us,
        duration_sec: from its arrival at the server, or the scheduler, to its answer, on the clock of the
        median worker (`round_trips.ahead_us`); tokenize_sec; queue_sec, prefill_sec, transfer_sec,
        decode_sec: from its arrival at the scheduler to its last token, on the scheduler's clock;
        transfer_sec: from the first token until its cache was on the server that writes; of the queue,
        bootstrap_sec until that server had room; retracted_sec: from a retraction to the next token, in no
        other part; retractions, after which retracted_tokens were computed again;
        prompt_tokens, of which cached_tokens were in the cache, and of these cached_host_tokens in the host's
        memory, cached_storage_tokens in a store beyond it; completion_tokens; verifications: passes that
        checked drafted tokens; finish_reason. Null where nothing was logged. SGLang's own health checks are
        left out.
    """
    requests: dict[str, EngineRequest] = {}
    halves: dict[str, EngineRequest] = {}
    logs_of_engines = sorted(engine_files(run), key=_is_no_scheduler)
    ahead = ahead_us(run)
    _collect(requests, halves, iter_records(run, logs_of_engines), ahead)
    if files is None:
        files = run.files if _lacks_ends(requests) else ()
    others = [file for file in files if file.place is not None and file not in logs_of_engines]
    _collect(requests, halves, iter_records(run, others, tuple(_HANDLERS)), ahead)
    _join_halves(requests, halves)
    tells_names = any(request.arrived is not None for request in requests.values())
    rows = [
        row
        for request in requests.values()
        if (row := request.row())["start_us"] is not None
        and not (tells_names and request.is_unknown_to_engine)
    ]
    _name_servers(rows, {request.rid for request in requests.values() if request.finished is not None})
    return pl.DataFrame(rows, schema=_SCHEMA, strict=False).sort("start_us", "rid")


def _is_no_scheduler(file: File) -> bool:
    """Sort schedulers first: they tell when an id is used again."""
    return file.place is None or not file.place.stem.startswith("scheduler")


def _name_servers(rows: Sequence[dict[str, Any]], finished: Collection[str]) -> None:
    """Give requests that only a scheduler logged the server of its other requests, if these have one.

    A scheduler that logs ends beside no server is the server itself: the Rust front end is a part of it.
    """
    servers: dict[str, set[str]] = {}
    for row in rows:
        if row["server"] is not None and row["scheduler"] is not None:
            servers.setdefault(row["scheduler"], set()).add(row["server"])
    for row in rows:
        if row["server"] is not None:
            continue
        known = servers.get(row["scheduler"], set())
        if len(known) == 1:
            (row["server"],) = known
        elif not known and row["rid"] in finished:
            row["server"] = row["scheduler"]


def _collect(
    requests: dict[str, EngineRequest],
    halves: dict[str, EngineRequest],
    records: Iterator[tuple[File, Line, EngineFields]],
    ahead: Mapping[str, int],
) -> None:
    """Add what records say of requests, on the clock that `ahead` aligns them to.

    Args:
        requests: By rid; of a request that two servers work on, what the one that writes the reply logged.
        halves: By rid, what processes that only read prompts logged.
        records: Of the processes.
        ahead: By process.
    """
    readers: set[str] = set()
    for file, line, fields in records:
        name = file.place.stem if file.place else ""
        if fields.mode == "prefill" or fields.bootstrapping is not None:
            readers.add(name)
        handler = _HANDLERS.get(line.event)
        if handler is None:
            continue
        line.start_us = (line.start_us or 0) - ahead.get(name, 0)
        group = halves if name in readers else requests
        for rid in rids_of(fields):
            handler(_request_of(group, rid, line), line, fields, name)


def _request_of(group: dict[str, EngineRequest], rid: str, line: Line) -> EngineRequest:
    """Return the request that a record is about; an id used again after its end is another request."""
    request = group.get(rid)
    if request is None:
        request = group[rid] = EngineRequest(rid)
        return request
    requests = [request]
    # A client's own id may read as a later use: "r7 (2)" beside "r7".
    while (later := group.get(f"{rid} ({len(requests) + 1})")) is not None and later.rid == rid:
        requests.append(later)
    start_us, end_us = line.start_us or 0, line.end_us
    if line.event in _BEGIN_A_REQUEST and requests[-1].is_over_before(start_us):
        another = EngineRequest(rid, use=len(requests) + 1)
        group[another.name] = another
        return another
    return min(reversed(requests), key=lambda request: request.distance_us((start_us + end_us) / 2))


def _join_halves(requests: dict[str, EngineRequest], halves: Mapping[str, EngineRequest]) -> None:
    """Give each request the half of the server that read its prompt; a half alone becomes a request."""
    for rid, half in halves.items():
        reply = requests.get(rid)
        if reply is not None and reply.arrived is None and reply.finished is None and half.server is None:
            half.server, half.called, half.answered = reply.server, reply.called, reply.answered
            del requests[rid]  # of the reader's own server, whose log does not say that it only reads
    rooms = {request.room: request for request in requests.values() if request.room is not None}
    for rid, half in halves.items():
        request = requests.get(rid) if half.room is None else rooms.get(half.room)
        if request is not None:
            request.read_by = half
        else:
            requests.setdefault(rid, half)


def _lacks_ends(requests: Mapping[str, EngineRequest]) -> bool:
    """Return whether some scheduler has no request with a known end."""
    schedulers = {request.scheduler for request in requests.values() if request.scheduler is not None}
    return bool(schedulers - {request.scheduler for request in requests.values() if request.is_ended})


def cached_engine_requests(run: Run) -> pl.DataFrame:
    """Return `engine_requests`, from the cache unless the run's files changed."""
    return with_later_columns(cached_table(run, "engine_requests", lambda: engine_requests(run)))


def called_requests(run: Run) -> pl.DataFrame:
    """Return `engine_requests` of all files."""
    return engine_requests(run, run.files)


def with_later_columns(table: pl.DataFrame) -> pl.DataFrame:
    """Add the columns that a table lacks because an earlier version kept it: their fields are not logged."""
    return table.with_columns(
        pl.lit(None, kind).alias(name) for name, kind in _SCHEMA.items() if name not in table.columns
    )


def with_whole_queue(requests: pl.DataFrame) -> pl.DataFrame:
    """Count what retractions cost as time in the queue, for those who ask when a server was full."""
    return requests.with_columns(queue_sec=pl.col("queue_sec") + pl.col("retracted_sec").fill_null(0.0))


def _on_request(request: EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    if line.event == "server_generate" and request.called is not None:
        return  # verl's server around the engine; the engine in it logged the same request
    request.server, request.called, request.answered = name, line.start_us, line.end_us
    request.is_of_list = not isinstance(fields.rid, str)
    if not request.is_of_list:  # a list has the sums of all
        request.completion_tokens = _known(fields.completion_tokens, request.completion_tokens)
        request.cached_tokens = _known(fields.cached_tokens, request.cached_tokens)
        request.cached_host_tokens = _known(fields.cached_host_tokens, request.cached_host_tokens)
        request.cached_storage_tokens = _known(fields.cached_storage_tokens, request.cached_storage_tokens)
        request.verifications = _known(fields.spec_verify_ct, request.verifications)
        reason = fields.finish_reason
        request.finish_reason = reason if isinstance(reason, str) else request.finish_reason
        if request.prompt_tokens is None:
            request.prompt_tokens = number(fields.prompt_tokens)


def _known(logged: Any, before: int | None) -> int | None:
    """Return what a reply says of its tokens, else what its scheduler said."""
    return before if (value := number(logged)) is None else value


def _on_wait(request: EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    """Take what the reply to one of several samples or prompts says; the call of all has only the sums."""
    request.server = name
    if request.completion_tokens is None or request.finished is not None:
        request.completion_tokens = number(fields.completion_tokens)
        request.cached_tokens = number(fields.cached_tokens)
        request.finish_reason = fields.finish_reason if isinstance(fields.finish_reason, str) else None


def _on_tokenize(request: EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    request.server, request.tokenize_sec = name, line.duration_sec


def _on_receive(request: EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    if request.arrived is None:  # later pipeline stages log it again
        request.scheduler, request.arrived = name, line.start_us
        request.prompt_tokens = number(fields.prompt_tokens)
        request.room = fields.room if type(fields.room) is int else None


def _on_transition(request: EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    what = _TRANSITIONS[line.event]
    moment = line.end_us if what == "first" else line.start_us or 0
    if request.scheduler in (None, name):
        request.transitions.append((moment, what))
        tokens = tokens_of(request.rid, fields) if what == "retract" else None
        if tokens is not None:
            request.retracted_tokens = (request.retracted_tokens or 0) + tokens


def _on_bootstrap(request: EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    if request.scheduler in (None, name):
        request.bootstrapped = line.start_us


def _on_abort(request: EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    if request.finish_reason is None and request.scheduler in (None, name):
        request.finish_reason, request.aborted_at_tokens = "abort", tokens_of(request.rid, fields)


def _on_finish(request: EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    """Take the end that the scheduler streamed; where its server logs the reply, that says more."""
    if request.scheduler not in (None, name):
        return  # of a request that two servers work on, one after the other, the one that decodes has the end
    request.finished = line.start_us
    if request.completion_tokens is None:
        request.completion_tokens = number(of_request(request.rid, fields, fields.reply_tokens))
        request.cached_tokens = number(of_request(request.rid, fields, fields.prefix_tokens))
    if request.cached_host_tokens is None:
        request.cached_host_tokens = number(of_request(request.rid, fields, fields.host_tokens))
    if request.cached_storage_tokens is None:
        request.cached_storage_tokens = number(of_request(request.rid, fields, fields.storage_tokens))
    if request.verifications is None:
        request.verifications = number(of_request(request.rid, fields, fields.verifications))
    reason = of_request(request.rid, fields, fields.finish_reasons)
    request.finish_reason = reason if isinstance(reason, str) else request.finish_reason


def _on_detokenize(request: EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    # Older logs name all requests of a batch in which one ends: the last batch has this request's own end.
    request.detokenized = max(line.end_us, request.detokenized or 0)


_HANDLERS: Final = {
    "engine_request": _on_request,
    "engine_stream": _on_request,
    "server_generate": _on_request,
    "engine_wait": _on_wait,
    "engine_tokenize": _on_tokenize,
    "scheduler_receive": _on_receive,
    "scheduler_bootstrap": _on_bootstrap,
    "scheduler_finish": _on_finish,
    "engine_detokenize": _on_detokenize,
    "scheduler_abort": _on_abort,
    **dict.fromkeys(_TRANSITIONS, _on_transition),
}
