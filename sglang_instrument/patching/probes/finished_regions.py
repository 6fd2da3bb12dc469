"""Keep the records of finished regions that `inside.EVENT`, `before.EVENT` and `last.EVENT` read.

Records are kept only while a region that reads them is open, and only of its events; others cost nothing. Of
an event that `last` reads, one record is kept.
"""

from contextvars import ContextVar
from typing import Any, Final

from sglang_instrument.recording.measure.context import put
from sglang_instrument.recording.measure.spans import Span


class RegionRecords(dict[str, list[dict[str, Any]]]):
    """The records of the regions that finished inside one run of a region, by event.

    `outer` is the enclosing collection, which gets the records too; `before` was current before this one.
    """

    __slots__ = ("before", "ended", "outer", "wanted")
    wanted: frozenset[str]
    outer: "RegionRecords | None"
    before: "RegionRecords | None"
    ended: bool


#: The collection of the innermost open region that reads `inside`; callees and new tasks inherit it.
collecting: Final[ContextVar[RegionRecords | None]] = ContextVar("sglang_instrument_inside", default=None)


def collect(wanted: frozenset[str], root: bool) -> RegionRecords:
    """Begin to keep the `wanted` events; a `root` reports to no enclosing region."""
    inside = RegionRecords()  # no __init__: it would double the cost
    inside.wanted, inside.ended, before = wanted, False, collecting.get()
    inside.outer = None if root else before
    while before is not None and before.ended:  # ended in another task, as contexts may be
        before = before.before
    inside.before = before
    put(collecting, inside)  # no token: it would keep the program's objects alive, see context.Bound
    return inside


def detach(ending: RegionRecords) -> None:
    """End what `collect` began; if the region was entered in another task, it is not set in this one."""
    is_first, ending.ended = not ending.ended, True
    current = collecting.get() if is_first else None
    while current is not None and current is not ending:
        current = current.before
    if current is not None:
        put(collecting, ending.before)


def discard(inside: RegionRecords) -> None:
    """Drop all records and keep no new ones: a task that outlives the region still refers to `inside`."""
    inside.clear()
    inside.wanted = frozenset()


def before(event: str) -> list[dict[str, Any]]:
    """Return the records of an event in the innermost open region that reads it; none if there is none."""
    outer = collecting.get()
    while outer is not None:
        if event in outer.wanted:
            return outer.get(event, [])
        outer = outer.outer
    return []


#: The newest value of each field, of the events that `last` reads.
_last: Final[dict[str, dict[str, Any]]] = {}


def last(event: str) -> dict[str, Any]:
    """Return the fields of an event's last finished region; of a field that it lacked, an earlier value.

    They are kept from the first call on.
    """
    return _last.setdefault(event, {})


def report(finished: Span) -> None:
    """Give the record of a finished region to all enclosing open regions that read its event."""
    outer, event = collecting.get(), finished.event
    record: dict[str, Any] | None = None
    newest = _last.get(event)
    if newest is not None:
        record = _record(finished)
        newest.update((name, value) for name, value in record.items() if value is not None)
    while outer is not None:
        if event in outer.wanted:
            if record is None:
                record = _record(finished)
            outer.setdefault(event, []).append(record)
        outer = outer.outer


def _record(finished: Span) -> dict[str, Any]:
    turn, fields = finished.context.turn, finished.extra or {}
    if turn is None:
        return {"duration_sec": finished.duration_sec, **fields}
    return {"turn": turn, "duration_sec": finished.duration_sec, **fields}
