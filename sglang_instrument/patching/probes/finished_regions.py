"""Know which regions finished within a region: what `inside.EVENT` and `before.EVENT` read.

Kept only while a region that reads it is open, and only of the events that it reads; all others pay nothing.
"""

from contextvars import ContextVar
from typing import Any, Final

from sglang_instrument.recording.measure.context import put
from sglang_instrument.recording.measure.spans import Span


class Inside(dict[str, list[dict[str, Any]]]):
    """The records of the regions that finished within one run of a region, by event.

    `around` is the one it reports to, `before` the one that was collecting before it.
    """

    __slots__ = ("around", "before", "ended", "wanted")
    wanted: frozenset[str]
    around: "Inside | None"
    before: "Inside | None"
    ended: bool


#: The innermost open region that reads `inside`; what it calls and the tasks it makes inherit it.
collecting: Final[ContextVar[Inside | None]] = ContextVar("sglang_instrument_inside", default=None)


def collect(wanted: frozenset[str], root: bool) -> Inside:
    """Begin to keep the `wanted` events; a `root` reports to nobody around it."""
    inside = Inside()  # without an __init__ of its own, which costs as much again
    inside.wanted, inside.ended, before = wanted, False, collecting.get()
    inside.around = None if root else before
    while before is not None and before.ended:  # as with contexts
        before = before.before
    inside.before = before
    put(collecting, inside)  # a token leads to the program's variables: see context.Bound
    return inside


def stop(ending: Inside) -> None:
    """End what `collect` began, unless the region was entered in another task: here it is not set then."""
    is_first, ending.ended = not ending.ended, True
    current = collecting.get() if is_first else None
    while current is not None and current is not ending:
        current = current.before
    if current is not None:
        put(collecting, ending.before)


def end(inside: Inside) -> None:
    """Keep nothing any more: a task that outlives the region still has it in its context."""
    inside.clear()
    inside.wanted = frozenset()


def before(event: str) -> list[dict[str, Any]]:
    """Return what finished so far within the innermost open region that reads this event, if there is one."""
    around = collecting.get()
    while around is not None:
        if event in around.wanted:
            return around.get(event, [])
        around = around.around
    return []


def report(finished: Span) -> None:
    """Give a finished region to all open regions around it that read its event."""
    around = collecting.get()
    record: dict[str, Any] | None = None
    while around is not None:
        if finished.event in around.wanted:
            if record is None:
                record = _record(finished)
            around.setdefault(finished.event, []).append(record)
        around = around.around


def _record(finished: Span) -> dict[str, Any]:
    turn = finished.context.turn
    ids = {} if turn is None else {"turn": turn}
    return {**ids, "duration_sec": (finished.end - finished.start) / 1e9, **(finished.extra or {})}
