"""Agents that work for other agents: the trees of their requests, and what each agent takes and costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import ATTEMPT, END, START, STEP, UNENDED, VALIDATE, WORKER
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make_trees(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.agents import request_trees

    return request_trees(run.everything)


def _make_agents(run: Run) -> pl.DataFrame:
    import polars as pl

    from sglang_instrument.analysis.answers.agents import agent_table
    from sglang_instrument.analysis.answers.routing.server_calls import server_calls

    calls = server_calls(run).filter(~pl.col("validate"))
    return agent_table(run.everything.filter(~pl.col("validate")), calls)


def _indented(row: Mapping[str, Any]) -> str:
    return "  " * int(row["depth"]) + str(row["request_id"])


_AGENT: Final = Column("agent", "the agent, as bound; null if none is")
_ENGINE: Final = Column("engine_sec", "time in calls of the engine", "time")
_TOOL: Final = Column("tool_sec", "time in tools; concurrent ones count one by one", "time")
_RESPONSE: Final = Column("response_tokens", "tokens of all replies", "count", former_title="tokens")

REQUEST_TREES: Final = Table(
    name="request_trees",
    row="a request that works for another one, or has others work for it, below the request that it is for; "
    "the trees that took longest come first",
    commands=("requests",),
    option="--tree",
    make=_make_trees,
    is_stored=True,
    columns=(
        Column("tree", "which tree", "count", terminal=False),
        Column("root_request", "the request at the top of its tree", terminal=False),
        Column("request_id", "its id, indented below its parent", cell=_indented, former_title="request"),
        Column("parent_request", "the request that it is for", terminal=False),
        Column("depth", "how many requests lie above it", "count", terminal=False),
        _AGENT,
        STEP,
        VALIDATE,
        WORKER,
        ATTEMPT,
        Column("start_sec", "when it began, since its tree did", "time", gives_way=2),
        Column("duration_sec", "from its begin to its end", "time", former_title="time"),
        UNENDED,
        Column("path_sec", "for how long it decided how long the tree took", "time"),
        _ENGINE,
        _TOOL,
        Column("agents_sec", "time in which any request went on that works for it", "time"),
        Column("other_sec", "its duration without the engine, tools and agents", "time", gives_way=1),
        Column("children", "how many requests work for it", "count", gives_way=3),
        Column("turns", "how many replies it took", "count", gives_way=4),
        _RESPONSE,
        START,
        END,
    ),
)

AGENTS: Final = Table(
    name="agents",
    row="an agent: all requests that it made",
    commands=("turns",),
    make=_make_agents,
    columns=(
        _AGENT,
        Column("requests", "how many requests it made", "count"),
        Column("calls", "of the engine, with a rid; null where none is known", "count"),
        _ENGINE,
        Column("engine_share", "share of the engine time of all agents", "share"),
        _TOOL,
        Column(
            "other_sec", "the rest of its requests' time, that of its agents included", "time", gives_way=2
        ),
        Column("path_sec", "for how long its requests decided how long their trees took", "time"),
        Column("prompt_tokens", "tokens of its calls' prompts", "count"),
        Column("cached_tokens", "of these, tokens that were in a cache", "count", gives_way=1),
        Column("completion_tokens", "tokens of its calls' replies", "count", terminal=False),
        _RESPONSE,
    ),
)
