"""Draw the requests of a synthetic step: turns, tokens and seconds, with a heavy tail as in real runs."""

from dataclasses import dataclass, field
from random import Random
from typing import Final

from sglang_instrument.testing.planted import Planted, is_planted

TOKEN_SEC: Final = 0.02
MOST_TOKENS: Final = 2048  # per turn
MOST_TURNS: Final = 6
TOOLS: Final = ("calculator", "search")


@dataclass
class Turn:
    """One turn of a request; all times in seconds. `tools` are (name, seconds) that run concurrently."""

    tokens: int
    engine_sec: float
    small_sec: float  # time of each small part around the engine call
    tools: list[tuple[str, float]] = field(default_factory=list)
    reply_sec: float | None = None  # of the interaction, where there is one

    @property
    def generation_sec(self) -> float:
        """The time in engine, tools and interaction."""
        return self.engine_sec + max((sec for _, sec in self.tools), default=0.0) + (self.reply_sec or 0.0)


@dataclass
class Request:
    """One request; all times in seconds."""

    request_id: str
    prompt_tokens: int
    small_sec: float
    turns: list[Turn]
    reward_sec: float
    reward: float
    hangs: bool = False

    @property
    def generation_sec(self) -> float:
        """The time in engine, tools and interactions: all but the small parts."""
        return sum(turn.generation_sec for turn in self.turns)


def draw_requests(random: Random, count: int, step: int, worker: int, planted: Planted) -> list[Request]:
    """Return the requests of one step of one worker, with the causes planted there."""
    drawn = [_draw_request(random, step, worker, number) for number in range(count)]
    if planted.straggler and is_planted(planted.straggler, step, worker):
        for turn in (turn for request in drawn for turn in request.turns):
            turn.engine_sec *= planted.straggler.factor
    if planted.slow_reward and is_planted(planted.slow_reward, step, worker):
        for request in drawn:
            request.reward_sec += planted.slow_reward.seconds
    if is_planted(planted.hang, step, worker):
        request = max(drawn, key=lambda request: len(request.turns))
        request.turns[0].tools = [(TOOLS[0], 0.0)]
        request.hangs = True
    return drawn


def _draw_request(random: Random, step: int, worker: int, number: int) -> Request:
    count = 1
    while count < MOST_TURNS and random.random() < 0.5:
        count += 1
    turns = [_draw_turn(random, last=index == count - 1) for index in range(count)]
    return Request(
        request_id=f"{step:x}-{worker:x}-{number:04x}-{random.getrandbits(48):012x}",
        prompt_tokens=random.randint(60, 220),
        small_sec=random.uniform(1e-4, 8e-4),
        turns=turns,
        reward_sec=random.uniform(5e-4, 4e-3),
        reward=float(random.random() < 0.6 / count + 0.2),
    )


def _draw_turn(random: Random, last: bool) -> Turn:
    tokens = min(MOST_TOKENS, 8 + int(random.lognormvariate(4.4, 1.0)))
    turn = Turn(tokens, tokens * TOKEN_SEC * random.uniform(0.9, 1.1), random.uniform(2e-4, 1e-3))
    if not last and random.random() < 0.7:
        side_by_side = 2 if random.random() < 0.2 else 1
        turn.tools = [(random.choice(TOOLS), random.uniform(0.02, 0.4)) for _ in range(side_by_side)]
    elif not last:
        turn.reply_sec = random.uniform(0.001, 0.02)
    return turn
