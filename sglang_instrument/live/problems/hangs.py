"""Find spans that do not end, barriers that nobody leaves, and event loops that are blocked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sglang_instrument.live.counting.counts import StepKey, WorkerKey
from sglang_instrument.live.counting.parts import WorkerPart
from sglang_instrument.live.problems.moment import TIMES, Now, open_now_of, problem_of
from sglang_instrument.live.problems.problem import Problem
from sglang_instrument.plain_text import duration
from sglang_instrument.schema import LOOP_BLOCK, kind_of

_LEAST_SEC: Final = 30.0  # a request that is younger than this is not called hanging
_BLOCKED_SEC: Final = 5.0  # a block of the loop that is younger is not called a hang
_TOLD_SEC: Final = 15.0  # an open step is told of every 2 s
_NAMED: Final = 3  # of many alike
_NEVER_SEC: Final = float("inf")


@dataclass(frozen=True)
class _Hanging:
    """A span that does not end."""

    age_sec: float
    event: str
    turn: int | None
    tool: str | None
    place: str | None = None


def hangs(now: Now, step: StepKey | None) -> list[Problem]:
    """Return the blocked loops, then the spans that hang, then a barrier at which all wait."""
    blocks: list[Problem] = []
    spans: list[Problem] = []
    for key_of_step, parts in now.counts.steps.items():  # asynchronous trainers have several in progress
        for key, part in parts.items():
            if not part.is_closed and (key_of_step == step or _is_told_of(now, key, part)):
                blocks += _blocked_loop(now, key_of_step, key, part)
                spans += _open_too_long(now, key_of_step, key, part)
    parts = now.counts.steps.get(step, {}) if step is not None else {}
    return [*_by_age(blocks), *_by_age(spans), *_stuck_barrier(now, step, parts)]


def _by_age(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: problem.since_us)


def _is_told_of(now: Now, key: WorkerKey, part: WorkerPart) -> bool:
    """Return whether a worker still says what is open in an older step."""
    return part.open_now is not None and now.clock_us(key) - part.open_now.at_us < _TOLD_SEC * 1e6


def _blocked_loop(now: Now, step: StepKey, key: WorkerKey, part: WorkerPart) -> Iterator[Problem]:
    """Yield the event loop of a worker, if it is blocked for longer than usual."""
    block = part.block
    age_sec = block_sec(now, key, part)
    if block is None or age_sec <= max(_BLOCKED_SEC, TIMES * now.counts.longest_of(LOOP_BLOCK)):
        return
    inside = "" if block.event is None else f", in {_named(block.event, block.tool, block.request_id, None)}"
    place = f" at {block.place}" if block.place else ""
    sentence = f"its event loop is blocked{place}{inside}; no other request of it goes on"
    yield problem_of("hang", now.since_us(age_sec), key, step, sentence)


def block_sec(now: Now, key: WorkerKey, part: WorkerPart) -> float:
    """Return for how long the event loop of a worker has been blocked; 0 if it is not."""
    if part.block is None or part.is_closed:
        return 0.0
    return max(0.0, (now.clock_us(key) - part.block.begun_us) / 1e6)


def _open_too_long(now: Now, step: StepKey, key: WorkerKey, part: WorkerPart) -> Iterator[Problem]:
    """Yield the spans of a worker that hang, of each request the innermost; of many, a few."""
    longest_first = sorted(_hanging(now, key, part).items(), key=lambda item: -item[1].age_sec)
    for request_id, span in longest_first[:_NAMED]:
        sentence = _sentence(request_id, span, now.longest_sec.get(now.phase_of(key, span.event)))
        yield problem_of("hang", now.since_us(span.age_sec), key, step, sentence)
    if len(longest_first) > _NAMED:
        age_sec = longest_first[_NAMED][1].age_sec
        more = f"{len(longest_first) - _NAMED} more requests hang"
        yield problem_of("hang", now.since_us(age_sec), key, step, more)


def _hanging(now: Now, key: WorkerKey, part: WorkerPart) -> dict[str | None, _Hanging]:
    """Return what hangs, by request. What only waits since the event loop is blocked does not."""
    limits, now_us, blocked_sec = now.limits_sec, now.heard_us(key), block_sec(now, key, part)
    if blocked_sec:  # what is young but for the block only waits for it
        limits = {phase: max(limit_sec, _LEAST_SEC) for phase, limit_sec in limits.items()}
    hanging: dict[str | None, _Hanging] = {}
    for (event, request_id, turn), opened in part.reported.items():
        age_sec = (now_us - opened.begun_us) / 1e6
        is_inner = request_id not in hanging or age_sec < hanging[request_id].age_sec
        if is_inner and age_sec - blocked_sec > limits.get(now.phase_of(key, event), _NEVER_SEC):
            hanging[request_id] = _Hanging(age_sec, event, turn, opened.tool, opened.place)
    said = open_now_of(part, now_us)
    for request in said.oldest if said is not None else ():
        age_sec = request.age_sec + (now_us - said.at_us) / 1e6 if said is not None else 0.0
        is_old = age_sec - blocked_sec > max(_LEAST_SEC, limits["request"])
        if is_old and request.request_id not in hanging and not _has_ended(part, request.request_id):
            hanging[request.request_id] = _Hanging(age_sec, request.event, request.turn, request.tool)
    return hanging


def _has_ended(part: WorkerPart, request_id: str | None) -> bool:
    request = part.requests.get(request_id or "")
    return request is not None and request.ended_us is not None


def _sentence(request_id: str | None, span: _Hanging, longest_sec: float | None) -> str:
    place = f", at {span.place}" if span.place else ""
    usual = f"; the longest before took {duration(longest_sec)}" if longest_sec else ""
    return f"{_named(span.event, span.tool, request_id, span.turn)} does not end{place}{usual}"


def _named(event: str, tool: str | None, request_id: str | None, turn: int | None) -> str:
    """Return "tool_call search of request r7, turn 3"."""
    of = "" if request_id is None else f" of request {request_id}"
    in_turn = "" if turn is None else f", turn {turn + 1}"
    return f"{event}{f' {tool}' if tool else ''}{of}{in_turn}"


def _stuck_barrier(
    now: Now, step: StepKey | None, parts: Mapping[WorkerKey, WorkerPart]
) -> Iterator[Problem]:
    """Yield a barrier at which all workers wait, so that none can free the others."""
    open_parts = {key: part for key, part in parts.items() if key[0] == "worker" and not part.is_closed}
    if len(open_parts) < 2:
        return
    waits = [barrier_sec(now, key, part) for key, part in open_parts.items()]
    usual = now.longest_sec.get("barrier", 0.0)
    known = [sec for sec in waits if sec is not None]
    if len(known) == len(waits) and min(known) > max(2 * _LEAST_SEC, TIMES * usual):
        sentence = f"all {len(known)} workers wait at a barrier"
        yield Problem("hang", now.since_us(min(known)), None, step and step[0], sentence)


def barrier_sec(now: Now, key: WorkerKey, part: WorkerPart) -> float | None:
    """Return for how long a worker has been in a barrier, at least; None if it is in none."""
    now_us = now.clock_us(key)
    reported = [
        opened for (event, _, _), opened in part.reported.items() if kind_of(event).phase == "barrier"
    ]
    if reported:
        return (now_us - min(opened.begun_us for opened in reported)) / 1e6
    said = open_now_of(part, now_us)
    return 0.0 if said is not None and said.barriers else None
