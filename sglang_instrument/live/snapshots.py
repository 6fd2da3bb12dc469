"""Make a snapshot of what was counted so far."""

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from sglang_instrument.live.counting.counts import Process, StepKey, WorkerKey
from sglang_instrument.live.counting.engine_calls import ABORT, RETRACT
from sglang_instrument.live.counting.parts import WorkerPart, call_of
from sglang_instrument.live.problems.deaths import is_dead
from sglang_instrument.live.problems.every import losses, standstills
from sglang_instrument.live.problems.hangs import barrier_sec, block_sec
from sglang_instrument.live.problems.moment import Now, open_now_of
from sglang_instrument.live.state import (
    KINDS,
    OfWorker,
    OpenRequest,
    Problem,
    StepDone,
    StepNow,
    Totals,
    WorkerNow,
    WorkerState,
)
from sglang_instrument.plain_text import plain
from sglang_instrument.schema import SCHEDULER_PREEMPT

_OLDEST_OF_WORKER: Final = 20
_MOST_OLDEST: Final = 512
_STEPS_COMPARED: Final = 5
_MOST_NAMED: Final = 3  # requests that will not end
#: Where a request is, by the phase of its innermost open span. A call of the engine is not watched itself.
_KIND_OF: Final = {
    **dict.fromkeys(("generate", "engine", "turn", "request", "loop"), "engine"),
    **{phase: phase for phase in ("tool", "interaction", "environment", "reward", "barrier")},
}


def step_now(now: Now, step: StepKey | None, done: Sequence[StepDone]) -> StepNow | None:
    """Return the step in progress."""
    if step is None:
        return None
    parts = rollouts(now.counts.steps[step])
    workers = {key: (part, now.counts.processes[key].now_us(now.now)) for key, part in parts.items()}
    open_requests = sum(requests_open(part, now_us) for part, now_us in workers.values())
    requests_done = sum(part.done for part in parts.values())
    where: Counter[str] = Counter()
    for key, (part, _) in workers.items():
        where.update(where_open(now, key, part))
    of_each = max(1, min(_OLDEST_OF_WORKER, 2 * _MOST_OLDEST // len(workers)))
    oldest = [
        request
        for key, (part, now_us) in workers.items()
        for request in oldest_of(key, part, now_us, of_each)
    ]
    oldest.sort(key=lambda request: -request.age_sec)
    _split_engine(where, now.counts.calls.counts())
    return StepNow(
        step=step[0],
        validate=step[1],
        age_sec=max(
            max(0, (part.last_us if part.is_closed else now_us) - part.begun_us) / 1e6
            for part, now_us in workers.values()
        ),
        requests_done=requests_done,
        requests_expected=_expected(step, done, requests_done + open_requests),
        requests_open=open_requests,
        tokens=sum(part.tokens for part in parts.values()),
        tokens_per_sec=sum(part.tokens_per_sec(now_us) for part, now_us in workers.values()),
        open=_in_order(where),
        oldest=tuple(oldest[:_MOST_OLDEST]),
        is_over=all(part.is_closed for part in parts.values()),
    )


def rollouts(parts: Mapping[WorkerKey, WorkerPart]) -> Mapping[WorkerKey, WorkerPart]:
    """Return the parts of the rollout workers; all if there are none."""
    return {key: part for key, part in parts.items() if key[0] == "worker"} or parts


def requests_open(part: WorkerPart, now_us: int) -> int:
    """Return how many requests of a worker are open: by its own count, or else by what began and ended."""
    if part.is_closed:
        return 0
    said = open_now_of(part, now_us)
    if said is None:
        return part.known_open
    left = max(0, said.requests - said.requests_ended)
    return left + min(said.uncounted, max(0, part.known_open - left))


def where_open(now: Now, key: WorkerKey, part: WorkerPart) -> dict[str, int]:
    """Return how many open requests of a worker, and whether itself, are where."""
    now_us = now.counts.processes[key].now_us(now.now)
    where: Counter[str] = Counter()
    if part.is_closed:
        return {}
    said = open_now_of(part, now_us)
    if said is None:
        where["other"] = part.known_open
    else:
        for phase, count in said.where.items():
            where[_KIND_OF.get(phase, "other")] += count
        left = requests_open(part, now_us)
        _cut(where, left)
        where["other"] += left - where.total()
    if barrier_sec(now, key, part) is not None:
        where["barrier"] += 1
    return _in_order(where)


def _split_engine(where: Counter[str], calls: Counter[str]) -> None:
    """Split the requests in the engine into queue, prefill and decode, as its schedulers count them.

    The others are on their way there. The schedulers may count more: a server may work for other clients,
    and a call whose end was lost counts for ever. So the counts are cut.
    """
    _cut(calls, where["engine"])
    where.update(calls)
    where["engine"] -= calls.total()


def _cut(where: Counter[str], left: int) -> None:
    """Reduce the counts until they add up to `left`, each by about the same share."""
    while (over := where.total() - left) > 0:
        kind, count = where.most_common(1)[0]
        where[kind] -= max(1, min(over, count * over // where.total()))


def oldest_of(key: WorkerKey, part: WorkerPart, now_us: int, most: int) -> Iterator[OpenRequest]:
    """Yield the oldest open requests of a worker: those that it names, then others that began."""
    if part.is_closed:
        return
    role, worker = key
    said = open_now_of(part, now_us)
    named = set()
    for request in said.oldest[:most] if said else ():
        named.add(request.request_id)
        known = part.requests.get(request.request_id or "")
        if known is not None and known.ended_us is not None:
            continue
        age_sec = request.age_sec + max(0.0, (now_us - said.at_us) / 1e6) if said else 0.0
        request_id = None if request.request_id is None else plain(request.request_id)
        tokens = known.tokens if known else None
        tool = None if request.tool is None else plain(request.tool)
        yield OpenRequest(request_id, worker, request.turn, plain(request.event), age_sec, tokens, role, tool)
    if said is not None and part.known_open > said.requests + said.uncounted:
        return  # some of those known to be open ended without a record
    others = ((name, other_request) for name, other_request in part.open_requests() if name not in named)
    for request_id, other in islice(others, max(0, most - len(named))):
        age_sec = max(0.0, (now_us - other.begun_us) / 1e6)
        yield OpenRequest(plain(request_id), worker, other.turn, None, age_sec, other.tokens, role)


def _expected(step: StepKey, done: Sequence[StepDone], begun: int) -> int | None:
    """Return how many requests a step will have, by the last ones; at least as many as have begun."""
    counts = [
        step_done.requests
        for step_done in done
        if step_done.validate == step[1] and step_done.step != step[0]
    ]
    if not counts:
        return None
    return max(begun, round(statistics.median_low(counts[-_STEPS_COMPARED:])))


def workers_now(now: Now, step: StepKey | None, problems: Sequence[Problem]) -> tuple[WorkerNow, ...]:
    """Return the processes that log steps, in order."""
    parts = now.counts.steps.get(step, {}) if step is not None else {}
    hanging = {(problem.role, problem.worker) for problem in problems if problem.kind == "hang"}
    states = {
        key: _state(now, key, process, parts, hanging)
        for key, process in now.counts.processes.items()
        if process.step is not None
    }
    blocking = _blocking(now, parts, states)
    return tuple(_worker(now, key, state, parts.get(key), blocking) for key, state in sorted(states.items()))


def _state(
    now: Now,
    key: WorkerKey,
    process: Process,
    parts: Mapping[WorkerKey, WorkerPart],
    hanging: set[tuple[str, int | None]],
) -> WorkerState:
    part = parts.get(key)
    if is_dead(key, process, part, now):
        return "dead"
    if key in hanging:
        return "hangs"
    if process.log_closed or part is None:
        return "ended"
    if part.is_closed:
        others = [other_part for other, other_part in rollouts(parts).items() if other != key]
        return "waits" if any(not other_part.is_closed for other_part in others) else "ended"
    return "waits" if barrier_sec(now, key, part) is not None else "runs"


def _blocking(
    now: Now, parts: Mapping[WorkerKey, WorkerPart], states: Mapping[WorkerKey, WorkerState]
) -> WorkerKey | None:
    """Return the worker that others wait for: one that died or hangs, else that with most requests open."""
    late = {
        key: part
        for key, part in rollouts(parts).items()
        if not part.is_closed and states.get(key) in ("runs", "hangs", "dead")
    }
    if not late or len(late) == len(rollouts(parts)):
        return None
    rank = {"dead": 2, "hangs": 1}

    def order(key: WorkerKey) -> tuple[int, int, int]:
        now_us = now.counts.processes[key].now_us(now.now)
        return rank.get(states[key], 0), requests_open(late[key], now_us), -key[1]

    return max(late, key=order)


def _worker(
    now: Now, key: WorkerKey, state: WorkerState, part: WorkerPart | None, blocking: WorkerKey | None
) -> WorkerNow:
    process = now.counts.processes[key]
    now_us = process.now_us(now.now)
    return WorkerNow(
        role=key[0],
        worker=key[1],
        step=_newest_step(now, key),
        requests_done=part.done if part else 0,
        requests_open=requests_open(part, now_us) if part else 0,
        open=where_open(now, key, part) if part else {},
        tokens=part.tokens if part else 0,
        tokens_per_sec=part.tokens_per_sec(now_us) if part else 0.0,
        silent_sec=max(0.0, now.now - process.last_at),
        state=state,
        waits_for=blocking[1] if blocking is not None and state == "waits" and key[0] == "worker" else None,
    )


def _newest_step(now: Now, key: WorkerKey) -> int:
    logged = [step for step in now.steps if key in now.counts.steps[step]]
    step = logged[-1] if logged else now.counts.processes[key].step
    return step[0] if step else 0


def totals_of(now: Now) -> Totals:
    """Return the counters of all processes."""
    return {
        key: OfWorker(
            process.requests,
            process.failed,
            process.tokens,
            process.records,
            process.lost,
            process.taken_back[RETRACT],
            process.taken_back[SCHEDULER_PREEMPT],
            process.taken_back[ABORT],
            events={
                (plain(seen.event), plain(seen.phase)): (seen.count, seen.sec)
                for seen in process.events.values()
            },
        )
        for key, process in sorted(now.counts.processes.items())
    }


def problems_now(now: Now, step: StepKey | None, in_progress: StepNow | None) -> list[Problem]:
    """Return what goes wrong in the run, causes before their consequences."""
    stand = standstills(now, step)
    problems = [*stand, *_will_not_end(now, in_progress, stand), *losses(now)]
    return [replace(problem, sentence=plain(problem.sentence)) for problem in problems]


def is_blocked(now: Now, step: StepKey | None) -> bool:
    """Return whether the event loop of a worker is blocked: its requests wait, whatever is usual."""
    parts = now.counts.steps.get(step, {}) if step is not None else {}
    return any(block_sec(now, key, part) > 0 for key, part in parts.items())


def _will_not_end(now: Now, step: StepNow | None, known: Sequence[Problem]) -> Iterator[Problem]:
    """Yield the requests that the forecast gives up, unless a problem names them already."""
    if step is None or step.forecast is None:
        return
    open_ones = {(request.worker, request.request_id): request for request in step.oldest}
    for worker, request_id in step.forecast.will_not_end[:_MOST_NAMED]:
        if not any(
            problem.worker == worker
            and re.search(rf"request {re.escape(request_id)}\b(?!-)", problem.sentence)
            for problem in known
        ):
            request = open_ones.get((worker, request_id))
            inside = (
                f" in {call_of(request.event, request.tool)}" if request is not None and request.event else ""
            )
            sentence = f"worker {worker}: request {request_id} is open{inside} for longer than any that ended"
            since_us = now.since_us(request.age_sec if request is not None else 0.0)
            yield Problem("hang", since_us, worker, step.step, sentence)


def _in_order(where: Mapping[str, int]) -> dict[str, int]:
    return {kind: where[kind] for kind in KINDS if where.get(kind)}
