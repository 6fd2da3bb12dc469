"""Requests as SGLang's own processes logged them, by `rid`; and the engine's calls of one request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import END, OF_ATTEMPT, START, VALIDATE
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.engine.join import engine_request_table, has_engine_logs

    return engine_request_table(run) if has_engine_logs(run) else ENGINE_REQUESTS.of_rows([])


_QUEUE: Final = Column("queue_sec", "waiting for a place in the running batch", "time")
_PREFILL: Final = Column("prefill_sec", "reading the prompt, up to the first token", "time")
_BOOTSTRAP: Final = Column(
    "bootstrap_sec",
    "of the queue: until the server that writes the reply had room, where prefill and decode are apart",
    "time",
    terminal=False,
)
_TRANSFER: Final = Column(
    "transfer_sec",
    "from the first token until its cache was on the server that writes the reply",
    "time",
    3,
    if_any=True,
)
_PREFILL_SERVER: Final = Column(
    "prefill_server", "the log of the server that read its prompt, if it is another", gives_way=7, if_any=True
)
_PREFILL_RID: Final = Column("prefill_rid", "the name that it has on that server", terminal=False)
_DECODE: Final = Column("decode_sec", "writing the reply, from its first token to its last", "time")
_RETRACTED: Final = Column(
    "retracted_sec",
    "from a retraction to the next token: waiting again, and reading prompt and reply again",
    "time",
    4,
)
_OUTSIDE: Final = Column(
    "outside_sec", "the rest of the call: tokenizers, transport, waiting for the caller's loop", "time", 2
)
_RETRACTIONS: Final = Column(
    "retractions",
    "how often the engine took it out of its batch to free memory",
    "count",
    4,
    former_title="retracted",
)
_PROMPT: Final = Column("prompt_tokens", "tokens of the prompt", "count", 2, former_title="prompt")
_CACHED: Final = Column("cached_tokens", "of these, tokens that were in the cache", "count", 5)
_COMPLETION: Final = Column("completion_tokens", "tokens of the reply", "count", former_title="written")
_VERIFICATIONS: Final = Column(
    "verifications", "passes of the model that checked drafted tokens", "count", gives_way=6, if_any=True
)
_RID: Final = Column("rid", "the engine's id of the request")
_TURN: Final = Column("turn", "the turn that called", "ordinal")

ENGINE_REQUESTS: Final = Table(
    name="engine_requests",
    row="a request of the engine, the slowest first: a turn of a rollout is one of them",
    commands=("requests",),
    option="--engine",
    make=_make,
    is_stored=True,
    columns=(
        _RID,
        Column("step", "the training step in whose time it began", "id", gives_way=3),
        VALIDATE,
        Column("server", "the server's log, such as server_0", terminal=False),
        Column("scheduler", "the log of the scheduler that ran it, such as scheduler_0_tp0", gives_way=1),
        _PREFILL_SERVER,
        _PREFILL_RID,
        START,
        END,
        Column("duration_sec", "from its arrival to its end", "time", former_title="time"),
        Column("tokenize_sec", "its time in the tokenizer", "time", terminal=False),
        _QUEUE,
        _BOOTSTRAP,
        _PREFILL,
        _TRANSFER,
        _DECODE,
        _RETRACTED,
        _RETRACTIONS,
        Column(
            "retracted_tokens",
            "tokens that the engine computed again after it took the request out of its batch",
            "count",
            terminal=False,
        ),
        _PROMPT,
        _CACHED,
        Column(
            "cached_host_tokens",
            "of the cached ones, those in the memory of the host (HiCache)",
            "count",
            terminal=False,
        ),
        Column(
            "cached_storage_tokens",
            "of the cached ones, those in a store beyond it (HiCache)",
            "count",
            terminal=False,
        ),
        _COMPLETION,
        _VERIFICATIONS,
        Column("finish_reason", "why the reply ended", gives_way=6),
    ),
)

REPORTED_CALLS: Final = Table(
    name="reported_calls",
    row="a call of one request, as the engine reported it in its reply",
    commands=("requests",),
    option="--request",
    columns=(
        Column("event", "the event of the caller", terminal=False),
        OF_ATTEMPT,
        _TURN,
        Column("duration_sec", "of the call, as the caller measured it", "time", former_title="time"),
        _QUEUE,
        Column(
            "running_sec", "in the batch: from the end of the queue to its last token", "time", gives_way=3
        ),
        _PREFILL,
        _DECODE,
        _OUTSIDE,
        _PROMPT,
        Column("cached_tokens", "of these, tokens that were in the cache", "count", 4, former_title="cached"),
        _COMPLETION,
        _RETRACTIONS,
    ),
)

LOGGED_CALLS: Final = Table(
    name="logged_calls",
    row="a call of one request, as SGLang's own processes logged it",
    commands=("requests",),
    option="--request",
    columns=(
        Column("step", "of the caller", "id", terminal=False),
        VALIDATE,
        Column("worker", "of the caller", "id", terminal=False),
        Column("request_id", "of the caller", terminal=False),
        OF_ATTEMPT,
        _TURN,
        Column("event", "the event of the caller", terminal=False),
        Column("rid", "the engine's id of the call", terminal=False),
        Column("server", "the server's log", terminal=False),
        Column("scheduler", "the log of the process that ran the call", gives_way=1),
        _PREFILL_SERVER,
        _PREFILL_RID,
        Column("called_us", "when the caller called", "moment", terminal=False),
        START,
        END,
        Column("call_sec", "of the call, as the caller measured it", "time", former_title="time"),
        Column("duration_sec", "of the engine's request", "time", terminal=False),
        Column("tokenize_sec", "its time in the tokenizer", "time", terminal=False),
        _QUEUE,
        _BOOTSTRAP,
        _PREFILL,
        _TRANSFER,
        _DECODE,
        _RETRACTED,
        _OUTSIDE,
        _RETRACTIONS,
        Column("retracted_tokens", "tokens that were computed again", "count", terminal=False),
        Column("prompt_tokens", "tokens of the prompt", "count", terminal=False),
        Column("cached_tokens", "of these, tokens that were in the cache", "count", terminal=False),
        Column("completion_tokens", "tokens of the reply", "count", terminal=False),
        Column("finish_reason", "why the reply ended", terminal=False),
        Column("why", "what made the call long", cell=lambda row: row["why"] or None),
    ),
)
