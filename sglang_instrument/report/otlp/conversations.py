"""Collect each request of a step with the engine calls of its turns, its tools and its rewards."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.answers.agents import parents_of
from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests
from sglang_instrument.analysis.digests.digest import KINDS
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.timing.nesting import nest
from sglang_instrument.report.otlp.logged_fields import CallFields, Servers, fields_of

_PLACE: Final = ("worker", "step", "validate", "request_id")
_COLUMNS: Final = (
    *_PLACE,
    *("event", "phase", "counts_for", "start_us", "end_us", "turn", "tool", "response_tokens"),
    *("finish_reason", "error", "reward", "span", "parent"),
)
#: A request, by the worker that ran it.
Place = tuple[int, int | None, bool, str]


class Reward(NamedTuple):
    """A reward: the name of the event that gave it, when, and the number."""

    name: str
    at_us: int
    score: float


@dataclass
class ConversationPart:
    """An engine call of a turn, or the run of a tool. Times are microseconds of the worker's clock."""

    is_call: bool
    event: str
    start_us: int
    end_us: int
    turn: int | None
    error: str | None
    tool: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    response_tokens: int | None = None
    rid: str | None = None
    server: str | None = None
    traceparent: str | None = None
    rewards: list[Reward] = field(default_factory=list)


@dataclass
class Conversation:
    """A request with its parts, in the order of their starts.

    Attributes:
        place: Its worker, step, whether it is of validation, and its id.
        number: How many requests with the same place came before it: one that is tried again has the same.
        unended: Whether no record tells its end. Its parts, or its last report, say how long it ran.
    """

    place: Place
    number: int
    start_us: int
    end_us: int
    unended: bool = False
    turns: int | None = None
    response_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    agent: str | None = None
    traceparent: str | None = None
    #: The request that it works for, if any.
    parent: Conversation | None = None
    parts: list[ConversationPart] = field(default_factory=list)
    rewards: list[Reward] = field(default_factory=list)


def conversations(
    run: Run, step: int, validate: bool, begun: pl.DataFrame, servers: Servers
) -> list[Conversation]:
    """Return the requests of a step, in the order of their starts.

    Args:
        run: The run.
        step: The step; its records are there.
        validate: Whether it is validation.
        begun: The rows of `request_table` of this step.
        servers: What the engine's processes logged.
    """
    rows = _rows(run, step, validate)
    fields = fields_of(run, run.files_of(step, validate=validate))
    requests = _StepRequests(begun.sort("start_us", "end_us").to_dicts())
    for row in rows:
        if row["phase"] == "request":
            requests.add_fields(row, _fields(fields, row))
    for row, inside in _calls(rows):
        requests.add(row, _call(row, inside, fields, servers))
    for row in _tools(rows):
        requests.add(row, _tool(row))
    for row in rows:
        if row["phase"] == "reward":
            requests.end_of_reward(row)
        elif row["reward"] is not None and row["phase"] not in ("request", "tool"):
            requests.add_reward(row)
    return requests.in_order()


def _rows(run: Run, step: int, validate: bool) -> list[dict[str, Any]]:
    """Return the spans of requests, by their starts: those of rollout workers if there are any."""
    spans = nest(run.read_records(step, validate=validate)).filter(pl.col("request_id").is_not_null())
    words = [name for name, kind in spans.schema.items() if kind == pl.Categorical]
    spans = spans.with_columns(pl.col(*words, "counts_for").cast(pl.String)).sort("start_us", "span")
    if (run.everything.steps["role"] == "worker").any():
        spans = spans.filter(pl.col("role") == "worker")
    return spans.filter(step=step, validate=validate).select(_COLUMNS).to_dicts()


def server_calls(run: Run, servers: Servers) -> list[ConversationPart]:
    """Return the calls that the engine's processes logged, for a run in which no caller did."""
    known = cached_engine_requests(run).drop_nulls(["start_us", "end_us"]).sort("start_us", "rid")
    return [
        ConversationPart(
            is_call=True,
            event="engine_request",
            start_us=row["start_us"],
            end_us=row["end_us"],
            turn=None,
            error=None,
            prompt_tokens=row["prompt_tokens"],
            cached_tokens=row["cached_tokens"],
            response_tokens=row["completion_tokens"],
            rid=row["rid"],
            server=row["server"] or row["scheduler"],
            traceparent=servers.traceparent(row["rid"]),
        )
        for row in known.iter_rows(named=True)
    ]


def _calls(rows: Sequence[dict[str, Any]]) -> Iterable[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield the outermost engine calls, each with those inside it."""
    by_span = {row["span"]: row for row in rows}
    calls: dict[int, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for row in rows:
        if row["counts_for"] in KINDS["engine"]:
            outer = row
            while (above := by_span.get(outer["parent"])) and above["counts_for"] in KINDS["engine"]:
                outer = above
            call = calls.setdefault(outer["span"], (outer, []))
            if outer is not row:
                call[1].append(row)
    return calls.values()


def _tools(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the innermost spans of phase "tool": a region that waits for several tools is not one."""
    tools = [row for row in rows if row["phase"] == "tool"]
    outer = {row["parent"] for row in tools}
    return [row for row in tools if row["span"] not in outer]


def _fields(fields: Mapping[Any, CallFields], row: dict[str, Any]) -> CallFields:
    return fields.get((row["worker"], row["request_id"], row["event"], row["start_us"]), CallFields())


def _call(
    row: dict[str, Any], inside: Sequence[dict[str, Any]], fields: Mapping[Any, CallFields], servers: Servers
) -> ConversationPart:
    """Return an engine call; fields that it lacks are those of the spans inside it, or of the servers."""
    fields_of_spans = [_fields(fields, span) for span in (row, *inside)]
    part = _part(row, is_call=True)
    part.rid, part.server, part.traceparent = (
        next((word for span_fields in fields_of_spans if (word := getattr(span_fields, name))), None)
        for name in ("rid", "server", "traceparent")
    )
    part.traceparent = part.traceparent or servers.traceparent(part.rid)
    by_engine = servers.tokens(part.rid)
    part.prompt_tokens, part.cached_tokens = (
        next(
            (number for span_fields in fields_of_spans if (number := getattr(span_fields, name)) is not None),
            known,
        )
        for name, known in zip(("prompt_tokens", "cached_tokens"), by_engine, strict=True)
    )
    for name in ("response_tokens", "finish_reason"):
        values = [span[name] for span in (row, *inside) if span[name] is not None]
        setattr(part, name, values[0] if values else None)
    return part


def _tool(row: dict[str, Any]) -> ConversationPart:
    part = _part(row, is_call=False)
    part.tool = row["tool"]
    if row["reward"] is not None:
        part.rewards.append(Reward(row["event"], row["end_us"], row["reward"]))
    return part


def _part(row: dict[str, Any], *, is_call: bool) -> ConversationPart:
    return ConversationPart(is_call, row["event"], row["start_us"], row["end_us"], row["turn"], row["error"])


class _StepRequests:
    """The requests of a step, to which parts are added by their place and start."""

    def __init__(self, begun: Sequence[dict[str, Any]]) -> None:
        self._found: dict[Place, list[Conversation]] = {}
        every = []
        for row in begun:
            place = tuple(row[name] for name in _PLACE)
            same = self._found.setdefault(place, [])
            names = ("turns", "response_tokens", "finish_reason", "error", "unended", "agent")
            conversation = Conversation(place, len(same), row["start_us"], row["end_us"])
            for name in names:
                setattr(conversation, name, row[name])
            if row["reward"] is not None:
                conversation.rewards.append(Reward("reward", row["end_us"], row["reward"]))
            same.append(conversation)
            every.append(conversation)
        for number, parent in parents_of(begun).items():
            every[number].parent = every[parent]

    def add(self, row: dict[str, Any], part: ConversationPart) -> None:
        """Add a part to its request."""
        conversation = self._of(row)
        conversation.parts.append(part)
        conversation.traceparent = conversation.traceparent or part.traceparent

    def add_fields(self, row: dict[str, Any], fields: CallFields) -> None:
        """Add what the request's own record holds."""
        conversation = self._of(row)
        conversation.agent = conversation.agent or fields.agent
        conversation.traceparent = conversation.traceparent or fields.traceparent

    def add_reward(self, row: dict[str, Any]) -> None:
        """Add a reward that was given on the way, such as that of an interaction."""
        self._of(row).rewards.append(Reward(row["event"], row["end_us"], row["reward"]))

    def end_of_reward(self, row: dict[str, Any]) -> None:
        """Take the end of its calculation as the time of the request's reward."""
        conversation = self._of(row)
        conversation.rewards = [
            reward._replace(at_us=row["end_us"]) if reward.name == "reward" else reward
            for reward in conversation.rewards
        ]

    def in_order(self) -> list[Conversation]:
        """Return all, by their starts."""
        every = [conversation for same in self._found.values() for conversation in same]
        for conversation in every:
            conversation.parts.sort(key=lambda part: (part.start_us, -part.end_us, part.event))
        return sorted(
            every,
            key=lambda conversation: (
                conversation.start_us,
                conversation.place[0],
                conversation.place[3],
                conversation.number,
            ),
        )

    def _of(self, row: dict[str, Any]) -> Conversation:
        """Return the last request of this place that had begun; without any, one that has not ended."""
        place = tuple(row[name] for name in _PLACE)
        same = self._found.get(place)
        if same is None:
            same = [Conversation(place, 0, row["start_us"], row["end_us"], unended=True)]
            self._found[place] = same
        position = bisect_right([conversation.start_us for conversation in same], row["start_us"]) - 1
        conversation = same[max(0, position)]
        if conversation.unended:
            conversation.start_us, conversation.end_us = (
                min(conversation.start_us, row["start_us"]),
                max(conversation.end_us, row["end_us"]),
            )
        return conversation
