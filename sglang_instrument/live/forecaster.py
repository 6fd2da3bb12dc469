"""Feed the forecast: with the steps that ended while they were followed, and with the step in progress."""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from sglang_instrument.live.counting.counts import Counts, StepKey, WorkerKey
from sglang_instrument.live.counting.longest import Longest, longest_of
from sglang_instrument.live.counting.parts import OldRequest, WorkerPart, call_of
from sglang_instrument.live.forecasting.forecast import MOST_STEPS, History, forecast
from sglang_instrument.live.forecasting.hanging import limit_of
from sglang_instrument.live.forecasting.history import NOT_YET, PastStep, Requests, StepSoFar
from sglang_instrument.live.problems.moment import Now, open_now_of
from sglang_instrument.live.snapshots import rollouts
from sglang_instrument.live.state import Forecast
from sglang_instrument.plain_text import plain
from sglang_instrument.schema import kind_of

_CALLS: Final = frozenset({"generate", "engine", "tool", "interaction", "environment", "reward"})
_Row = tuple[str, int, float, float, list[float]]


class Forecaster:
    """Knows the last steps of a run. Of a step that had begun before it was followed it knows nothing."""

    def __init__(self) -> None:
        self._histories = {False: History(), True: History()}
        self._ended: dict[bool, list[PastStep]] = {False: [], True: []}  # not in the histories yet
        self._known: set[StepKey] = set()

    def saw_end(self, counts: Counts, step: StepKey) -> None:
        """Note a step that ended; the next forecast learns from it, which costs more than a look at it."""
        if step in self._known:
            return
        self._known.add(step)
        parts = rollouts(counts.steps[step])
        requests = Requests.of(row for key, part in parts.items() for _, row in _rows(key, part))
        end_sec = max((part.last_us - part.begun_us) / 1e6 for part in parts.values())
        past = PastStep(requests, end_sec, _longest(parts))
        self._ended[step[1]] = [*self._ended[step[1]], past][-MOST_STEPS:]

    def forecast(self, now: Now, step: StepKey, age_sec: float, expected: int | None) -> Forecast | None:
        """Return when a step in progress ends; None while no step has ended."""
        parts = rollouts(now.counts.steps[step])
        history = self._learned(step[1])
        if not history.steps or all(part.is_closed for part in parts.values()):
            return None
        known = _longest(parts).keys() | {call for past in history.steps for call in past.longest_sec}
        longest_sec = _longest(parts)
        calls = [call for call in known if kind_of(call.partition(" ")[0]).phase in _CALLS]
        limits = [limit_of(call, history.steps, longest_sec) for call in calls]
        usual_sec = max((sec for sec in limits if sec < float("inf")), default=0.0)
        rows: list[_Row] = []
        events: dict[int, tuple[str, float]] = {}
        for key, part in parts.items():
            spans = _open_spans(now, key, part, known, usual_sec)
            for name, row in (*_rows(key, part), *_without_records(now, key, part)):
                if name in spans and row[3] == NOT_YET:
                    events[len(rows)] = spans[name]
                rows.append(row)
        so_far = StepSoFar(age_sec, Requests.of(rows), expected, events, longest_sec)
        return forecast(history, so_far)

    def _learned(self, validate: bool) -> History:
        ended, self._ended[validate] = self._ended[validate], []
        for past in ended:
            self._histories[validate] = self._histories[validate].after(past)
        return self._histories[validate]


def _rows(key: WorkerKey, part: WorkerPart) -> Iterator[tuple[str, _Row]]:
    """Yield the requests of a worker, in seconds after its part of the step began."""

    def after(at_us: int) -> float:
        return max(0.0, (at_us - part.begun_us) / 1e6)

    for name, request in part.requests.items():
        ended = NOT_YET if request.ended_us is None else after(request.ended_us)
        yield (
            name,
            (
                plain(name),
                key[1],
                after(request.begun_us),
                ended,
                [after(turn_us) for turn_us in request.turns_us],
            ),
        )


def _without_records(now: Now, key: WorkerKey, part: WorkerPart) -> Iterator[tuple[str, _Row]]:
    """Yield the requests that a worker names as open, of which nothing has ended yet."""
    said = open_now_of(part, now.clock_us(key))
    for request in said.oldest if said is not None else ():
        if request.request_id is not None and request.request_id not in part.requests and said is not None:
            begun_sec = max(0.0, (said.at_us - part.begun_us) / 1e6 - request.age_sec)
            yield request.request_id, (plain(request.request_id), key[1], begun_sec, NOT_YET, [])


def _open_spans(
    now: Now, key: WorkerKey, part: WorkerPart, known: Collection[str], usual_sec: float
) -> dict[str, tuple[str, float]]:
    """Return what open requests are in, and for how long: their innermost span.

    The worker names that of its oldest requests every 2 s, and any that the watchdog reports. A call whose
    like never ended says nothing: there it is the request itself.

    Args:
        now: What is looked at.
        key: A worker.
        part: Its part of the step.
        known: The calls that ended before, as `call_of` names them.
        usual_sec: How long a call may take. Of a request that is in a call which is not named, such as one of
            the engine, nothing is said for so long after its newest record: it makes progress.
    """
    now_us = now.heard_us(key)
    spans: dict[str, tuple[str, float]] = {}
    said = open_now_of(part, now_us)
    request_event = next((name for name in part.longest if now.phase_of(key, name) == "request"), None)
    request_event = request_event or next((name for name in known if kind_of(name).phase == "request"), None)
    for request in said.oldest if said is not None else ():
        later_sec = (now_us - said.at_us) / 1e6 if said is not None else 0.0
        call = call_of(request.event, request.tool)
        if request.request_id is None:
            continue
        if request.in_sec is not None and call in known:
            spans[request.request_id] = call, request.in_sec + later_sec
        elif request_event is not None and _silent_sec(part, request, now_us) > usual_sec:
            spans[request.request_id] = request_event, request.age_sec + later_sec
    for (event, request_id, _), span in part.reported.items():
        age_sec, call = (now_us - span.begun_us) / 1e6, call_of(event, span.tool)
        if request_id is not None and call in known and age_sec < spans.get(request_id, ("", 1e18))[1]:
            spans[request_id] = call, age_sec
    return spans


def _silent_sec(part: WorkerPart, request: OldRequest, now_us: int) -> float:
    """Return the time since a request had a record; if it had none, its age."""
    logged = part.requests.get(request.request_id or "")
    return request.age_sec if logged is None else (now_us - logged.progress_us) / 1e6


def _longest(parts: Mapping[WorkerKey, WorkerPart]) -> dict[str, list[float]]:
    counted: dict[str, list[tuple[int, Longest]]] = {}
    for part in parts.values():
        for event, longest in part.longest.items():
            counted.setdefault(event, []).append((longest.count, longest))
    return {event: longest_of(of_event) for event, of_event in counted.items()}
