"""Join calls that came through a gateway with the rollout's request that their header or session names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.records import engine_files, gateway_files, iter_records
from sglang_instrument.analysis.answers.engine.round_trips import ahead_us, of_worker
from sglang_instrument.analysis.digests.turns import LEAST_OVERLAP_US
from sglang_instrument.analysis.reading.records.engine_fields import EngineFields, number
from sglang_instrument.analysis.reading.sample_facts import version_of
from sglang_instrument.analysis.run.cached_tables import cached_table
from sglang_instrument.schema import GATEWAY_CALL

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

Row = dict[str, Any]

#: The columns of a call with its caller.
CALLS: Final[dict[str, Any]] = {
    "rid": pl.String,
    "step": pl.Int64,
    "validate": pl.Boolean,
    "worker": pl.Int64,
    "request_id": pl.String,
    "turn": pl.Int64,
    "event": pl.String,
    "called_us": pl.Int64,
    "call_sec": pl.Float64,
}
#: The columns of `gateway_calls`: also which attempt of the request it is, and what its reply was.
_SCHEMA: Final[dict[str, Any]] = {
    **CALLS,
    "source": pl.Int64,
    "role": pl.String,
    "attempt": pl.Int64,
    "response_tokens": pl.Int64,
    "finish_reason": pl.String,
    "weight_version": pl.Int64,
    "verifications": pl.Int64,
}
_SERVED: Final = ("engine_request", "engine_stream", GATEWAY_CALL)
_HEADERS: Final = ("traceparent", "request_header", "session")
_OF_REQUEST: Final = ("source", "role", "step", "validate", "worker", "request_id", "attempt")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def gateway_calls(run: Run) -> pl.DataFrame:
    """Return one row per call that a gateway made for a known request; from the cache if it can be.

    A header names a request if it holds its id (the setting `request_header`), or is the `traceparent` that a
    record of the request holds, or belongs to a trace that records of one request alone hold. A trainer's own
    gateway logs the session, whose id is that of a request. Of requests with the same id, it is the one that
    goes on when the call arrives. No call is joined by its time alone.

    Returns:
        rid; source, role, step, validate, worker, request_id, attempt: of the request; turn: calls that
        overlap are one, as samples of it; event, called_us, call_sec: as the server logged them, or the
        gateway, if it did, on the clock of the worker; response_tokens, finish_reason, weight_version,
        verifications: of the reply, null where it was not logged.
    """
    return cached_table(run, "calls_of_gateways", lambda: _made(run))


def _made(run: Run) -> pl.DataFrame:
    calls = list(_served(run))
    if not calls:
        return pl.DataFrame(schema=_SCHEMA)
    requests: dict[str, list[Row]] = {}
    for row in run.everything.of_workers().requests.iter_rows(named=True):
        requests.setdefault(row["request_id"], []).append(row)
    by_header, by_trace = _named_by_traces(run)
    rows = []
    for call, traceparent, header in calls:
        ids = {header} if header in requests else set()
        if traceparent is not None:
            ids = ids or by_header.get(traceparent, set()) or by_trace.get(_trace_of(traceparent), set())
        request = _only(requests.get(next(iter(ids)), []), call["called_us"]) if len(ids) == 1 else None
        if request is not None:
            rows.append({**call, **{name: request[name] for name in _OF_REQUEST}})
    table = pl.DataFrame(rows, schema=_SCHEMA, strict=False)
    # The gateway's own record of a call contains the server's.
    table = table.sort("call_sec", descending=True).unique("rid", keep="first", maintain_order=True)
    table = table.with_columns(pl.col("called_us") + of_worker(ahead_us(run))).sort("called_us", "rid")
    end_us = pl.col("called_us") + (pl.col("call_sec") * 1e6).cast(pl.Int64)
    reached_us = end_us.cum_max().shift(1).over(_OF_REQUEST)
    begins = (reached_us.is_null() | (reached_us - pl.col("called_us") <= LEAST_OVERLAP_US)).cast(pl.Int64)
    return table.with_columns(turn=begins.cum_sum().over(_OF_REQUEST) - 1)


def _served(run: Run) -> Iterator[tuple[Row, str | None, str | None]]:
    """Yield the calls that have a header or a session: with their traceparent, and the id of a request."""
    ahead = ahead_us(run)
    files = [*engine_files(run), *gateway_files(run)]
    for file, line, fields in iter_records(run, files, keys=_HEADERS):
        if line.event not in _SERVED or not isinstance(fields.rid, str) or line.duration_sec is None:
            continue
        stem = file.place.stem if file.place is not None else ""
        called_us = (line.start_us or 0) - ahead.get(stem, 0)
        call = {"rid": fields.rid, "event": line.event, "called_us": called_us, "call_sec": line.duration_sec}
        headers = (getattr(fields, name) for name in _HEADERS)
        traceparent, header, session = (value if isinstance(value, str) else None for value in headers)
        yield {**call, **_reply(fields)}, traceparent, header if session is None else session


def _reply(fields: EngineFields) -> Row:
    """Return what a record says of the reply."""
    tokens = fields.completion_tokens if fields.generated_tokens is None else fields.generated_tokens
    version = None if fields.weight_version is None else version_of(fields.weight_version)
    return {
        "response_tokens": number(tokens),
        "finish_reason": fields.finish_reason if isinstance(fields.finish_reason, str) else None,
        "weight_version": version,
        "verifications": number(fields.spec_verify_ct),
    }


def _named_by_traces(run: Run) -> tuple[Mapping[str, set[str]], Mapping[str, set[str]]]:
    """Return the ids of requests by the traceparents, and by the traces, that their records hold."""
    headers: dict[str, set[str]] = {}
    traces: dict[str, set[str]] = {}
    of_engines = engine_files(run)
    files = [file for file in run.files if file.place is not None and file not in of_engines]
    for _, _, fields in iter_records(run, files, keys=("traceparent",)):
        trace = _trace_of(fields.traceparent) if isinstance(fields.traceparent, str) else ""
        if trace and fields.request_id is not None:
            headers.setdefault(fields.traceparent, set()).add(str(fields.request_id))
            traces.setdefault(trace, set()).add(str(fields.request_id))
    return headers, traces


def _trace_of(traceparent: str) -> str:
    """Return the trace of a header of W3C Trace Context; "" if it is none."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return match[1] if match else ""


def _only(requests: list[Row], called_us: int) -> Row | None:
    """Return the only request, or the only one that goes on at this time."""
    if len(requests) == 1:
        return requests[0]
    times = [(row["start_us"] or 0, row["end_us"] or 0) for row in requests]
    ongoing = [row for row, (start, end) in zip(requests, times, strict=True) if start <= called_us <= end]
    return ongoing[0] if len(ongoing) == 1 else None
