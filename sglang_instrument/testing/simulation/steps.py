"""Play a planned step: serve its requests, let the workers meet at the barrier, and record what happened."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final

from sglang_instrument.testing.simulation.plan import StepPlan, WorkerPlan
from sglang_instrument.testing.simulation.queueing import EngineState, merged, serve
from sglang_instrument.testing.simulation.timeline import (
    MAIN,
    NEVER,
    Happened,
    RequestTimeline,
    ServedCall,
    after_blocks,
)

PREPROCESS: Final = "preprocessing_duration"
SORTING: Final = "sorting_duration"
_SORTING_SEC: Final = 2.9e-4
_AFTER_BARRIER: Final = (
    ("broadcast_duration", 0.02),
    ("data_extraction_duration", 0.004),
    ("padding_duration", 0.008),
    ("concatenation_duration", 0.002),
    ("batch_construction_duration", 0.001),
    ("cache_flush_duration", 0.03),
    ("final_construction_duration", 0.001),
)


@dataclass
class Worker:
    """The state that one worker's process carries from step to step."""

    rank: int
    random: Random
    tasks: "count[int]" = field(default_factory=lambda: count(MAIN + 1))


@dataclass
class WorkerStep:
    """What happened on one worker in a step.

    Attributes:
        happened: Its records.
        calls: Its engine calls.
        arrival: When it came to the barrier; NEVER if it hangs.
        end: When its step ended; NEVER if any worker hangs.
    """

    happened: list[Happened]
    calls: list[ServedCall]
    arrival: float
    end: float = NEVER


def draw_parts(random: Random, factor: float) -> dict[str, float]:
    """Return the seconds of each event outside requests, `factor` times the usual."""
    preprocess = random.uniform(0.03, 0.08)
    after = {event: typical * random.uniform(0.8, 1.2) for event, typical in _AFTER_BARRIER}
    parts = {PREPROCESS: preprocess, SORTING: _SORTING_SEC, **after}
    return {event: sec * factor for event, sec in parts.items()}


def play(plan: StepPlan, workers: list[Worker], begin: float) -> list[WorkerStep]:
    """Return what happened on each worker in a step that begins at `begin`."""
    rollouts = list(_rollouts(plan, workers, begin))
    leave = max(rollout.arrival for rollout in rollouts) + 1e-3
    if leave < NEVER:
        for of_worker, rollout in zip(plan.workers, rollouts, strict=True):
            _finish(of_worker, rollout, begin, leave)
    return rollouts


def _rollouts(plan: StepPlan, workers: list[Worker], begin: float) -> Iterator[WorkerStep]:
    """Yield what happened on each worker up to the barrier."""
    starts = [begin + 2e-4 + worker_plan.parts[PREPROCESS] for worker_plan in plan.workers]
    started = [
        _timelines(worker_plan, worker, start)
        for worker_plan, worker, start in zip(plan.workers, workers, starts, strict=True)
    ]
    if len(plan.engines) == 1 < len(started):
        _serve(
            plan, plan.engines[0], min(starts), [timeline for of_worker in started for timeline in of_worker]
        )
    else:
        for engine, start, timelines in zip(plan.engines, starts, started, strict=True):
            _serve(plan, engine, start, timelines)
    for worker_plan, start, timelines in zip(plan.workers, starts, started, strict=True):
        yield _rollout(worker_plan, begin, start, timelines)


def _timelines(plan: WorkerPlan, worker: Worker, start: float) -> list[RequestTimeline]:
    blocks = _blocks(plan, start)
    return [
        RequestTimeline(request, start + 2e-4 + index * 2e-5, next(worker.tasks), MAIN, worker.tasks, blocks)
        for index, request in enumerate(plan.requests)
    ]


def _blocks(plan: WorkerPlan, start: float) -> list[tuple[float, float]]:
    """Return from when to when the worker's event loop is blocked."""
    return merged([(start + offset_sec, start + offset_sec + sec) for offset_sec, sec in plan.blocks])


def _serve(plan: StepPlan, state: EngineState, start: float, timelines: list[RequestTimeline]) -> None:
    serve(plan.engine, state, start, [timeline.run() for timeline in timelines])


def _rollout(plan: WorkerPlan, begin: float, start: float, timelines: list[RequestTimeline]) -> WorkerStep:
    happened = [_main(PREPROCESS, begin + 1e-4, start - 1e-4)]
    for timeline in timelines:
        happened += timeline.happened
    blocks = _blocks(plan, start)
    arrival = after_blocks(blocks, max((timeline.end for timeline in timelines), default=start) + 2e-4)
    happened += [_block(block_start, end) for block_start, end in blocks if block_start < arrival]
    calls = [call for timeline in timelines for call in timeline.calls]
    done = WorkerStep(happened, calls, arrival)
    if done.arrival < NEVER:
        sort = done.arrival + 1e-5
        done.happened.append(_main("async_generate_duration", start, done.arrival))
        done.arrival = sort + plan.parts[SORTING] + 1e-4
        done.happened.append(_main(SORTING, sort, done.arrival - 1e-4))
    return done


def _main(event: str, start: float, end: float, **extra: Any) -> Happened:
    return Happened(event, start, end, extra or None, MAIN)


def _block(start: float, end: float) -> Happened:
    """Return what the watchdog records of a blocked event loop."""
    stack = ["rollout.py:212 run", "scoring.py:41 score"]
    extra = {"lag_sec": end - start, "stack": stack, "samples": 1, "in_span": "reward_calculation"}
    return Happened("event_loop_block", start, end, extra, MAIN)


def _finish(plan: WorkerPlan, done: WorkerStep, begin: float, leave: float) -> None:
    """Add the events after the barrier, and the step itself."""
    happened = done.happened
    lengths = [
        record.extra["actual_response_tokens"]
        for record in happened
        if record.extra and record.event == "async_rollout_request_complete"
    ]
    happened.append(_main("barrier_wait_duration", done.arrival, leave))
    now = leave + 1e-5
    for event, _ in _AFTER_BARRIER:
        end = now + plan.parts[event]
        happened.append(_main(event, now, end))
        now = end + 1e-5
    stats = {"actual_response_tokens": lengths, "batch_size": len(plan.requests)}
    happened.append(_main("step_response_length_stats", now, now, **stats)._replace(instant=True))
    done.end = now + 1e-4
    happened.append(_main("total_step_duration", begin, done.end))
