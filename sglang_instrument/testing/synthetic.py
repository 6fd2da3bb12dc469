"""Write a run with planted causes, in the format of a real run, without torch or sglang."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

from sglang_instrument.testing import standstill
from sglang_instrument.testing.engine_room import EngineLogs
from sglang_instrument.testing.planted import (
    BlockedLoop,
    Hang,
    Planted,
    Plateau,
    SlowReward,
    Straggler,
    TornFile,
    is_planted,
)
from sglang_instrument.testing.timeline import NEVER, Happened, RequestTimeline
from sglang_instrument.testing.workload import draw_requests
from sglang_instrument.testing.written import LogFile

MAIN: Final = 0  # number of the main thread's task
TRAINING_SEC: Final = 20.0  # between two rollouts
_AFTER_BARRIER: Final = (
    ("broadcast_duration", 0.02),
    ("data_extraction_duration", 0.004),
    ("padding_duration", 0.008),
    ("concatenation_duration", 0.002),
    ("batch_construction_duration", 0.001),
    ("cache_flush_duration", 0.03),
    ("final_construction_duration", 0.001),
)

__all__ = ["BlockedLoop", "Hang", "Plateau", "SlowReward", "Straggler", "TornFile", "synthetic_run"]


@dataclass
class _Worker:
    """The state that one worker's process carries from step to step."""

    rank: int
    random: Random
    tasks: "count[int]" = field(default_factory=lambda: count(MAIN + 1))


def synthetic_run(
    folder: str | Path,
    *,
    steps: int = 10,
    workers: int = 4,
    requests: int = 16,
    seed: int = 0,
    first_step: int = 1,
    validate_every: int = 0,
    straggler: Straggler | None = None,
    plateau: Plateau | None = None,
    slow_reward: SlowReward | None = None,
    blocked_loop: BlockedLoop | None = None,
    hang: Hang | None = None,
    clock_skew: Mapping[int, float] | None = None,
    torn_file: TornFile | None = None,
    engine_clocks: Mapping[int, float] | None = None,
    progress: Callable[[int], object] = lambda step: None,
) -> Path:
    """Write a run of heavy-tailed multi-turn requests with tools; the same arguments give the same bytes.

    Args:
        folder: The experiment's folder; it is created if missing.
        steps: Number of steps; numbered from `first_step`.
        workers: Number of workers.
        requests: Requests of each worker in each step.
        seed: Seed of all random draws.
        first_step: Number of the first step.
        validate_every: Add a validation every so many steps; 0 is never.
        straggler: See `Straggler`.
        plateau: See `Plateau`.
        slow_reward: See `SlowReward`.
        blocked_loop: See `BlockedLoop`.
        hang: See `Hang`; the run ends in its step.
        clock_skew: How many seconds the clock of each worker is ahead.
        torn_file: See `TornFile`.
        engine_clocks: Workers whose engine writes logs, too, in `engine/`, and how many seconds its clock is
            ahead. Its server, scheduler and detokenizer log when they had each call, by its `rid`.
        progress: Called with the number of each step after it is written.

    Returns:
        The folder.
    """
    planted = Planted(straggler, plateau, slow_reward, blocked_loop, hang, torn_file)
    all_workers = [_Worker(rank, Random(seed * 1_000_003 + rank)) for rank in range(workers)]  # noqa: S311 - repeatable, not secret
    now = 0.0
    rooms = [
        EngineLogs(Path(folder), rank, ahead, f"synthetic-{seed}")
        for rank, ahead in sorted((engine_clocks or {}).items())
    ]
    for step in range(first_step, first_step + steps):
        now = _write_step(
            Path(folder), all_workers, step, now, requests, planted, clock_skew or {}, seed, rooms
        )
        progress(step)
        if now == NEVER:
            break
        if validate_every and step % validate_every == 0:
            now = _write_validation(Path(folder), all_workers, step, now, clock_skew or {}, seed)
        now += TRAINING_SEC
    return Path(folder)


def _write_step(
    folder: Path,
    all_workers: list[_Worker],
    step: int,
    begin: float,
    requests: int,
    planted: Planted,
    skew: Mapping[int, float],
    seed: int,
    rooms: Sequence[EngineLogs],
) -> float:
    """Write one step of all workers; return when the slowest was done."""
    rollouts = [_rollout(worker, step, begin, requests, planted) for worker in all_workers]
    for room in rooms:
        room.write(rollouts[room.rank][0])
    leave = max(arrival for _, arrival in rollouts) + 1e-3
    done = begin
    for worker, (happened, arrival) in zip(all_workers, rollouts, strict=True):
        end = NEVER
        if leave < NEVER:
            end = _finish(worker, happened, begin, arrival, leave, requests)
        done = max(done, end)
        file = LogFile(step, worker.rank, skew.get(worker.rank, 0.0), f"synthetic-{seed}")
        lines = file.lines(happened, begin, end, waits=arrival < NEVER)
        path = folder / f"step_{step}" / f"worker_{worker.rank}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lines[:-40] if is_planted(planted.torn_file, step, worker.rank) else lines)
    return done


def _write_validation(
    folder: Path, all_workers: list[_Worker], step: int, begin: float, skew: Mapping[int, float], seed: int
) -> float:
    """Write a validation with one engine call for each worker's whole batch; return when it was done."""
    arrivals = [begin + worker.random.uniform(2.0, 6.0) for worker in all_workers]
    leave = max(arrivals) + 1e-3
    for worker, arrival in zip(all_workers, arrivals, strict=True):
        happened = [
            _main("engine_async_generate", begin, arrival),
            _main("barrier", arrival + 1e-5, leave),
        ]
        file = LogFile(step, worker.rank, skew.get(worker.rank, 0.0), f"synthetic-{seed}", validate=True)
        path = folder / f"validate_{step}" / f"worker_{worker.rank}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.lines(happened, begin, leave))
    return leave


def _rollout(
    worker: _Worker, step: int, begin: float, count_of_requests: int, planted: Planted
) -> tuple[list[Happened], float]:
    """Return what happened up to the barrier, and when the worker arrived there."""
    random = worker.random
    requests = draw_requests(random, count_of_requests, step, worker.rank, planted)
    if planted.plateau and is_planted(planted.plateau, step, worker.rank):
        standstill.plant(random, requests, planted.plateau)
    now = begin + 1e-4
    preprocessed = now + random.uniform(0.03, 0.08)
    happened = [_main("preprocessing_duration", now, preprocessed)]
    generate = preprocessed + 1e-4
    timelines = [
        RequestTimeline(request, generate + 2e-4 + index * 2e-5, next(worker.tasks), MAIN, worker.tasks)
        for index, request in enumerate(requests)
    ]
    for timeline in timelines:
        happened += timeline
    arrival = max((timeline.end for timeline in timelines), default=generate) + 2e-4
    if planted.blocked_loop and is_planted(planted.blocked_loop, step, worker.rank):
        happened, arrival = _block(happened, arrival, generate, planted.blocked_loop)
    if arrival < NEVER:
        happened.append(_main("async_generate_duration", generate, arrival))
        happened.append(_main("sorting_duration", arrival + 1e-5, arrival + 3e-4))
        arrival += 4e-4
    return happened, arrival


def _main(event: str, start: float, end: float, **extra: Any) -> Happened:
    return Happened(event, start, end, extra or None, MAIN)


def _block(
    happened: list[Happened], arrival: float, generate: float, block: BlockedLoop
) -> tuple[list[Happened], float]:
    """Delay everything in the event loop by the length of the block."""
    at = generate + block.at_sec

    def later(time_sec: float) -> float:
        return time_sec if time_sec <= at else time_sec + block.seconds

    moved = [one._replace(start=later(one.start), end=later(one.end)) for one in happened]
    stack = ["rollout.py:212 run", "scoring.py:41 score"]
    extra = {"lag_sec": block.seconds, "stack": stack, "samples": 1, "in_span": "reward_calculation"}
    moved.append(Happened("event_loop_block", at, at + block.seconds, extra, MAIN))
    return moved, later(arrival)


def _finish(
    worker: _Worker, happened: list[Happened], begin: float, arrival: float, leave: float, requests: int
) -> float:
    """Add the events after the barrier, and the step itself; return its end."""
    happened.append(_main("barrier_wait_duration", arrival, leave))
    now = leave + 1e-5
    for event, typical in _AFTER_BARRIER:
        end = now + typical * worker.random.uniform(0.8, 1.2)
        happened.append(_main(event, now, end))
        now = end + 1e-5
    lengths = [
        one.extra["actual_response_tokens"]
        for one in happened
        if one.extra and one.event == "async_rollout_request_complete"
    ]
    stats = {"actual_response_tokens": lengths, "batch_size": requests}
    happened.append(_main("step_response_length_stats", now, now, **stats)._replace(instant=True))
    end = now + 1e-4
    happened.append(_main("total_step_duration", begin, end))
    return end
