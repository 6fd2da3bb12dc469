"""Decide which records are kept: down to which detail, and of which requests. Used by the encoder's thread.

All requests of a rollout begin together, so they end in the order of their durations, and each is the slowest
so far. The slow ones are known only when their step ends; until then the records of requests that are not in
the sample are held.
"""

import zlib
from bisect import insort
from collections.abc import Callable, Iterable
from typing import Any, Final

from sglang_instrument.config import Config, Detail
from sglang_instrument.recording.measure.context import Context
from sglang_instrument.recording.measure.scopes import Scope
from sglang_instrument.recording.measure.spans import Span
from sglang_instrument.schema import kind_of

MOST_HELD: Final = 50_000  # spans, about 10 MB; above it, the durations so far decide
SLOW: Final = 0.95  # a request that takes at least this quantile of its step's durations is always kept
_MOST_DURATIONS: Final = 10_000  # of one step; a process that never binds a step has a single, endless one
_MOST_VERDICTS: Final = 100_000  # requests of one step that are remembered for late records
_STEPS_KNOWN: Final = 8  # steps whose verdicts are remembered; older steps get no more records
_TURN_PHASES: Final = frozenset({"turn", "generate", "tool", "interaction", "environment"})
_DETAILS: Final[tuple[Detail, ...]] = ("step", "request", "turn", "all")

ScopeOf = Callable[[Context], Scope]


def selection_for(config: Config, scope_of: ScopeOf) -> "Selection | None":
    """Return the selection that the settings ask for; None if they keep everything, at no cost."""
    if config.detail == "all" and config.sample_requests >= 1:
        return None
    return Selection(config.detail, config.sample_requests, scope_of)


class Selection:
    """Takes finished spans and returns those to write.

    Args:
        detail: The finest records that are kept.
        share: Share of requests whose records are kept, 0 to 1.
        scope_of: Returns the step that a context's records belong to.
    """

    def __init__(self, detail: Detail, share: float, scope_of: ScopeOf) -> None:
        self._detail = _DETAILS.index(detail)
        self._share = share
        self._scope_of = scope_of
        self.sampled_out = 0
        self._steps: dict[Scope, _HeldRequests] = {}
        self._held = 0

    def keep(self, spans: Iterable[Span]) -> list[Span]:
        """Return the spans to write now, of these and of the held ones; hold or drop the others."""
        to_write = []
        for span in spans:
            request_id, turn = _ids(span)
            if self._detail < 3 and _detail(span, request_id, turn) > self._detail:
                continue
            if self._share >= 1 or request_id is None or is_drawn(request_id, self._share):
                to_write.append(span)
            else:
                to_write += self._hold(span, str(request_id))
        if self._held > MOST_HELD:
            to_write += self._decide_early()
        return to_write

    def end_step(self, scope: Scope) -> list[Span]:
        """Decide on the held spans of an ended step; return those to write."""
        step = self._steps.get(scope)
        if step is None:
            return []
        step.over = True
        return self._decide(scope, step)

    def end(self) -> list[Span]:
        """Decide on all held spans, as no more follow; return those to write."""
        return [span for scope, step in list(self._steps.items()) for span in self._decide(scope, step)]

    def _hold(self, span: Span, request_id: str) -> list[Span]:
        scope = span.context.scope or self._scope_of(span.context)
        step = self._steps.get(scope) or self._begin(scope)
        verdict = step.verdicts.get(request_id)
        if verdict is None and step.over and scope.open <= 0 and not scope.ended:
            verdict = True  # the record is later than its step, which will not end again: do not wait
        if verdict is None:
            step.hold(span, request_id)
            self._held += 1
            return []
        if verdict:
            return [span]
        self._leave_out(scope, 1)
        return []

    def _begin(self, scope: Scope) -> "_HeldRequests":
        """Remember another step, and forget the oldest that holds nothing."""
        step = self._steps[scope] = _HeldRequests()
        for known, seen in list(self._steps.items())[:-_STEPS_KNOWN]:
            if not seen.held:
                del self._steps[known]
        return step

    def _decide(self, scope: Scope, step: "_HeldRequests", early: bool = False) -> list[Span]:
        """Return the held records to write; drop and count those of fast requests."""
        to_write: list[Span] = []
        limit_ns = step.slow_ns()
        for request_id, spans in list(step.held.items()):
            duration_ns = step.ended.pop(request_id, None)
            if early and duration_ns is None:
                continue  # the request still runs
            # A request that outlasts its step is the slowest possible, or hangs.
            verdict = duration_ns is None or duration_ns >= limit_ns
            step.decide(request_id, verdict)
            self._held -= len(spans)
            if verdict:
                to_write += spans
            else:
                self._leave_out(scope, len(spans))
        return sorted(to_write, key=_ended_ns)

    def _decide_early(self) -> list[Span]:
        """Make room: decide on ended requests; if that is not enough, write the rest."""
        to_write = []
        for scope, step in list(self._steps.items()):
            to_write += self._decide(scope, step, early=True)
        return to_write if self._held <= MOST_HELD // 2 else to_write + self.end()

    def _leave_out(self, scope: Scope, records: int) -> None:
        scope.sampled_out += records
        self.sampled_out += records


class _HeldRequests:
    """Requests of one step that are not in the sample: their held records, verdicts and durations."""

    __slots__ = ("durations", "ended", "held", "over", "verdicts")

    def __init__(self) -> None:
        self.over = False  # whether its outermost block has ended, at least once
        self.held: dict[str, list[Span]] = {}
        self.ended: dict[str, float] = {}  # nanoseconds; infinite if it failed
        self.verdicts: dict[str, bool] = {}
        self.durations: list[int] = []  # sorted

    def hold(self, span: Span, request_id: str) -> None:
        self.held.setdefault(request_id, []).append(span)
        if span.end and (span.phase or kind_of(span.event).phase) == "request":
            duration_ns = span.end - span.start
            insort(self.durations, duration_ns)
            if len(self.durations) > _MOST_DURATIONS:
                del self.durations[::2]
            # Trainers that start more requests than they need cancel the rest: that is no failure.
            failed = span.error is not None and not span.error.startswith("CancelledError")
            self.ended[request_id] = float("inf") if failed else duration_ns

    def decide(self, request_id: str, verdict: bool) -> None:
        del self.held[request_id]
        if len(self.verdicts) >= _MOST_VERDICTS:
            self.verdicts.clear()
        self.verdicts[request_id] = verdict

    def slow_ns(self) -> float:
        """Return the duration in ns from which a request of this step is slow; the slowest one always is."""
        return self.durations[int(len(self.durations) * SLOW)] if self.durations else 0


def is_drawn(request_id: object, share: float) -> bool:
    """Return whether a request is in the sample of size `share`: the same answer in every process."""
    checksum = zlib.crc32(str(request_id).encode("utf-8", "replace"))
    # CRC is linear: ids that differ in one digit give checksums that differ in few bits. Multiply to spread.
    return (checksum * 0x9E3779B97F4A7C15 >> 32) & 0xFFFFFFFF < share * 2**32


def _ids(span: Span) -> tuple[Any, Any]:
    """Return a record's request id and turn: its own fields, or else the bound ones."""
    context, extra = span.context, span.extra
    if extra is None:
        return context.request_id, context.turn
    return extra.get("request_id", context.request_id), extra.get("turn", context.turn)


def _detail(span: Span, request_id: object, turn: object) -> int:
    """Return the detail of a record, as its index in `_DETAILS`, from its request id, turn and phase."""
    if request_id is None:
        return 0
    if (span.phase or kind_of(span.event).phase) in _TURN_PHASES:
        return 2
    return 1 if turn is None else 3


def _ended_ns(span: Span) -> int:
    return span.end or span.start
