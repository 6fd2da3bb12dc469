"""Turn requests into spans by OpenTelemetry's conventions for generative AI, and write them as OTLP JSON.

The conventions: github.com/open-telemetry/semantic-conventions-genai, spans of agents and of inference.
The encoding: opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from sglang_instrument import __version__
from sglang_instrument.report.otlp.conversations import Conversation, ConversationPart, Reward
from sglang_instrument.report.otlp.ids import Parent, parent_of, span_id, trace_id

_OWN: Final = "sglang_instrument"  # prefix of attributes that the conventions do not have
_EVALUATION: Final = "gen_ai.evaluation.result"
_LATEST_NS: Final = 2**63 - 1  # several receivers hold times in signed integers
_IDS: Final = ("traceId", "spanId", "parentSpanId")


def spans_of(conversation: Conversation, run_id: str, ahead_us: int) -> list[Span]:
    """Return a request and its parts as spans, the request first.

    Args:
        conversation: The request.
        run_id: The id of its run: the ids of spans follow from it.
        ahead_us: How far its worker's clock is ahead.
    """
    key = (run_id, *conversation.place, conversation.number)
    parent = _parent(conversation, run_id)
    trace = trace_id(*key) if parent is None else parent.trace_id
    root = Parent(trace, span_id(*key))
    spans = [_request(conversation, root, parent, ahead_us)]
    seen: dict[tuple[object, ...], int] = {}
    for part in conversation.parts:
        same = (part.is_call, part.event, part.turn, part.start_us)
        number = seen[same] = seen.get(same, -1) + 1
        ids = Parent(trace, span_id(*key, *same, number))
        spans.append(_part(part, ids, root, conversation.place[3], ahead_us))
    return spans


def _parent(conversation: Conversation, run_id: str) -> Parent | None:
    """Return the span above a request: that of the request it works for, else one of another program."""
    above, seen = conversation.parent, {id(conversation)}
    if above is None:
        return parent_of(conversation.traceparent)
    top = above
    while top.parent is not None and id(top) not in seen:
        seen.add(id(top))
        top = top.parent
    of_others = parent_of(top.traceparent)
    trace = trace_id(run_id, *top.place, top.number) if of_others is None else of_others.trace_id
    return Parent(trace, span_id(run_id, *above.place, above.number))


def line_of(resource: Mapping[str, Any], spans: Iterable[Span]) -> bytes:
    """Return one line of OTLP JSON: an ExportTraceServiceRequest, with its ids as hexadecimal digits."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    _add(group.resource.attributes, resource)
    scope = group.scope_spans.add()
    scope.scope.name, scope.scope.version = _OWN, __version__
    scope.spans.extend(spans)
    written = MessageToDict(request, use_integers_for_enums=True)
    for span, text in zip(scope.spans, written["resourceSpans"][0]["scopeSpans"][0]["spans"], strict=True):
        for name, raw in zip(_IDS, (span.trace_id, span.span_id, span.parent_span_id), strict=True):
            if raw:
                text[name] = raw.hex()  # protobuf's own JSON would write base64
    return orjson.dumps(written) + b"\n"


def _request(conversation: Conversation, ids: Parent, parent: Parent | None, ahead_us: int) -> Span:
    name = "invoke_agent" if conversation.agent is None else f"invoke_agent {conversation.agent}"
    span = _span(
        name,
        ids,
        parent,
        conversation.start_us - ahead_us,
        conversation.end_us - ahead_us,
        conversation.error,
    )
    worker, step, validate, request_id = conversation.place
    calls = [part for part in conversation.parts if part.is_call]
    _add(
        span.attributes,
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": "sglang",
            "gen_ai.agent.name": conversation.agent,
            "gen_ai.conversation.id": request_id,
            "gen_ai.usage.input_tokens": _sum(part.prompt_tokens for part in calls),
            "gen_ai.usage.cache_read.input_tokens": _sum(part.cached_tokens for part in calls),
            "gen_ai.usage.output_tokens": conversation.response_tokens,
            "gen_ai.response.finish_reasons": _list(conversation.finish_reason),
            "error.type": conversation.error,
            f"{_OWN}.step": step,
            f"{_OWN}.worker": worker,
            f"{_OWN}.validate": validate,
            f"{_OWN}.turns": conversation.turns,
            f"{_OWN}.attempt": conversation.number or None,
            f"{_OWN}.unended": conversation.unended or None,
        },
    )
    _add_rewards(span, conversation.rewards, ahead_us)
    return span


def span_of_call(call: ConversationPart, run_id: str) -> Span:
    """Return an engine call whose request is not known."""
    key = (run_id, call.server, call.rid, call.start_us)
    parent = parent_of(call.traceparent)
    ids = Parent(trace_id(*key) if parent is None else parent.trace_id, span_id(*key))
    return _part(call, ids, parent, None, 0)


def _part(
    part: ConversationPart, ids: Parent, parent: Parent | None, request_id: str | None, ahead_us: int
) -> Span:
    operation = "chat" if part.is_call else "execute_tool"
    name = operation if part.tool is None else f"{operation} {part.tool}"
    span = _span(name, ids, parent, part.start_us - ahead_us, part.end_us - ahead_us, part.error)
    common = {
        "gen_ai.operation.name": operation,
        "gen_ai.conversation.id": request_id,
        "error.type": part.error,
        f"{_OWN}.event": part.event,
        f"{_OWN}.turn": part.turn,
    }
    _add(span.attributes, common | (_of_call(part) if part.is_call else _of_tool(part)))
    if part.is_call:
        span.kind = Span.SPAN_KIND_CLIENT
    _add_rewards(span, part.rewards, ahead_us)
    return span


def _of_call(part: ConversationPart) -> dict[str, Any]:
    return {
        "gen_ai.provider.name": "sglang",
        "gen_ai.response.id": part.rid,
        "gen_ai.response.finish_reasons": _list(part.finish_reason),
        "gen_ai.usage.input_tokens": part.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": part.cached_tokens,
        "gen_ai.usage.output_tokens": part.response_tokens,
        f"{_OWN}.server": part.server,
    }


def _of_tool(part: ConversationPart) -> dict[str, Any]:
    return {"gen_ai.tool.name": part.tool or part.event, "gen_ai.tool.type": "function"}


def _span(
    name: str, ids: Parent, parent: Parent | None, start_us: int, end_us: int, error: str | None
) -> Span:
    span = Span(
        trace_id=ids.trace_id,
        span_id=ids.span_id,
        parent_span_id=b"" if parent is None else parent.span_id,
        name=_text(name),
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=_nanoseconds(start_us),
        end_time_unix_nano=_nanoseconds(max(start_us, end_us)),
    )
    if error is not None:
        span.status.code = Status.STATUS_CODE_ERROR
    return span


def _add_rewards(span: Span, rewards: Iterable[Reward], ahead_us: int) -> None:
    for reward in rewards:
        event = span.events.add(name=_EVALUATION, time_unix_nano=_nanoseconds(reward.at_us - ahead_us))
        scored = {"gen_ai.evaluation.name": reward.name, "gen_ai.evaluation.score.value": reward.score}
        _add(event.attributes, scored)


def _add(attributes: Any, values: Mapping[str, Any]) -> None:
    """Add the attributes that are known."""
    for key, value in values.items():
        if value is not None:
            _set(attributes.add(key=key).value, value)


def _set(target: Any, value: Any) -> None:
    if isinstance(value, bool):  # before int, which it is, too
        target.bool_value = value
    elif isinstance(value, int):
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    elif isinstance(value, list):
        for item in value:
            target.array_value.values.add(string_value=_text(item))
    else:
        target.string_value = _text(value)


def _text(words: object) -> str:
    """Return text that protobuf takes: without lone surrogates."""
    return str(words).encode("utf-8", "replace").decode()


def _nanoseconds(microseconds: int) -> int:
    return min(max(0, microseconds * 1000), _LATEST_NS)


def _list(word: str | None) -> list[str] | None:
    return None if word is None else [word]


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None where one is not known, or there is none."""
    known = list(numbers)
    return sum(number for number in known if number is not None) if known and None not in known else None
