"""Weight updates by part and server, and which weights made replies and cached prefixes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _lineage(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.weights.lineage import lineage

    return lineage(run)


def _number(row: Mapping[str, Any]) -> str:
    return str(row["update"]) if row["is_done"] else f"{row['update']} failed"


_PARTS: Final = (
    Column("pause_sec", "time in which generation was being paused", "time"),
    Column("drain_sec", "time in which an engine waited for its calls to end", "time", gives_way=3),
    Column("transfer_sec", "time in which some server received weights", "time"),
    Column("resume_sec", "time in which generation was being resumed", "time", gives_way=2),
    Column("flush_sec", "time in which caches were flushed", "time", gives_way=1),
)
_DONE: Final = Column("is_done", "false if a transfer failed", "flag", terminal=False)
_START: Final = Column("start_us", "its begin", "moment", terminal=False)
_END: Final = Column("end_us", "its end", "moment", terminal=False)
UPDATES: Final = Table(
    name="weight_updates",
    row="an update of the weights, in the order of time",
    commands=("weights",),
    columns=(
        Column("update", "its number in the log, from 1", "count", cell=_number, shown_as="words"),
        Column(
            "weight_version",
            "the version that the trainer or the engine gave these weights",
            former_title="version",
        ),
        Column("step", "of the trainer's record, if one tells", "id", terminal=False),
        _START,
        _END,
        Column(
            "duration_sec",
            "from its first record to its last",
            "time",
            formerly="wall_sec",
            former_title="wall",
        ),
        *_PARTS,
        _DONE,
        Column("servers", "its parts by server", "list", terminal=False),
        Column("running", "calls that ran when the update began", "count", terminal=False),
        Column(
            "in_flight",
            "calls in flight while generation stood still",
            "count",
            title="stalled calls",
            former_title="stalled",
        ),
        Column("lost_sec", "the time that these calls stood still, summed", "time", title="stalled"),
        Column("resumed", "calls that were aborted, and whose request went on", "count", terminal=False),
        Column("aborted", "calls that ended as aborted, and whose request did not go on", "count"),
        Column("aborted_tokens", "what these had written", "count", terminal=False),
        Column(
            "last_server",
            "the server that was done last",
            gives_way=5,
            formerly="last",
        ),
        Column(
            "last_server_late_sec",
            "how much later than the server before it",
            "time",
            gives_way=4,
            formerly="last_by_sec",
            former_title="by",
        ),
    ),
)
UPDATE_SERVERS: Final = Table(
    name="weight_update_servers",
    row="a server in one update, the last one last",
    commands=("weights",),
    option="--update",
    columns=(
        Column("server", "the server, or the process that speaks to it"),
        *_PARTS,
        _START,
        _END,
        _DONE,
    ),
)
LINEAGE_BY_WEIGHTS: Final = Table(
    name="lineage_by_weights",
    row="replies by the weights with which they began; only a terminal has it",
    commands=("weights",),
    option="--lineage",
    columns=(
        Column(
            "first_weights",
            "the version with which the reply began, or the number of its update",
            former_title="weights",
        ),
        Column("calls", "how many calls", "count"),
        Column(
            "mixed",
            "calls whose reply was written with more than one version",
            "count",
            title="mixed weights",
        ),
        Column("completion_tokens", "tokens of the replies", "count", gives_way=1, former_title="tokens"),
        Column("cached_tokens", "tokens of the prompts that came from the cache", "count"),
        Column(
            "stale_least", "at least so many of these are of older weights", "count", title="at least stale"
        ),
        Column("stale_most", "at most so many of these are of older weights", "count", title="at most stale"),
        Column("wrong_labels", "replies whose label contradicts the updates", "count"),
    ),
)
LINEAGE: Final = Table(
    name="lineage",
    row="a call of an engine; a terminal shows those with a prefix of older weights, or a wrong label",
    commands=("weights",),
    option="--lineage",
    make=_lineage,
    columns=(
        Column("rid", "the engine's name of the call"),
        Column("request_id", "of its caller", terminal=False),
        Column("turn", "of its caller", "ordinal", terminal=False),
        Column("step", "of its caller", "id", terminal=False),
        Column("server", "the server", terminal=False),
        Column("scheduler", "the scheduler", gives_way=1),
        _START,
        _END,
        Column("first_weights", "the version with which the reply began", former_title="weights"),
        Column("weights", "the version with which it ended", terminal=False),
        Column(
            "prefix_weights",
            "the oldest version of which its cached prefix may be",
            former_title="prefix",
        ),
        Column("updates_during", "updates during the reply", "count", terminal=False),
        Column("updates_since_flush", "updates since its cache was flushed", "count", terminal=False),
        Column("prompt_tokens", "tokens of its prompt", "count", terminal=False),
        Column("cached_tokens", "tokens of its prompt that came from the cache", "count"),
        Column(
            "stale_least", "at least so many of these are of older weights", "count", title="at least stale"
        ),
        Column("stale_most", "at most so many of these are of older weights", "count", title="at most stale"),
        Column("completion_tokens", "tokens of its reply", "count", terminal=False),
        Column("label", "the version that the reply says"),
        Column("label_is_wrong", "whether the updates contradict the label", "flag", terminal=False),
    ),
)
