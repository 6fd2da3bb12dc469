"""Log what is open while requests are open, because a span's own record comes at its end.

The encoder's thread does all of it, from `OPEN` alone, which the watchdog needs anyway.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from sglang_instrument import schema
from sglang_instrument.recording.keep.disk import Disk
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.measure.scopes import Scope, scope_for
from sglang_instrument.recording.measure.spans import OPEN, Span
from sglang_instrument.recording.measure.values import first_entries
from sglang_instrument.recording.safety.notices import log_swallowed
from sglang_instrument.recording.safety.unpatched import sleep
from sglang_instrument.recording.watch.tool_names import tool_of

#: A process in which none of these phases is open writes nothing: a step alone may be between two rollouts.
_FOLLOWED: Final = frozenset({"request", "turn", "generate", "tool", "reward", "barrier"})
_PART: Final = 250  # spans copied and counted at once, while other threads wait for the GIL
_MOST_COUNTED: Final = 6_000  # spans from each end: all of them cost about 0.3 % of a core
# Bounds of one record; LONGEST_LINE holds it even if each character takes six bytes.
_OLDEST: Final = 5  # requests that are described
_MOST_SCOPES: Final = 16  # as many as may have an open file
_MOST_NAMES: Final = 32  # of events; the vocabulary has fewer that are watched
_OTHERS: Final = "..."  # the name of the other ones
_LONGEST_NAME: Final = 64  # characters
_LONGEST_ID: Final = 256

#: What is open once per scope: the newest ones.
_Found = dict[Scope, "_Open"]


class OpenNow:
    """Writes one `open_now` record per step, at fixed intervals, while its requests are open.

    Args:
        encoder: Makes the records.
        every_sec: The interval; 0 writes none.
    """

    def __init__(self, encoder: LineEncoder, every_sec: float) -> None:
        self._encoder = encoder
        self._every_sec = every_sec
        self._next_look = time.monotonic() + every_sec
        self._on_its_way = False  # the last one, in the disk's queue: a disk that hangs gets no second one

    def look(self, disk: Disk) -> None:
        """Write what is open, if it is time; called at each tick."""
        now = time.monotonic()
        if not OPEN or now < self._next_look or self._on_its_way or not self._every_sec:
            return
        self._next_look = now + self._every_sec
        try:
            self._write(disk)
        except BaseException as error:  # the tick must go on: memory may have run out
            self._on_its_way = False
            log_swallowed("counting the open spans", error)

    def _write(self, disk: Disk) -> None:
        scopes, uncounted = find_open()
        for scope, seen in scopes.items():
            if seen.is_followed():
                line = self._encoder.control(schema.OPEN_NOW, scope, seen.described(uncounted))
                disk.write(scope, line, 0)
                self._on_its_way = True
        if self._on_its_way:
            disk.do(self._arrived)

    def _arrived(self) -> None:
        self._on_its_way = False


def find_open() -> tuple[_Found, int]:
    """Count the open spans of each scope.

    Each part is counted right after it was copied, while it is in the processor's cache. For each span that
    opens or ends meanwhile, one span may be counted twice or not at all.

    Returns:
        What is open in the newest scopes, and how many spans were left out: those in the middle, if there are
        very many.
    """
    scopes: _Found = {}
    counted = 0
    for part in _newest_first():
        _count(part, scopes)
        counted += len(part)
    return scopes, max(0, len(OPEN) - counted) if counted >= 2 * _MOST_COUNTED else 0


def _newest_first() -> Iterator[list[Span]]:
    newest = 0
    for part in _in_parts(reversed):
        yield part
        newest += len(part)
        if newest >= _MOST_COUNTED:
            yield from _oldest_last(min(len(OPEN) - newest, _MOST_COUNTED))
            return


def _oldest_last(most: int) -> Iterator[list[Span]]:
    """Yield the oldest spans, at most `most`, in parts: the oldest come last."""
    oldest: list[Span] = []
    for part in _in_parts(iter):
        oldest += part
        if len(oldest) >= most:
            break
    del oldest[max(0, most) :]
    while oldest:
        yield oldest[: -_PART - 1 : -1]
        del oldest[-_PART:]
        sleep(0)


def _in_parts(ordered: Callable[[Any], Iterator[Span]]) -> Iterator[list[Span]]:
    """Yield the open spans in parts, by `iter` or `reversed`; give up the GIL after each part."""
    done = 0
    while part := _part(ordered, done):
        yield part
        done += len(part)
        sleep(0)


def _part(ordered: Callable[[Any], Iterator[Span]], done: int) -> list[Span]:
    # To pass over the spans of earlier parts is fast: they are in the processor's cache.
    return first_entries(_PART, lambda: islice(ordered(OPEN.values()), done, None))


def _count(spans: list[Span], scopes: _Found) -> None:
    """Count spans, the newest first; one loop, because calls would cost more than all the rest."""
    last, unbound, seen = None, None, _Open()
    for span in spans:
        context = span.context
        scope = context.scope
        if scope is None:
            scope = unbound = unbound or scope_for(None, None, None, False)
        if scope is not last:
            last, seen = scope, _seen(scope, scopes)
            events, innermost, outermost = seen.events, seen.innermost, seen.outermost
        try:
            event = events[span.event]
        except (KeyError, TypeError):  # the first span of its event, or a name that is no text
            event = seen.new_event(span)
        event.count += 1
        request = context.request_id
        if request is None or span.extra is not None:
            request = _request_of(span)
        if event.phase != "request":
            innermost.setdefault(request, span)
            outermost[request] = span
        else:
            seen.add_request(span, innermost.pop(request, span))


def _seen(scope: Scope, scopes: _Found) -> "_Open":
    """Return what was found in a scope so far; of too many scopes, nothing."""
    seen = scopes.get(scope)
    if seen is None:
        seen = _Open()
        if len(scopes) < _MOST_SCOPES:
            scopes[scope] = seen
    return seen


class _Event:
    """How often an event is open in one scope, and in how many requests as the innermost one."""

    __slots__ = ("count", "name", "phase", "requests")

    def __init__(self, name: str, phase: str) -> None:
        self.name, self.phase, self.count, self.requests = name, phase, 0, 0


class _Open:
    """What is open in one scope.

    Attributes:
        events: Its events by name.
        own_phases: The phases of events that the vocabulary does not know.
        innermost: The newest span of each request whose own span was not counted yet.
        outermost: The oldest span of each request, without those of the phase request.
        oldest: The oldest requests, each with its innermost span.
    """

    __slots__ = ("events", "innermost", "oldest", "outermost", "own_phases")

    def __init__(self) -> None:
        self.events: dict[str, _Event] = {}
        self.own_phases: dict[str, str] = {}
        self.innermost: dict[Any, Span] = {}
        self.outermost: dict[Any, Span] = {}
        self.oldest: deque[tuple[Span, Span]] = deque(maxlen=_OLDEST)

    def add_request(self, request: Span, innermost: Span) -> None:
        """Count a request; older ones come later."""
        self._event_of(innermost).requests += 1
        self.oldest.append((request, innermost))

    def is_followed(self) -> bool:
        """Return whether anything is open that a record is written for."""
        return any(event.phase in _FOLLOWED for event in self.events.values())

    def described(self, uncounted: int) -> dict[str, Any]:
        """Return the fields of the record."""
        events = list(self.events.values())[::-1]  # the outer ones first
        fields: dict[str, Any] = {
            "open": {event.name: event.count for event in events},
            "requests": {event.name: event.requests for event in events if event.requests},
            "oldest": [self._described(*pair) for pair in self._oldest()],
        }
        if self.own_phases:
            fields["phases"] = self.own_phases
        if uncounted:
            fields["uncounted"] = uncounted
        return fields

    def _oldest(self) -> list[tuple[Span, Span]]:
        """Return the oldest requests, each with its innermost span; in place of its own span its outermost.

        The span of a request may be open in another process, which has started this one for its reward.
        """
        named = {_request_of(request) for request, _ in self.oldest}
        last = list(islice(reversed(self.innermost.items()), _PART))  # the oldest were counted last
        others = [(self.outermost[key], span) for key, span in last if _is_id(key) and key not in named]
        return sorted([*self.oldest, *others], key=_start)[:_OLDEST]

    def _described(self, request: Span, innermost: Span) -> dict[str, Any]:
        request_id, turn = _id_of(request), _field(innermost, "turn", innermost.context.turn)
        described: dict[str, Any] = {"event": self._event_of(innermost).name}
        if request_id is not None:
            described["request_id"] = request_id if type(request_id) is int else str(request_id)[:_LONGEST_ID]
        if type(turn) is int:
            described["turn"] = turn
        tool = tool_of(innermost.extra)
        if tool is not None:
            described["tool"] = tool
        described["age_sec"] = round(request.duration_sec, 3)
        if innermost is not request:
            described["in_sec"] = round(innermost.duration_sec, 3)
        return described

    def _event_of(self, span: Span) -> _Event:
        try:
            return self.events[span.event]
        except (KeyError, TypeError):
            return self.new_event(span)

    def new_event(self, span: Span) -> _Event:
        """Return the event of a span that is its first, or whose name is no text, or longer than allowed."""
        name = str(span.event)[:_LONGEST_NAME]
        if name not in self.events and len(self.events) >= _MOST_NAMES:
            name = _OTHERS
        known = self.events.get(name)
        if known is None:
            usual = schema.kind_of(span.event).phase
            phase = "other" if name == _OTHERS else span.phase or usual
            known = self.events[name] = _Event(name, phase)
            if phase != usual and name != _OTHERS:
                self.own_phases[name] = phase[:_LONGEST_NAME]
        return known


def _start(pair: tuple[Span, Span]) -> int:
    return pair[0].start


def _id_of(span: Span) -> Any:
    return _field(span, "request_id", span.context.request_id)


def _is_id(request_id: Any) -> bool:
    return type(request_id) is str or type(request_id) is int


def _field(span: Span, name: str, bound: Any) -> Any:
    """Return a field of an open span: its own, or else the bound one."""
    extra = span.extra
    return bound if extra is None else extra.get(name, bound)


def _request_of(span: Span) -> Any:
    """Return what tells a span's request from others: its id, or else its task."""
    request_id = _id_of(span)
    if _is_id(request_id):
        return request_id
    if request_id is None:
        return (span.thread if span.task is None else id(span.task),)
    return str(request_id)
