"""Draw what each request of a world will do: its prompt, its replies, its tools, its reward."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

_ANSWER_TOKENS: Final = (20, 400)  # of a tool's answer


@dataclass(frozen=True)
class ToolShape:
    """A tool: the median of its seconds, and the standard deviation of their logarithm."""

    name: str
    median_sec: float
    sigma: float


@dataclass(frozen=True)
class WorkShape:
    """What requests are drawn from.

    Attributes:
        system_tokens: Tokens with which all prompts begin.
        question_tokens: Least and most tokens of a question.
        tokens_log, tokens_sigma: Mean and standard deviation of the logarithm of a reply's tokens.
        group_sigma: Standard deviation of what the replies of a question have in common.
        max_new_tokens: Most tokens of a reply.
        most_turns: Most turns of a request.
        go_on_share: Share of the turns after which another comes.
        tools: Tools; each turn but the last calls one of them, or two.
        reward_sec, reward_sigma: Median seconds of a reward, and the deviation of their logarithm.
        environment_sec: Seconds in which a request's environment is set up; 0 is none.
        growth: By which share replies grow from step to step.
    """

    system_tokens: int = 200
    question_tokens: tuple[int, int] = (80, 500)
    tokens_log: float = 5.3
    tokens_sigma: float = 0.6
    group_sigma: float = 0.3
    max_new_tokens: int = 2048
    most_turns: int = 5
    go_on_share: float = 0.6
    tools: Sequence[ToolShape] = (ToolShape("search", 1.0, 0.5), ToolShape("python", 0.4, 0.6))
    reward_sec: float = 0.05
    reward_sigma: float = 0.5
    environment_sec: float = 0.0
    growth: float = 0.0


@dataclass
class TurnPlan:
    """A turn: the tokens of its reply, and its tools as (name, seconds, tokens of the answer)."""

    tokens: int
    tools: list[tuple[str, float, int]] = field(default_factory=list)


@dataclass
class RequestPlan:
    """A request; `index` is its place in the batch, `uid` its number in the run."""

    uid: str
    group: str
    index: int
    member: int
    question_tokens: int
    turns: list[TurnPlan]
    reward_sec: float
    reward: float
    environment_sec: float


def draw_group(
    seed: str, number: int, members: int, work: WorkShape, index: int, grown: float
) -> list[RequestPlan]:
    """Return the requests of one prompt.

    Args:
        seed: Of the run; the same seed and number give the same requests.
        number: Of the prompt in the run.
        members: Requests of the prompt.
        work: What they are drawn from.
        index: Place of the first of them in its batch.
        grown: How many times as long as at first replies are.
    """
    random = Random(f"{seed}/prompt/{number}")
    question, hardness = random.randint(*work.question_tokens), random.gauss(0.0, work.group_sigma)
    return [
        _draw_request(random, f"{number:05x}", member, question, hardness, work, index + member, grown)
        for member in range(members)
    ]


def _draw_request(
    random: Random,
    group: str,
    member: int,
    question: int,
    hardness: float,
    work: WorkShape,
    index: int,
    grown: float,
) -> RequestPlan:
    count = 1
    while count < work.most_turns and random.random() < work.go_on_share:
        count += 1
    turns = [_draw_turn(random, hardness, work, grown, last=number == count - 1) for number in range(count)]
    return RequestPlan(
        uid=f"{group}-{member:02x}-{random.getrandbits(40):010x}",
        group=group,
        index=index,
        member=member,
        question_tokens=question,
        turns=turns,
        reward_sec=work.reward_sec * random.lognormvariate(0.0, work.reward_sigma),
        reward=float(random.random() < 0.5),
        environment_sec=work.environment_sec * random.lognormvariate(0.0, 0.3),
    )


def _draw_turn(random: Random, hardness: float, work: WorkShape, grown: float, last: bool) -> TurnPlan:
    tokens = random.lognormvariate(work.tokens_log + hardness, work.tokens_sigma) * grown
    turn = TurnPlan(max(4, min(work.max_new_tokens, round(tokens))))
    for _ in range(0 if last or not work.tools else 1 + (random.random() < 0.2)):
        tool = random.choice(work.tools)
        sec = tool.median_sec * random.lognormvariate(0.0, tool.sigma)
        turn.tools.append((tool.name, sec, random.randint(*_ANSWER_TOKENS)))
    return turn
