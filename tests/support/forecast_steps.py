"""Turn steps of generated runs into what a forecast is asked with, and let requests of them hang."""

from dataclasses import dataclass, replace
from random import Random

import numpy as np
from other_runs import OtherRun

from sglang_instrument.live.counting.longest import Longest, longest_of
from sglang_instrument.live.forecasting.history import NOT_YET, PastStep, Requests, StepSoFar
from sglang_instrument.testing.run_shape import play_run
from sglang_instrument.testing.world.play import play
from sglang_instrument.testing.world.rollout.shape import draw_shape

#: What a request can be in, of the generators' events.
CALLS = ("turn_engine_call", "tool_execution", "interaction_response", "reward_calculation")


@dataclass(frozen=True)
class Call:
    """A call of a request; times are seconds after the begin of the step."""

    event: str
    request_id: str
    start_sec: float
    end_sec: float


@dataclass(frozen=True)
class MadeStep:
    """A step as its logs tell of it when it is over, and the calls of its requests."""

    past: PastStep
    calls: list[Call]

    def as_of(self, age_sec: float) -> StepSoFar:
        """Return what was known of the step when it was so old."""
        now = self.past.so_far(age_sec)
        places = {request_id: place for place, request_id in enumerate(now.requests.ids)}
        is_open = {
            request_id
            for request_id, still in zip(now.requests.ids, now.requests.is_open, strict=True)
            if still
        }
        open_events = {
            places[call.request_id]: (call.event, age_sec - call.start_sec)
            for call in self.calls
            if call.start_sec <= age_sec < call.end_sec and call.request_id in is_open
        }
        ended = [call for call in self.calls if call.end_sec <= age_sec]
        return replace(now, open_events=open_events, longest_sec=_longest(ended))

    def hung(self, random: Random) -> "tuple[MadeStep, Call]":
        """Return the step if one of its calls never returned, and that call."""
        call = random.choice(self.calls)
        requests = self.past.requests
        hung = np.array([request_id == call.request_id for request_id in requests.ids])
        ended_sec = np.where(hung, NOT_YET, requests.ended_sec)
        late = hung[:, None] & (requests.turns_sec > call.start_sec)
        turns_sec = np.where(late, NOT_YET, requests.turns_sec)
        stuck = replace(call, end_sec=NOT_YET)
        calls = [
            other
            for other in self.calls
            if other.request_id != call.request_id or other.end_sec <= call.start_sec
        ]
        past = replace(
            self.past, requests=replace(requests, ended_sec=ended_sec, turns_sec=turns_sec), end_sec=NOT_YET
        )
        return MadeStep(past, [*calls, stuck]), stuck


def steps_of(shape, causes=()):
    """Yield the steps of a run of the package's generator."""
    for played in play_run(shape, causes):
        records = [
            (rank, event.event, event.start - played.begin, event.end - played.begin, event.extra)
            for rank, worker in enumerate(played.workers)
            for event in worker.happened
        ]
        yield _made(records, max(worker.end for worker in played.workers) - played.begin)


def steps_of_other(seed):
    """Return the steps of a run of the other generator, on which nothing was tuned."""
    return _InMemory(seed).records_in_memory()


class _InMemory(OtherRun):
    """The other generator, without files."""

    def records_in_memory(self):
        self.written = {}
        self.write(_NoFolder())
        return [self._step(written) for written in self.written.values()]

    def _write(self, path, step, rank, records):
        self.written.setdefault(step, []).append((rank, records))

    def _step(self, written):
        begin = min(start for _, records in written for _, start, _, _, _ in records)
        records = [
            (rank, event, start - begin, end - begin, extra)
            for rank, of_worker in written
            for event, start, end, _, extra in of_worker
        ]
        # It logs no begins of requests and turns: a request begins with its record, a turn with its call.
        records += [
            (rank, "request_start", start, start, extra)
            for rank, event, start, _, extra in records
            if event == "async_rollout_request_complete"
        ]
        records += [
            (rank, "turn_start", start, start, extra)
            for rank, event, start, _, extra in records
            if event == "turn_engine_call"
        ]
        return _made(records, max(end for _, _, _, end, _ in records))


def steps_of_world(family, seed, *, hidden):
    """Yield the steps of a world of servers, as the logs of its workers tell of them."""
    stage = play(draw_shape(family, seed, hidden=hidden))
    for step, (begin, _) in stage.steps.items():
        records = [
            (rank, record.event, record.begin - begin, record.end - begin, record.extra)
            for rank in range(stage.shape.workers)
            for record in stage.records.files.get(f"step_{step}/worker_{rank}", [])
        ]
        begins = {"async_rollout_request_complete": "request_start", "turn_end": "turn_start"}
        begun = [
            (rank, begins[event], start, start, extra)
            for rank, event, start, _, extra in records
            if event in begins
        ]
        yield _made([*records, *begun], max(end for _, _, _, end, _ in records))


class _NoFolder:
    def __truediv__(self, name):
        return self


def _made(records, end_sec):
    """Return a step from its records: worker, event, start, end, fields."""
    calls = [
        Call(event, extra["request_id"], start, end)
        for _, event, start, end, extra in records
        if event in CALLS
    ]
    worker = {extra["request_id"]: rank for rank, event, _, _, extra in records if event == "request_start"}
    begun = {extra["request_id"]: end for _, event, _, end, extra in records if event == "request_start"}
    ended = {
        extra["request_id"]: end
        for _, event, _, end, extra in records
        if event == "async_rollout_request_complete"
    }
    turns = {request_id: [] for request_id in begun}
    for _, event, _, end, extra in records:
        if event == "turn_start":
            turns[extra["request_id"]].append(end)
    requests = Requests.of(
        (
            request_id,
            worker[request_id],
            begun[request_id],
            ended.get(request_id, NOT_YET),
            sorted(turns[request_id]),
        )
        for request_id in begun
    )
    return MadeStep(PastStep(requests, end_sec, _longest(calls)), calls)


def drawn_steps(seed, slots, turns, steps=10, workers=4, requests=48):
    """Yield steps without an engine, in which a worker runs at most `slots` requests at once.

    `turns` are the least and the most turns of a request.
    """
    random = Random(f"drawn/{seed}")
    for step in range(steps):
        rows = []
        for rank in range(workers):
            free = [0.0] * slots
            for number in range(requests):
                free.sort()
                sec = [random.lognormvariate(0.5, 0.8) for _ in range(random.randint(*turns))]
                starts = [free[0] + sum(sec[:turn]) for turn in range(len(sec))]
                free[0] += sum(sec)
                rows.append((f"{step}-{rank}-{number}", rank, starts[0], free[0], starts))
        requests_made = Requests.of(rows)
        past = PastStep(requests_made, requests_made.last_end_sec + random.uniform(0.5, 1.0))
        yield MadeStep(past, [])


def _longest(calls):
    """Return the longest calls of each event."""
    spans = {}
    for call in calls:
        spans.setdefault(call.event, []).append(call.end_sec - call.start_sec)
    longest = {}
    for event, of_event in spans.items():
        counted = Longest()
        for sec in of_event:
            counted.add(sec)
        longest[event] = longest_of([(counted.count, counted)])
    return longest
