"""Plant a plateau: some requests stand still in one engine call, after all others have ended."""

from random import Random

from sglang_instrument.testing.planted import Plateau
from sglang_instrument.testing.workload import TOKEN_SEC, Request, Turn


def plant(random: Random, requests: list[Request], plateau: Plateau) -> None:
    """Make the longest requests stand still, as many as the plateau says, and the others end before."""
    by_length = sorted(requests, key=lambda request: request.generation_sec)
    still = by_length[max(0, len(by_length) - plateau.requests) :]
    for request in by_length[: len(by_length) - len(still)]:
        _finish_before(request, plateau.start_sec * random.uniform(0.4, 0.97))
    for request in still:
        _stand_still(random, request, plateau)


def _finish_before(request: Request, limit_sec: float) -> None:
    if request.generation_sec > limit_sec:
        _scale(request.turns, limit_sec / request.generation_sec)


def _stand_still(random: Random, request: Request, plateau: Plateau) -> None:
    while len(request.turns) <= plateau.turn:
        sec = random.uniform(1.0, 3.0)
        request.turns.insert(0, Turn(int(sec / TOKEN_SEC), sec, 5e-4, reply_sec=0.01))
    before = Request("", 0, 0.0, request.turns[: plateau.turn], 0.0, 0.0)
    if before.generation_sec > plateau.start_sec * 0.9:
        _scale(before.turns, plateau.start_sec * random.uniform(0.5, 0.9) / before.generation_sec)
    called = before.generation_sec
    turn = request.turns[plateau.turn]
    left = max(called + turn.engine_sec - plateau.start_sec, random.uniform(0.5, 4.0))
    turn.engine_sec = plateau.end_sec - called + left * plateau.slowdown
    for later in request.turns[plateau.turn + 1 :]:
        later.engine_sec *= plateau.slowdown


def _scale(turns: list[Turn], factor: float) -> None:
    for turn in turns:
        turn.engine_sec *= factor
        turn.tools = [(name, sec * factor) for name, sec in turn.tools]
        turn.reply_sec = None if turn.reply_sec is None else turn.reply_sec * factor
