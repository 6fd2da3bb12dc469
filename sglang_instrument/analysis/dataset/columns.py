"""Name the tables of a dataset and document their columns: types, meanings, and what null says."""

from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.schema import PHASES


class Column(NamedTuple):
    """A column of a table: its type, and its meaning in words."""

    kind: Any
    meaning: str


_STEP: Final = {
    "step": Column(pl.Int64, "training step; null where it is not known"),
    "validate": Column(pl.Boolean, "whether it is validation"),
}
_WORKER: Final = {"worker": Column(pl.Int64, "rank of the worker")}
_REQUEST: Final = {
    "request_id": Column(pl.String, "as logged; unique within step, validate and worker"),
}
_TIMES: Final = {
    "start_us": Column(pl.Int64, "start, in microseconds since the Unix epoch (UTC)"),
    "end_us": Column(pl.Int64, "end, in microseconds since the Unix epoch (UTC)"),
    "duration_sec": Column(pl.Float64, "wall time in seconds"),
}
_KINDS: Final = {
    "engine_sec": Column(pl.Float64, "time in calls of the engine"),
    "tool_sec": Column(pl.Float64, "time in tools; concurrent ones count one by one"),
    "interaction_sec": Column(pl.Float64, "time in interactions"),
    "reward_sec": Column(pl.Float64, "time in rewards"),
}
_OF_STEP: Final = {
    "duration_sec": Column(pl.Float64, "duration; of a step, the longest of its workers'"),
    "busy_sec": Column(pl.Float64, "duration without the time at barriers"),
    "interval_sec": Column(pl.Float64, "from this start to the next step's; null for the last of a launch"),
    "unaccounted_sec": Column(pl.Float64, "time that no part of the step covers"),
    "start_us": Column(pl.Int64, "earliest start, in microseconds since the Unix epoch (UTC)"),
    "requests": Column(pl.Int64, "number of requests"),
    "response_tokens": Column(pl.Int64, "tokens that the model wrote; null if not logged"),
    "p50_sec": Column(pl.Float64, "median duration of the requests"),
    "p99_sec": Column(pl.Float64, "99th percentile of the requests' durations"),
    "max_sec": Column(pl.Float64, "longest request"),
    "tail": Column(pl.Float64, "share of the time in which the last 20 % of the requests run"),
}
_SHARES: Final = {
    f"share_{phase}": Column(pl.Float64, f"share of phase {phase} in the workers' time, from 0 to 1")
    for phase in PHASES
}

#: The tables and their columns, in order. docs/reference/dataset.md shows them.
TABLES: Final[dict[str, dict[str, Column]]] = {
    "spans": {
        "run_id": Column(pl.String, "launch that wrote it; in files a partition; null without a header"),
        "step": Column(pl.Int64, "training step; in files a partition; null for the engine's processes"),
        "validate": Column(pl.Boolean, "whether it is validation"),
        "role": Column(pl.String, "worker, trainer, server, scheduler ...: from the log file's name"),
        "worker": Column(pl.Int64, "rank of the process"),
        "event": Column(pl.String, "name of the event"),
        "phase": Column(pl.String, "phase of the event"),
        "request_id": Column(pl.String, "as logged; null outside of requests"),
        "turn": Column(pl.Int64, "from 0; null outside of turns"),
        **_TIMES,
        "duration_sec": Column(pl.Float64, "wall time in seconds; null for instant events"),
        "timestamp": Column(pl.Datetime("us", "UTC"), "end, as a timestamp"),
        "self_sec": Column(
            pl.Float64, "duration less the time that spans inside it cover; null for instant events"
        ),
        "wall_sec": Column(
            pl.Float64, "its part of its worker's step; they add up to the step; null for instant events"
        ),
        "active_sec": Column(pl.Float64, "time in which it held the event loop; null if not measured"),
        "device_sec": Column(pl.Float64, "GPU time; null if not measured"),
        "error": Column(pl.String, "type of the exception; null if none"),
        "tool": Column(pl.String, "name of the tool"),
        "turns": Column(pl.Int64, "turns of a request, in the request's own span"),
        "finish_reason": Column(pl.String, "why the reply ended"),
        "response_tokens": Column(pl.Int64, "tokens that the model wrote"),
        "reward": Column(pl.Float64, "as logged"),
        "task": Column(pl.Int64, "number of the asyncio task or thread, within its process"),
        "counts_for": Column(
            pl.String, "phase; of phase other, that of the work around it; null for instant events"
        ),
        "span": Column(pl.Int64, "unique within its file and run; null for instant events"),
        "parent": Column(pl.Int64, "number of the span that it ran inside; null for the outermost"),
        "concurrent": Column(pl.Boolean, "whether the parent is in another task"),
        "file": Column(pl.String, "log file that it was read from"),
        "extra": Column(pl.String, "all fields, as JSON, as they stand in the log; null if it has none"),
        "other_keys": Column(pl.String, "keys of the line without a column, as JSON; null if it has none"),
    },
    "requests": {
        **_STEP,
        **_WORKER,
        **_REQUEST,
        **_TIMES,
        "turns": Column(pl.Int64, "number of turns"),
        "response_tokens": Column(pl.Int64, "tokens of all its replies"),
        "finish_reason": Column(pl.String, "as logged"),
        "reward": Column(pl.Float64, "as logged"),
        "error": Column(pl.String, "type of the exception; null if none"),
        "weight_version": Column(pl.Int64, "weights of its last reply; null if not logged, or no number"),
        "first_weight_version": Column(pl.Int64, "weights with which it began, or of its first reply"),
        "group": Column(pl.String, "id of its prompt's group; null if not logged"),
        "sample": Column(pl.String, "the trainer's own id of the sample; null if not logged"),
        "resumed_tokens": Column(pl.Int64, "of response_tokens, those that an earlier request had made"),
        **_KINDS,
        "rest_sec": Column(pl.Float64, "duration less all of these kinds of work"),
    },
    "turns": {
        **_STEP,
        **_WORKER,
        **_REQUEST,
        "turn": Column(pl.Int64, "from 0"),
        "event": Column(pl.String, "its longest part"),
        "start_us": _TIMES["start_us"],
        "end_us": _TIMES["end_us"],
        "response_tokens": Column(pl.Int64, "tokens of its reply"),
        "weight_version": Column(pl.Int64, "weights of its reply; null if not logged, or no number"),
        "verifications": Column(
            pl.Int64, "passes of the model that checked drafted tokens; null if not logged"
        ),
        **_KINDS,
    },
    "steps": {
        **_STEP,
        "workers": Column(pl.Int64, "number of workers"),
        "slowest_worker": Column(pl.Int64, "the worker with the largest busy_sec"),
        **_OF_STEP,
        "wall_sec": Column(pl.Float64, "from its begin to the begin of the next step"),
        **{name: Column(pl.Float64, f"part of wall_sec: {one.meaning}") for name, one in _KINDS.items()},
        "between_steps_sec": Column(pl.Float64, "part of wall_sec: between the steps"),
        "rest_sec": Column(pl.Float64, "part of wall_sec: everything else"),
        "waiting": Column(pl.Float64, "share of the workers' time in which one waited for another"),
        **_SHARES,
    },
    "workers": {
        **_STEP,
        **_WORKER,
        **_OF_STEP,
        "wait_sec": Column(pl.Float64, "time at barriers; null where it met none"),
        "blame_sec": Column(pl.Float64, "waiting of others that it caused; null without evidence"),
        **_SHARES,
    },
    "engine_requests": {
        **_STEP,
        "rid": Column(pl.String, "the engine's own id of the request"),
        "server": Column(pl.String, "the server's log, such as server_0"),
        "scheduler": Column(pl.String, "the scheduler's log, such as scheduler_0_tp0"),
        **_TIMES,
        "tokenize_sec": Column(pl.Float64, "time in the tokenizer"),
        "queue_sec": Column(pl.Float64, "time in the scheduler's queue"),
        "prefill_sec": Column(pl.Float64, "time in prefill"),
        "decode_sec": Column(pl.Float64, "time in decode"),
        "retractions": Column(pl.Int64, "how often the scheduler took it back"),
        "prompt_tokens": Column(pl.Int64, "tokens of the prompt"),
        "cached_tokens": Column(pl.Int64, "of these, tokens found in the cache"),
        "completion_tokens": Column(pl.Int64, "tokens that the engine generated"),
    },
    "processes": {
        "process": Column(pl.String, "role and rank, such as worker_3"),
        "run_id": Column(pl.String, "the launch"),
        "role": Column(pl.String, "worker, trainer, server ..."),
        "rank": Column(pl.Int64, "its rank; null if it has none"),
        "host": Column(pl.String, "where it ran"),
        "pid": Column(pl.Int64, "process id"),
        "actor": Column(pl.String, "class of its Ray actor"),
        "state": Column(pl.String, "running, ended, ended abruptly; null if it was on another host"),
        "recorded": Column(pl.Int64, "records that it took"),
        "dropped": Column(pl.Int64, "records that were lost"),
        "versions": Column(pl.String, "versions of packages, as JSON"),
    },
    "settings": {
        "process": Column(pl.String, "role and rank, such as worker_3"),
        "role": Column(pl.String, "worker, trainer, server ...; null if it recorded nothing"),
        "source": Column(
            pl.String, "server_args, config or args of the trainer, sglang_instrument, machine or packages"
        ),
        "setting": Column(pl.String, "its name, with dots: actor_rollout_ref.rollout.n"),
        "value": Column(pl.String, "its value as text; null if it is None"),
        "number": Column(pl.Float64, "its value if it is a number; true is 1"),
    },
    "findings": {
        "cause": Column(pl.String, "the cause, as docs/reference/verdict.md names it"),
        "scope": Column(pl.String, "request, worker, step or run"),
        **_STEP,
        "worker": Column(pl.Int64, "the worker; null where it concerns all"),
        "request_id": Column(pl.String, "the request; null where it is none"),
        "event": Column(pl.String, "the event or kind of work that took the time"),
        "lost_sec": Column(pl.Float64, "how much sooner the step would have ended without it"),
        "sentence": Column(pl.String, "the finding in words"),
        "advice": Column(pl.String, "what to look at next"),
        "evidence": Column(pl.String, "the numbers behind it, as JSON"),
    },
}
#: What only SQL has: made of other tables when it is asked.
VIEWS: Final[dict[str, dict[str, Column]]] = {
    "fields": {
        "event": Column(pl.String, "name of the event"),
        "field": Column(pl.String, "name of the field: a key of `extra`, or one of `other_keys`"),
        "type": Column(pl.String, "number, string, boolean, array, object or null; a row for each"),
        "count": Column(pl.Int64, "how many spans and instant events have it"),
        "example": Column(pl.Float64, "the largest of its numbers; null if it has none"),
    },
}
#: Columns of `spans` that stand in the folders' names instead of the files, and their types.
PARTITIONS: Final = ("run_id", "step")


def schema_of(table: str) -> dict[str, Any]:
    """Return the columns of a table and their types."""
    return {name: column.kind for name, column in TABLES[table].items()}


def fitted(table: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the documented columns of a table alone, in order and with their types."""
    return rows.select(pl.col(name).cast(kind) for name, kind in schema_of(table).items())
