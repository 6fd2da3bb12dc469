"""Write the requests of a run as OTLP JSON lines: what a collector's `otlpjsonfile` receiver reads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sglang_instrument.analysis.answers.engine.round_trips import ahead_us
from sglang_instrument.analysis.answers.requests import request_table
from sglang_instrument.analysis.answers.servers import are_servers_alone
from sglang_instrument.analysis.reading.files import newest_runs
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.report.otlp.conversations import (
    Conversation,
    ConversationPart,
    conversations,
    server_calls,
)
from sglang_instrument.report.otlp.ids import parent_of
from sglang_instrument.report.otlp.logged_fields import Servers
from sglang_instrument.report.otlp.messages import line_of, span_of_call, spans_of
from sglang_instrument.safe_files.output import writing_output

#: A collector reads lines of up to 1 MiB, if nothing else is set; a span takes about 1 KB.
_LINE_BYTES: Final = 2**20
_SPANS: Final = 256


@dataclass
class WrittenSpans:
    """What was written.

    Attributes:
        requests: Spans `invoke_agent`, with those that never ended.
        unended: Those of them whose end no record tells.
        calls: Spans `chat`.
        tools: Spans `execute_tool`.
        rewards: Events.
        joined: Requests below a span of another program, by `traceparent`.
        lines: Lines of the file.
    """

    requests: int = 0
    unended: int = 0
    calls: int = 0
    tools: int = 0
    rewards: int = 0
    joined: int = 0
    lines: int = 0

    def count(self, conversation: Conversation) -> None:
        """Count a request and its parts."""
        self.requests += 1
        self.unended += conversation.unended
        calls = sum(part.is_call for part in conversation.parts)
        self.calls += calls
        self.tools += len(conversation.parts) - calls
        self.rewards += len(conversation.rewards) + sum(len(part.rewards) for part in conversation.parts)
        self.joined += parent_of(conversation.traceparent) is not None


def write_otlp(
    path: Path,
    run: Run,
    steps: Collection[int] | None = None,
    validate: bool | None = None,
    progress: Callable[[int, int], object] = lambda done, all_: None,
) -> WrittenSpans:
    """Write a file that appears only when it is complete.

    Args:
        path: The file; one that is there is replaced.
        run: The run.
        steps: Only these steps.
        validate: Only validation (True) or training (False).
        progress: Called with the number of steps written and the number of all.
    """
    with writing_output(path) as stream:
        return _write_steps(stream, run, steps, validate, progress)


def _write_steps(
    stream: BinaryIO,
    run: Run,
    steps: Collection[int] | None,
    validate: bool | None,
    progress: Callable[[int, int], object],
) -> WrittenSpans:
    writer = _SpanWriter(stream, run)
    requests = request_table(run.everything)
    chosen = _chosen(run, steps, validate)
    for number, (step, validates) in enumerate(chosen):
        begun = requests.filter(step=step, validate=validates)
        writer.write(conversations(run, step, validates, begun, writer.servers), step, validates)
        progress(number + 1, len(chosen))
    if are_servers_alone(run):
        writer.write_calls(server_calls(run, writer.servers))
    return writer.written


def _chosen(run: Run, steps: Collection[int] | None, validate: bool | None) -> list[tuple[int, bool]]:
    """Return the steps whose records are there, training before validation."""
    places = {
        (place.validate, place.step)
        for file in run.files
        if (place := file.place) is not None and file.has_records and place.step is not None
        if (steps is None or place.step in steps) and validate in (None, place.validate)
    }
    return [(step, validates) for validates, step in sorted(places)]


class _SpanWriter:
    def __init__(self, stream: BinaryIO, run: Run) -> None:
        self._stream = stream
        self._ahead = ahead_us(run)
        self._runs = newest_runs(run.files)
        self._name = run.folder.absolute().name
        # Logs of other projects have no run id.
        begun: Any = run.digest.steps["start_us"].min()
        self._unnamed = f"{self._name} {begun}"
        self.servers = Servers(run)
        self.written = WrittenSpans()

    def write(self, every: list[Conversation], step: int, validate: bool) -> None:
        """Write the requests of a step, worker by worker."""
        by_worker: dict[int, list[Conversation]] = {}
        for conversation in every:
            self.written.count(conversation)
            by_worker.setdefault(conversation.place[0], []).append(conversation)
        run_id = self._runs.get(f"{'validate' if validate else 'step'}_{step}")
        for worker, of_worker in sorted(by_worker.items()):
            stem = f"worker_{worker}"
            ahead = self._ahead.get(stem, 0)
            run_id_or_name = run_id or self._unnamed
            spans = [spans_of(conversation, run_id_or_name, ahead) for conversation in of_worker]
            self._write_lines(stem, run_id, spans)

    def write_calls(self, calls: list[ConversationPart]) -> None:
        """Write engine calls whose callers did not log, server by server."""
        by_server: dict[str, list[ConversationPart]] = {}
        for call in calls:
            by_server.setdefault(call.server or "engine", []).append(call)
            self.written.calls += 1
            self.written.joined += parent_of(call.traceparent) is not None
        run_id = self._runs.get("engine")
        for server, calls_of_server in sorted(by_server.items()):
            self._write_lines(
                server, run_id, [[span_of_call(call, run_id or self._unnamed)] for call in calls_of_server]
            )

    def _write_lines(self, stem: str, run_id: str | None, groups: list[list[Span]]) -> None:
        """Write lines of some hundred spans; those of a request stand in one line if they fit."""
        resource = {
            "service.name": self._name,
            "service.instance.id": stem,
            "sglang_instrument.run_id": run_id,
        }
        waiting: list[Span] = []
        for spans in groups:
            if waiting and len(waiting) + len(spans) > _SPANS:
                self._write_line(resource, waiting)
                waiting = []
            waiting += spans
        if waiting:
            self._write_line(resource, waiting)

    def _write_line(self, resource: dict[str, Any], spans: list[Span]) -> None:
        """Write a line, or several if it would be too long for a collector."""
        line = line_of(resource, spans)
        if len(line) <= _LINE_BYTES or len(spans) == 1:
            self.written.lines += 1
            self._stream.write(line)
            return
        middle = len(spans) // 2
        self._write_line(resource, spans[:middle])
        self._write_line(resource, spans[middle:])
