"""Plant a plateau: some requests stand still in one engine call, after all others have ended."""

from dataclasses import dataclass
from random import Random

from sglang_instrument.testing.causes.base import WorkerCause
from sglang_instrument.testing.simulation.plan import StepPlan
from sglang_instrument.testing.simulation.workload import PlannedRequest, PlannedTurn


@dataclass(frozen=True)
class Plateau(WorkerCause):
    """In `step` exactly `requests` requests of `worker` stand still, in the engine call of `turn` (0-based).

    From `start_sec` to `end_sec` after the start of generation they neither advance nor end; all other
    requests of the worker have ended before. The rest of their engine calls then takes `slowdown` times as
    long. The times are those of an engine that is as fast with many requests as with one.
    """

    start_sec: float
    end_sec: float
    requests: int
    turn: int = 1
    slowdown: float = 1.0
    cause = "standstill"
    size = "end_sec"

    def plant(self, plan: StepPlan) -> None:
        """Make the longest requests stand still, as many as the plateau says, and the others end before."""
        for worker in plan.of(self.worker):
            _Planting(self, plan.random(worker.rank), plan.engine.token_sec).run(worker.requests)


class _Planting:
    def __init__(self, plateau: Plateau, random: Random, token_sec: float) -> None:
        self._plateau, self._random, self._token_sec = plateau, random, token_sec

    def run(self, requests: list[PlannedRequest]) -> None:
        by_length = sorted(requests, key=lambda request: self._generation_sec(request.turns))
        still = by_length[max(0, len(by_length) - self._plateau.requests) :]
        for request in by_length[: len(by_length) - len(still)]:
            self._finish_before(request, self._plateau.start_sec * self._random.uniform(0.4, 0.97))
        for request in still:
            self._stand_still(request)

    def _generation_sec(self, turns: list[PlannedTurn]) -> float:
        return sum(turn.tokens * turn.pace * self._token_sec + turn.answer_sec for turn in turns)

    def _finish_before(self, request: PlannedRequest, limit_sec: float) -> None:
        taken_sec = self._generation_sec(request.turns)
        if taken_sec > limit_sec:
            _scale(request.turns, limit_sec / taken_sec)

    def _stand_still(self, request: PlannedRequest) -> None:
        plateau, random = self._plateau, self._random
        while len(request.turns) <= plateau.turn:
            sec = random.uniform(1.0, 3.0)
            request.turns.insert(0, PlannedTurn(int(sec / self._token_sec), 1.0, 5e-4, reply_sec=0.01))
        before = request.turns[: plateau.turn]
        taken_sec = self._generation_sec(before)
        if taken_sec > plateau.start_sec * 0.9:
            _scale(before, plateau.start_sec * random.uniform(0.5, 0.9) / taken_sec)
        called = self._generation_sec(before)
        turn = request.turns[plateau.turn]
        alone_sec = turn.tokens * turn.pace * self._token_sec
        left = max(called + alone_sec - plateau.start_sec, random.uniform(0.5, 4.0))
        turn.pace *= (plateau.end_sec - called + left * plateau.slowdown) / alone_sec
        for later in request.turns[plateau.turn + 1 :]:
            later.pace *= plateau.slowdown


def _scale(turns: list[PlannedTurn], factor: float) -> None:
    for turn in turns:
        turn.pace *= factor
        turn.tools = [(name, sec * factor) for name, sec in turn.tools]
        turn.reply_sec = None if turn.reply_sec is None else turn.reply_sec * factor
