"""Collect what the engine's processes logged of each request: queue, prefill, decode, retractions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl

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
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "duration_sec": pl.Float64,
    "tokenize_sec": pl.Float64,
    "queue_sec": pl.Float64,
    "prefill_sec": pl.Float64,
    "decode_sec": pl.Float64,
    "retracted_sec": pl.Float64,
    "retractions": pl.Int64,
    "prompt_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "cached_host_tokens": pl.Int64,
    "cached_storage_tokens": pl.Int64,
    "completion_tokens": pl.Int64,
    "finish_reason": pl.String,
    "retracted_tokens": pl.Int64,
}


@dataclass
class _EngineRequest:
    """What the engine's processes did for one request; times are microseconds."""

    rid: str
    server: str | None = None
    scheduler: str | None = None
    arrived: int | None = None
    called: int | None = None
    answered: int | None = None
    finished: int | None = None
    detokenized: int | None = None
    tokenize_sec: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cached_host_tokens: int | None = None
    cached_storage_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    aborted_at_tokens: int | None = None
    retracted_tokens: int | None = None
    is_of_list: bool = False
    transitions: list[tuple[int, str]] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Return a row of `engine_requests`."""
        end = _first_known(self.answered, self.detokenized, self.finished)
        spent = self._spent(_first_known(self.finished, self.detokenized, end))
        start = min((time for time in (self.called, self.arrived) if time is not None), default=None)
        return {
            "rid": self.rid,
            "server": self.server,
            "scheduler": self.scheduler,
            "start_us": start,
            "end_us": end,
            "duration_sec": None if start is None or end is None else max(0, end - start) / 1e6,
            "tokenize_sec": self.tokenize_sec,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "cached_host_tokens": self.cached_host_tokens,
            "cached_storage_tokens": self.cached_storage_tokens,
            "completion_tokens": self._generated,
            "finish_reason": self.finish_reason,
            "retracted_tokens": self.retracted_tokens,
            "retractions": None if self.arrived is None else self._retractions,
            **spent,
        }

    @property
    def _generated(self) -> int | None:
        """Its tokens; those until its abort, if it was aborted and its caller did not wait for the end."""
        if self.completion_tokens is not None or self.aborted_at_tokens is None:
            return self.completion_tokens
        return max(0, self.aborted_at_tokens - (self.prompt_tokens or 0))

    @property
    def _retractions(self) -> int:
        return sum(what == "retract" for _, what in self.transitions)

    @property
    def is_unknown_to_engine(self) -> bool:
        """Whether only the caller's list names it: the engine gives each of several samples another name."""
        return self.is_of_list and self.arrived is None and self.detokenized is None and self.finished is None

    @property
    def is_ended(self) -> bool:
        """Whether any process logged its end."""
        return any(time is not None for time in (self.answered, self.finished, self.detokenized))

    def _spent(self, end: int | None) -> dict[str, float | None]:
        """Split the time from arrival to end into queue, prefill, decode and what a retraction cost.

        A chunked prompt is admitted several times before its first token; the time between chunks is part of
        the prefill. A retracted request queues, is admitted and is prefilled again: that is the retraction.
        """
        if self.arrived is None:
            return {}
        spent: dict[str, int] = {}
        doing, since = "queue", self.arrived
        ordered = sorted(self.transitions)
        for (moment, what), (_, then) in zip(ordered, [*ordered[1:], (0, "")], strict=False):
            if (what, then) == ("first", "admit"):
                continue  # a chunk of a prompt ended, without a token
            spent[doing] = spent.get(doing, 0) + max(0, moment - since)
            doing = "retracted" if (doing, what) == ("retracted", "admit") else _NEXT[what]
            since = max(moment, since)
        if doing in ("prefill", "retracted") and self.completion_tokens:
            spent.pop(doing, None)  # a killed scheduler did not write the record of its first token
        elif end is not None:
            spent[doing] = spent.get(doing, 0) + max(0, end - since)
        return {
            f"{kind}_sec": spent[kind] / 1e6 if kind in spent else None
            for kind in ("queue", "prefill", "decode", "retracted")
        }


def _first_known(*times: int | None) -> int | None:
    return next((time for time in times if time is not None), None)


#: What a request does after each transition.
_NEXT: Final = {"admit": "prefill", "first": "decode", "retract": "retracted"}
_TRANSITIONS: Final = {
    "scheduler_admit": "admit",
    "scheduler_first_tokens": "first",
    "scheduler_retract": "retract",
}


def engine_requests(run: Run, files: Sequence[File] | None = None) -> pl.DataFrame:
    """Return one row per request of the engine, by its `rid`, in the order of arrival.

    Args:
        run: The run.
        files: Files of workers to read as well, which have the tokenizer manager of an engine inside them.
            None: all files, if the engine's own processes log no ends of requests: in logs of version 0.2 and
            before, without a detokenizer (`skip_tokenizer_init`), only the tokenizer manager knows them.

    Returns:
        rid; server, scheduler: the stems of their files; start_us, end_us, duration_sec: from its arrival at
        the server, or the scheduler, to its answer, on the clock of the median worker
        (`round_trips.ahead_us`); tokenize_sec; queue_sec, prefill_sec, decode_sec: from
        its arrival at the scheduler to its last token, on the scheduler's clock, without retracted_sec: from
        a retraction to the next token; retractions, after which retracted_tokens were computed again;
        prompt_tokens, of which cached_tokens were in the cache, and of these cached_host_tokens in the host's
        memory, cached_storage_tokens in a store beyond it; completion_tokens; finish_reason. Null where
        nothing was logged. SGLang's own health checks are left out.
    """
    requests: dict[str, _EngineRequest] = {}
    logs_of_engines = engine_files(run)
    ahead = ahead_us(run)
    _collect(requests, iter_records(run, logs_of_engines), ahead)
    if files is None:
        files = run.files if _lacks_ends(requests) else ()
    others = [file for file in files if file.place is not None and file not in logs_of_engines]
    _collect(requests, iter_records(run, others, tuple(_HANDLERS)), ahead)
    tells_names = any(request.arrived is not None for request in requests.values())
    rows = [
        row
        for request in requests.values()
        if (row := request.row())["start_us"] is not None
        and not (tells_names and request.is_unknown_to_engine)
    ]
    _name_servers(rows, {request.rid for request in requests.values() if request.finished is not None})
    return pl.DataFrame(rows, schema=_SCHEMA, strict=False).sort("start_us", "rid")


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
    requests: dict[str, _EngineRequest],
    records: Iterator[tuple[File, Line, EngineFields]],
    ahead: Mapping[str, int],
) -> None:
    """Add what records say of requests, on the clock that `ahead` aligns them to."""
    for file, line, fields in records:
        handler = _HANDLERS.get(line.event)
        if handler is None:
            continue
        name = file.place.stem if file.place else ""
        line.start_us = (line.start_us or 0) - ahead.get(name, 0)
        for rid in rids_of(fields):
            request = requests.get(rid)
            if request is None:
                request = requests[rid] = _EngineRequest(rid)
            handler(request, line, fields, name)


def _lacks_ends(requests: Mapping[str, _EngineRequest]) -> bool:
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


def _on_request(request: _EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    if line.event == "server_generate" and request.called is not None:
        return  # verl's server around the engine; the engine in it logged the same request
    request.server, request.called, request.answered = name, line.start_us, line.end_us
    request.is_of_list = not isinstance(fields.rid, str)
    if not request.is_of_list:  # a list has the sums of all
        request.completion_tokens = _known(fields.completion_tokens, request.completion_tokens)
        request.cached_tokens = _known(fields.cached_tokens, request.cached_tokens)
        request.cached_host_tokens = number(fields.cached_host_tokens)
        request.cached_storage_tokens = number(fields.cached_storage_tokens)
        reason = fields.finish_reason
        request.finish_reason = reason if isinstance(reason, str) else request.finish_reason
        if request.prompt_tokens is None:
            request.prompt_tokens = number(fields.prompt_tokens)


def _known(logged: Any, before: int | None) -> int | None:
    """Return what a reply says of its tokens, else what its scheduler said."""
    return before if (value := number(logged)) is None else value


def _on_wait(request: _EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    """Take what the reply to one of several samples or prompts says; the call of all has only the sums."""
    request.server = name
    if request.completion_tokens is None or request.finished is not None:
        request.completion_tokens = number(fields.completion_tokens)
        request.cached_tokens = number(fields.cached_tokens)
        request.finish_reason = fields.finish_reason if isinstance(fields.finish_reason, str) else None


def _on_tokenize(request: _EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    request.server, request.tokenize_sec = name, line.duration_sec


def _on_receive(request: _EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    if request.arrived is None:  # later pipeline stages log it again
        request.scheduler, request.arrived = name, line.start_us
        request.prompt_tokens = number(fields.prompt_tokens)


def _on_transition(request: _EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    what = _TRANSITIONS[line.event]
    moment = line.end_us if what == "first" else line.start_us or 0
    if request.scheduler in (None, name):
        request.transitions.append((moment, what))
        tokens = tokens_of(request.rid, fields) if what == "retract" else None
        if tokens is not None:
            request.retracted_tokens = (request.retracted_tokens or 0) + tokens


def _on_abort(request: _EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    if request.finish_reason is None and request.scheduler in (None, name):
        request.finish_reason, request.aborted_at_tokens = "abort", tokens_of(request.rid, fields)


def _on_finish(request: _EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    """Take the end that the scheduler streamed; where its server logs the reply, that says more."""
    if request.scheduler not in (None, name):
        return  # of a request that two servers work on, one after the other, the one that decodes has the end
    request.finished = line.start_us
    if request.completion_tokens is None:
        request.completion_tokens = number(of_request(request.rid, fields, fields.reply_tokens))
        request.cached_tokens = number(of_request(request.rid, fields, fields.prefix_tokens))
    reason = of_request(request.rid, fields, fields.finish_reasons)
    request.finish_reason = reason if isinstance(reason, str) else request.finish_reason


def _on_detokenize(request: _EngineRequest, line: Line, fields: EngineFields, name: str) -> None:
    # Older logs name all requests of a batch in which one ends: the last batch has this request's own end.
    request.detokenized = max(line.end_us, request.detokenized or 0)


_HANDLERS: Final = {
    "engine_request": _on_request,
    "engine_stream": _on_request,
    "server_generate": _on_request,
    "engine_wait": _on_wait,
    "engine_tokenize": _on_tokenize,
    "scheduler_receive": _on_receive,
    "scheduler_finish": _on_finish,
    "engine_detokenize": _on_detokenize,
    "scheduler_abort": _on_abort,
    **dict.fromkeys(_TRANSITIONS, _on_transition),
}
