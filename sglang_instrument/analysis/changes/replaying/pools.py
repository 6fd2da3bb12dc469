"""Find out how many calls of a tool or reward run at once where more are made: a pool's limit.

Calls wait for a place in the order in which they are made. Calls that begin while few others run tell how
long a call takes. The number of places is the one with which crowded calls take as long once admitted.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from sglang_instrument.analysis.changes.replaying.queueing import admissions
from sglang_instrument.analysis.reading.records.fields import Fields
from sglang_instrument.analysis.reading.records.lines import Integer
from sglang_instrument.analysis.run.newest_records import newest_records

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

EVENTS: Final = ("tool_call", "reward_calculation")
_FEWEST: Final = 40  # calls
_BETTER: Final = 0.95  # the times from the admission on scatter at most so much as the whole times
_QUEUED: Final = 1.5  # times as long as calls alone take, where many are made
_LEAST_WAITING: Final = 0.1  # of the time of calls


class PooledCall(NamedTuple):
    """A call of a tool or a reward; times are seconds."""

    name: str
    step: int
    worker: int
    request_id: str
    turn: int | None
    begin: float
    end: float

    @property
    def kind(self) -> str:
        """Whether it is a "tool" or a "reward"."""
        return "tool" if self.name.startswith("tool_call") else "reward"


class WorkPool(NamedTuple):
    """What a pool is.

    Attributes:
        name: The event, with the tool's name.
        places: How many calls run at once.
        most: The most calls that were made and not done at once.
        waited_share: The share of the calls' time in which they waited.
        calls: How many there were.
    """

    name: str
    places: int
    most: int
    waited_share: float
    calls: int


class _PoolFields(Fields, gc=False, omit_defaults=True):
    request_id: str | Integer | None = None
    turn: Integer | None = None
    tool: str | None = None


class PooledCalls:
    """The calls of tools and rewards of a run, and the pools that they wait for."""

    def __init__(self, run: "Run") -> None:
        self.by_name: dict[str, list[PooledCall]] = {}
        for call in _calls(run):
            self.by_name.setdefault(call.name, []).append(call)
        self._admitted: dict[str, list[float]] = {}
        self.pools = [pool for name in self.by_name if (pool := self._pool(name)) is not None]
        self._of_requests: dict[tuple[int, str], list[tuple[PooledCall, float]]] = {}
        for name, calls in self.by_name.items():
            admitted = self._admitted.get(name) or [call.begin for call in calls]
            for call, begin in zip(calls, admitted, strict=True):
                self._of_requests.setdefault((call.step, call.request_id), []).append((call, begin))

    def of_request(self, step: int, request_id: str) -> Sequence[tuple[PooledCall, float]]:
        """Return the calls of a request, and when each had its place."""
        return self._of_requests.get((step, request_id), ())

    def saved(
        self, step: int, request_id: str, free: frozenset[str], most_sec: dict[str, float]
    ) -> dict[int | None, float]:
        """Return the seconds that each turn of a request saves; those of its reward under None.

        Args:
            step: The step.
            request_id: The request.
            free: The pools in which nobody waits any more.
            most_sec: Most seconds of a call, by name.
        """
        by_turn: dict[int | None, list[tuple[float, float, float]]] = {}
        for call, admitted in self._of_requests.get((step, request_id), ()):
            took = call.end - (admitted if call.name in free else call.begin)
            took = min(took, most_sec.get(call.name, took))
            by_turn.setdefault(call.turn, []).append((call.begin, call.end, took))
        saved = {}
        for turn, calls in by_turn.items():
            was = max(end for _, end, _ in calls) - min(begin for begin, _, _ in calls)
            saved[turn] = max(0.0, was - max(took for _, _, took in calls))
        return saved

    def _pool(self, name: str) -> WorkPool | None:
        calls = self.by_name[name]
        if len(calls) < _FEWEST:
            return None
        starts, ends = [call.begin for call in calls], [call.end for call in calls]
        in_flight = _in_flight_at_begin(starts, ends)
        most = max(in_flight)
        fewest = sorted(in_flight)[len(calls) // 10]
        alone = median(call.end - call.begin for call, n in zip(calls, in_flight, strict=True) if n <= fewest)
        crowded = [number for number, n in enumerate(in_flight) if n > fewest and n >= most / 2]
        if not crowded or median(ends[n] - starts[n] for n in crowded) < _QUEUED * alone:
            return None
        places = _places(starts, ends, crowded, alone, most)
        admitted = admissions(starts, ends, places)
        if _scatter(admitted, ends) > _BETTER * _scatter(starts, ends):
            return None
        waited = sum(begin - start for begin, start in zip(admitted, starts, strict=True))
        took = sum(end - start for start, end in zip(starts, ends, strict=True))
        if waited < _LEAST_WAITING * took:
            return None
        self._admitted[name] = admitted
        return WorkPool(name, places, most, waited / took, len(calls))


def _places(starts: list[float], ends: list[float], crowded: list[int], alone_sec: float, most: int) -> int:
    """Return the number of places with which crowded calls, once admitted, take as long as those alone do.

    With more places, calls are admitted earlier, and take longer from there on.
    """
    low, high = 1, most
    while low < high:
        places = (low + high) // 2
        admitted = admissions(starts, ends, places)
        if median(ends[number] - admitted[number] for number in crowded) < alone_sec:
            low = places + 1
        else:
            high = places
    return low


def _scatter(starts: list[float], ends: list[float]) -> float:
    """Return the middle half's width of the logarithm of times; infinite where some end before they begin."""
    logs = sorted(math.log(max(end - start, 1e-6)) for start, end in zip(starts, ends, strict=True))
    quarter = len(logs) // 4
    return logs[-1 - quarter] - logs[quarter]


def _in_flight_at_begin(starts: list[float], ends: list[float]) -> list[int]:
    """Return how many calls are made and not done when each begins, itself included."""
    begun, ended = sorted(starts), sorted(ends)
    return [bisect_right(begun, start) - bisect_right(ended, start) for start in starts]


def _calls(run: "Run") -> Iterator[PooledCall]:
    files = [
        file
        for file in run.files
        if file.place is not None and file.place.step is not None and not file.place.validate
    ]
    for file, line, fields in newest_records(run, files, _PoolFields, events=EVENTS):
        if line.start_us is None or line.duration_sec is None or fields.request_id is None:
            continue
        if file.place is None or file.place.step is None or file.place.worker is None:
            continue
        begin = line.start_us / 1e6
        is_tool = line.event == "tool_call"
        name = f"{line.event} {fields.tool}" if is_tool and fields.tool else line.event
        turn = fields.turn if is_tool else None
        yield PooledCall(
            name,
            file.place.step,
            file.place.worker,
            str(fields.request_id),
            turn,
            begin,
            begin + line.duration_sec,
        )
