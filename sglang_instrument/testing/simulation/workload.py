"""Draw the requests of a synthetic step: turns, tokens and seconds, with a heavy tail as in real runs."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

TOOLS: Final = ("calculator", "search")
_TOOL_TOKENS: Final = 24  # that the answer of a tool adds to the context


@dataclass(frozen=True)
class Workload:
    """What requests are drawn from.

    The cap on tokens, the growth and the factor on tools are applied to what was drawn: they change no draw.

    Attributes:
        tokens_log: Mean of the logarithm of a reply's tokens.
        tokens_sigma: Standard deviation of that logarithm.
        most_tokens: Most tokens of a reply, as `max_new_tokens` caps them; a reply that is cut ends its
            request, as in verl.
        pace_spread: By which share at most a reply is faster or slower a token than usual.
        growth: By which share replies grow from step to step.
        most_turns: Most turns of a request.
        tool_share: Share of the turns before the last that call tools; an interaction answers the others.
        tool_sec, reply_sec, reward_sec: The least and the most usual seconds of a tool call, an answer of the
            interaction, a reward.
        tail: Standard deviation of the logarithm of a factor on these seconds; 0 is none.
        timeout_share: Share of the tool calls that time out.
        timeout_sec: After so many seconds.
        tool_factor: Factor on all seconds of tool calls.
    """

    tokens_log: float = 4.4
    tokens_sigma: float = 1.0
    most_tokens: int = 2048
    growth: float = 0.0
    most_turns: int = 6
    tool_share: float = 0.7
    tool_sec: tuple[float, float] = (0.02, 0.4)
    reply_sec: tuple[float, float] = (0.001, 0.02)
    reward_sec: tuple[float, float] = (5e-4, 4e-3)
    tail: float = 0.0
    timeout_share: float = 0.0
    timeout_sec: float = 10.0
    tool_factor: float = 1.0
    pace_spread: float = 0.1


@dataclass
class PlannedTurn:
    """One turn of a request; times are in seconds.

    Attributes:
        tokens: Tokens of the reply.
        pace: How many times the engine's usual seconds a token the reply takes.
        small_sec: Time of each small part around the engine call.
        tools: (name, seconds) of calls that run concurrently.
        reply_sec: Of the interaction, where there is one.
        extra_sec: Time for which the call stands still in the engine before its first token.
    """

    tokens: int
    pace: float
    small_sec: float
    tools: list[tuple[str, float]] = field(default_factory=list)
    reply_sec: float | None = None
    extra_sec: float = 0.0

    @property
    def answer_sec(self) -> float:
        """The time of tools and interaction."""
        return max((sec for _, sec in self.tools), default=0.0) + (self.reply_sec or 0.0)


@dataclass
class PlannedRequest:
    """One request; times are in seconds."""

    request_id: str
    prompt_tokens: int
    small_sec: float
    turns: list[PlannedTurn]
    reward_sec: float
    reward: float
    most_tokens: int
    hangs: bool = False

    def context_tokens(self, turn: int) -> int:
        """Return the tokens before a turn's reply."""
        earlier_turns = self.turns[:turn]
        return self.prompt_tokens + sum(
            earlier.tokens + _TOOL_TOKENS * bool(earlier.tools) for earlier in earlier_turns
        )


def draw_requests(
    random: Random, count: int, step: int, worker: int, workload: Workload, growth: float
) -> list[PlannedRequest]:
    """Return the requests of one step of one worker, with replies `growth` times as long."""
    return [_draw_request(random, step, worker, number, workload, growth) for number in range(count)]


def _draw_request(
    random: Random, step: int, worker: int, number: int, workload: Workload, growth: float
) -> PlannedRequest:
    count = 1
    while count < workload.most_turns and random.random() < 0.5:
        count += 1
    turns = [_draw_turn(random, workload, growth, last=index == count - 1) for index in range(count)]
    return PlannedRequest(
        request_id=f"{step:x}-{worker:x}-{number:04x}-{random.getrandbits(48):012x}",
        prompt_tokens=random.randint(60, 220),
        small_sec=random.uniform(1e-4, 8e-4),
        turns=_until_capped(turns, workload.most_tokens),
        reward_sec=_seconds(random, workload.reward_sec, workload),
        reward=float(random.random() < 0.6 / count + 0.2),
        most_tokens=workload.most_tokens,
    )


def _draw_turn(random: Random, workload: Workload, growth: float, last: bool) -> PlannedTurn:
    drawn = random.lognormvariate(workload.tokens_log, workload.tokens_sigma)
    tokens = min(workload.most_tokens, 8 + int(drawn * growth))
    pace = random.uniform(1 - workload.pace_spread, 1 + workload.pace_spread)
    turn = PlannedTurn(tokens, pace, random.uniform(2e-4, 1e-3))
    if not last and random.random() < workload.tool_share:
        side_by_side = 2 if random.random() < 0.2 else 1
        turn.tools = [_draw_tool(random, workload) for _ in range(side_by_side)]
    elif not last:
        turn.reply_sec = _seconds(random, workload.reply_sec, workload)
    return turn


def _until_capped(turns: list[PlannedTurn], most_tokens: int) -> list[PlannedTurn]:
    """Return the turns up to the first whose reply is cut: nothing answers it."""
    for number, turn in enumerate(turns):
        if turn.tokens >= most_tokens:
            return [*turns[:number], replace(turn, tools=[], reply_sec=None)]
    return turns


def _draw_tool(random: Random, workload: Workload) -> tuple[str, float]:
    name, sec = random.choice(TOOLS), _seconds(random, workload.tool_sec, workload)
    if workload.timeout_share and random.random() < workload.timeout_share:
        return name, workload.timeout_sec
    return name, sec * workload.tool_factor


def _seconds(random: Random, usual: tuple[float, float], workload: Workload) -> float:
    sec = random.uniform(*usual)
    return sec * random.lognormvariate(0.0, workload.tail) if workload.tail else sec
