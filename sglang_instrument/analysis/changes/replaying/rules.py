"""Define the rules that `whatif` can change, and apply them to a recorded request."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sglang_instrument.analysis.changes.replaying.replay import PooledWork, ReplayedCall, ReplayedRequest

_FOREVER: Final = float("inf")


@dataclass(frozen=True)
class Rules:
    """The changed rules; None changes nothing.

    Attributes:
        max_tokens: Most tokens of a response, over all its turns.
        max_turn_tokens: Most tokens of one turn (`max_new_tokens` of an engine call).
        max_turns: Most turns of a request.
        max_seconds: Most seconds of a request.
        oversample: The recorded requests include this share more than needed: a step ends when
            1 / (1 + oversample) of each worker's requests are done.
        scale: Factors for the time of kinds of work (keys of `KINDS`) or of events; 0 removes it.
        rebalance: Requests are distributed anew, so that all workers end together, but not before the longest
            request.
    """

    max_tokens: int | None = None
    max_turn_tokens: int | None = None
    max_turns: int | None = None
    max_seconds: float | None = None
    oversample: float | None = None
    scale: dict[str, float] = field(default_factory=dict)
    rebalance: bool = False


@dataclass
class Recorded:
    """A recorded request; times are seconds.

    Attributes:
        request: Its calls as recorded. Their waits are without `answers`, and so is its rest.
        tokens: Of each call.
        answers: By kind ("tool", "interaction"), the time after each call.
        reward_sec: Of its reward, a part of the rest; of one in a pool, what is not.
        usual: Of each call `prefill_sec` and `work`, as the engine's speed has them by the tokens alone.
    """

    request: ReplayedRequest
    tokens: list[int]
    answers: dict[str, list[float]]
    reward_sec: float
    usual: list[tuple[float, float]] = field(default_factory=list)

    def by_speed_alone(self) -> "Recorded":
        """Return the request as if each of its calls had taken what is usual."""
        calls = [
            replace(call, prefill_sec=prefill_sec, work=work)
            for call, (prefill_sec, work) in zip(self.request.calls, self.usual, strict=True)
        ]
        return replace(self, request=replace(self.request, calls=calls))


@dataclass(frozen=True)
class Factors:
    """How many times as long a request's work takes: that in the engine, and all else."""

    engine: float = 1.0
    others: float = 1.0


def under(recorded: Recorded, rules: Rules, factors: Factors) -> tuple[ReplayedRequest, bool]:
    """Return a request under the rules, and whether it ends early."""
    shares = kept_shares(recorded.tokens, rules)
    allowed = [share for share in shares if share]
    whole = len(allowed) == len(shares) and shares[-1:] in ([], [1.0])
    calls, answer = [], 0.0
    for number, (call, share) in enumerate(zip(recorded.request.calls, allowed, strict=False)):
        wait = max(0.0, (call.wait_sec + answer) * factors.others)
        work = call.work * share * factors.engine
        pooled = _pooled(call.pooled, rules, factors)
        calls.append(ReplayedCall(wait, call.prefill_sec * factors.engine, work, pooled, call.engine))
        answer = sum(after[number] * rules.scale.get(kind, 1.0) for kind, after in recorded.answers.items())
    saved = recorded.reward_sec * (1 - rules.scale.get("reward", 1.0))
    rest = (recorded.request.rest_sec - saved + (answer if whole else 0.0)) * factors.others
    most = _FOREVER if rules.max_seconds is None else rules.max_seconds
    # The tools that follow a call are not called where it is cut; the reward is.
    last = [work for work in recorded.request.pooled if whole or work.kind == "reward"]
    pooled = _pooled(last, rules, factors)
    request = replace(recorded.request, calls=calls, rest_sec=max(0.0, rest), most_sec=most, pooled=pooled)
    return request, not whole


def _pooled(works: Sequence[PooledWork], rules: Rules, factors: Factors) -> list[PooledWork]:
    """Return calls in pools, as long as the rules make them."""
    return [
        replace(
            work,
            wait_sec=work.wait_sec * factors.others,
            sec=work.sec * rules.scale.get(work.kind, 1.0) * factors.others,
        )
        for work in works
    ]


def kept_shares(tokens: Sequence[int], rules: Rules) -> list[float]:
    """Return which share of each call's tokens the caps leave.

    A call that reaches the cap of a turn is the last one, also if it is just as long: SGLang says "length" of
    it, and verl then ends the request.
    """
    left = _FOREVER if rules.max_tokens is None else rules.max_tokens
    of_turn = _FOREVER if rules.max_turn_tokens is None else rules.max_turn_tokens
    most = len(tokens) if rules.max_turns is None else rules.max_turns
    shares: list[float] = []
    is_over = False
    for number, count in enumerate(tokens):
        allowed = min(count, left, of_turn)
        is_over = is_over or number >= most or (number > 0 and left <= 0)
        shares.append(0.0 if is_over else allowed / count if count else 1.0)
        is_over = is_over or allowed < count or count >= of_turn
        left -= allowed
    return shares
