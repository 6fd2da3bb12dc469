"""Play what a worker does in a step: begin, play its requests, and end."""

from itertools import count
from typing import TYPE_CHECKING, Any

from sglang_instrument.testing.world.rollout.plans import RequestPlan
from sglang_instrument.testing.world.rollout.requests import PlayedRequest
from sglang_instrument.testing.world.serving.clock import Places, Process, all_of

if TYPE_CHECKING:
    from sglang_instrument.testing.world.stage import Stage


class PlayedWorker:
    """A worker: the process that holds conversations.

    Attributes:
        rank: Its number.
        lock: What its tools share where a fault makes them run one at a time.
    """

    def __init__(self, stage: "Stage", rank: int) -> None:
        self._stage, self.rank = stage, rank
        self.lock = Places(1)
        self._tasks = count(1)
        self._blocks: list[tuple[float, float]] = []

    def next_task(self) -> int:
        """Return the number of a new task."""
        return next(self._tasks)

    def blocked_until(self, now: float) -> float:
        """Return when the event loop gets to what happens now."""
        return max((end for begin, end in self._blocks if begin <= now < end), default=now)

    def block(self, begin: float, end: float, file: str) -> None:
        """Block the event loop; the watchdog sees it."""
        self._blocks.append((begin, end))
        extra = {
            "lag_sec": end - begin,
            "place": "score.py:41 score",
            "stack": ["score.py:41 score"],
            "samples": 3,
        }
        self._stage.records.add(file, "event_loop_block", begin, end, extra)

    def step(self, plans: list[RequestPlan], file: str) -> Process:
        """Play a step of this worker; return its requests."""
        stage, knobs, clock = self._stage, self._stage.knobs, self._stage.clock
        if late_sec := knobs.late_sec.get(self.rank, 0.0):
            yield clock.now + late_sec
        begin = clock.now
        for offset, sec in knobs.blocked.get(self.rank, ()):
            self.block(begin + offset, begin + offset + sec, file)
        before = 0.02 + knobs.before_sec.get(self.rank, 0.0)
        yield clock.now + before
        self._log(file, "preprocessing_duration", begin)
        generated = clock.now
        requests = [PlayedRequest(stage, self, plan, file) for plan in plans]
        yield from all_of([clock.start(request.run()) for request in requests])
        self._log(file, "async_generate_duration", generated)
        if stage.shape.has_barrier:
            yield from self._barrier(file)
        built = clock.now
        yield built + 0.05 + knobs.after_sec.get(self.rank, 0.0)
        self._log(file, "batch_construction_duration", built)
        self._log(file, "total_step_duration", begin, batch_size=len(plans))
        return requests

    def _barrier(self, file: str) -> Process:
        begin = self._stage.clock.now
        yield from self._stage.meet()
        self._log(file, "barrier_wait_duration", begin)

    def _log(self, file: str, event: str, begin: float, **extra: Any) -> None:
        self._stage.records.add(file, event, begin, self._stage.clock.now, extra)
