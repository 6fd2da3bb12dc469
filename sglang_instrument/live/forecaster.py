"""Feed the forecast: with the steps that ended while they were followed, and with the step in progress."""

from collections.abc import Iterator, Mapping

from sglang_instrument.live.counting.counts import Counts, StepKey, WorkerKey
from sglang_instrument.live.counting.parts import WorkerPart
from sglang_instrument.live.forecasting.forecast import MOST_STEPS, History, forecast
from sglang_instrument.live.forecasting.history import NOT_YET, PastStep, Requests, StepSoFar
from sglang_instrument.live.problems.moment import Now, open_now_of
from sglang_instrument.live.snapshots import rollouts
from sglang_instrument.live.state import Forecast
from sglang_instrument.plain_text import plain
from sglang_instrument.schema import kind_of

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
        rows: list[_Row] = []
        events: dict[int, tuple[str, float]] = {}
        for key, part in parts.items():
            spans = _open_spans(now, key, part)
            for name, row in _rows(key, part):
                if name in spans and row[3] == NOT_YET:
                    events[len(rows)] = spans[name]
                rows.append(row)
        so_far = StepSoFar(age_sec, Requests.of(rows), expected, events, _longest(parts))
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


def _open_spans(now: Now, key: WorkerKey, part: WorkerPart) -> dict[str, tuple[str, float]]:
    """Return what open requests are in, and for how long: their innermost span that the watchdog reported.

    Of the oldest requests without a report, that is the request itself.
    """
    now_us = now.counts.processes[key].now_us(now.now)
    spans: dict[str, tuple[str, float]] = {}
    said = open_now_of(part, now_us)
    request_event = next((name for name in part.longest_sec if kind_of(name).phase == "request"), None)
    for oldest in said.oldest if said and request_event else ():
        if oldest.request_id is not None and said is not None and request_event is not None:
            spans[oldest.request_id] = request_event, oldest.age_sec + (now_us - said.at_us) / 1e6
    for (event, request_id, _), span in part.reported.items():
        age_sec = (now_us - span.begun_us) / 1e6
        if request_id is not None and age_sec < spans.get(request_id, ("", 1e18))[1]:
            spans[request_id] = event, age_sec
    return spans


def _longest(parts: Mapping[WorkerKey, WorkerPart]) -> dict[str, float]:
    longest: dict[str, float] = {}
    for part in parts.values():
        for event, sec in part.longest_sec.items():
            longest[event] = max(longest.get(event, 0.0), sec)
    return longest
