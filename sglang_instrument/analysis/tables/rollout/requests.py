"""Requests: how long each took, its kinds of work, its tokens, its reward, its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.from_fields import REQUEST, with_logged_fields
from sglang_instrument.analysis.tables.shared import (
    ATTEMPT,
    END,
    FIELDS,
    START,
    STEP,
    UNENDED,
    VALIDATE,
    WORKER,
)
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.asynchronous.used_steps import with_trained_steps
    from sglang_instrument.analysis.answers.requests import request_table

    rows = with_trained_steps(request_table(run.everything), run.everything)
    rows = with_logged_fields(REQUESTS, run, rows, REQUEST)
    return rows.sort("validate", "step", "worker", "start_us")


def _versions(row: Mapping[str, Any]) -> str | None:
    """Return the first and the last version, if they differ."""
    versions = (row["first_weight_version"], row["weight_version"])
    known = [str(version) for version in dict.fromkeys(versions) if version is not None]
    return " to ".join(known) or None


REQUESTS: Final = Table(
    name="requests",
    row="a request, the slowest first",
    commands=("requests",),
    make=_make,
    is_stored=True,
    columns=(
        Column(
            "request_id",
            "its id, as logged; with `attempt`, unique within step, validate and worker",
            former_title="request",
        ),
        STEP,
        VALIDATE,
        WORKER,
        Column("duration_sec", "from its begin to its end", "time", former_title="time"),
        UNENDED,
        ATTEMPT,
        Column("engine_sec", "its time in calls of the engine", "time"),
        Column("tool_sec", "its time in tools; concurrent ones count one by one", "time"),
        Column("interaction_sec", "its time in interactions", "time", 3, if_any=True),
        Column("reward_sec", "its time in rewards", "time", 3, title="reward time", if_any=True),
        Column(
            "other_sec",
            "its duration without the engine, tools, interactions and rewards: parsing, waiting",
            "time",
            gives_way=2,
            formerly="rest_sec",
            former_title="rest",
        ),
        Column("turns", "how many replies it took", "count", gives_way=4),
        Column("response_tokens", "tokens of all its replies", "count", former_title="tokens"),
        Column(
            "finish_reason",
            "why its last reply ended, as logged",
            styles={"length": "yellow"},
            former_title="end",
        ),
        Column("error", "the type of the exception that ended it; null if none", if_any=True),
        Column("reward", "as logged", "number", gives_way=1),
        Column(
            "trained_step",
            "the step of the trainer that trained on it; null if none is known",
            "count",
            gives_way=8,
            if_any=True,
            formerly="used_step",
            former_title="trained",
        ),
        Column(
            "first_weight_version",
            "version of the weights with which it began, or of its first reply; null if not logged",
            "count",
            terminal=False,
        ),
        Column(
            "weight_version",
            "version of the weights of its last reply; null if not logged, or no number. A terminal shows "
            "the first and the last version",
            "count",
            gives_way=7,
            cell=_versions,
            if_any=True,
            former_title="weights",
        ),
        Column("agent", "the agent that made it, as bound; null if none is", gives_way=9, if_any=True),
        Column(
            "parent_request",
            "the request that it was made for, by another agent: --tree shows these",
            terminal=False,
        ),
        Column("group", "id of its prompt's group; null if not logged", terminal=False),
        Column("sample", "the trainer's own id of the sample; null if not logged", terminal=False),
        Column(
            "resumed_tokens",
            "of response_tokens, those that an earlier request had made",
            "count",
            terminal=False,
        ),
        START,
        END,
        FIELDS,
    ),
)
