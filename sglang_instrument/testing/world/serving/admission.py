"""Decide which calls leave the queue, and reserve room for their replies, as SGLang's PrefillAdder does.

Source: `sglang/srt/managers/schedule_policy.py` (PrefillAdder.add_one_req, budget_state),
`prefill_budget.py`, `scheduler_components/new_token_ratio_tracker.py` of 0.5.21, with pages of one token.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from sglang_instrument.testing.world.serving.calls import Call, ServerShape
from sglang_instrument.testing.world.serving.prefix_cache import RadixTree

CLIP_TOKENS: Final = 4096  # of a reply's limit, no more is reserved
PAGE: Final = 1
RETRACT_STEPS: Final = 20
_FIRST_RATIO: Final = 0.7
_LEAST_SHARE: Final = 0.14
_DECAY_STEPS: Final = 600


class Admitted(Enum):
    """Whether another call may be tried."""

    GO_ON = auto()
    NO_TOKEN = auto()
    OTHER = auto()


class NewTokenRatio:
    """The share of what calls may still make for which there is room; it falls with each decode."""

    def __init__(self, conservativeness: float) -> None:
        self.first = min(_FIRST_RATIO * conservativeness, 1.0)
        self.least = min(self.first * _LEAST_SHARE, 1.0)
        self.fall = (self.first - self.least) / _DECAY_STEPS
        self.current = self.first

    def decode(self, steps: int) -> None:
        """Let it fall with some decodes that fitted in the cache."""
        self.current = max(self.current - steps * self.fall, self.least)

    def after_retraction(self, running: Sequence[Call]) -> None:
        """Estimate it from the calls that stayed."""
        made = sum(call.made for call in running) + RETRACT_STEPS * len(running)
        self.current = min(1.0, made / (sum(call.max_new_tokens for call in running) + 1))

    def reset(self) -> None:
        """Begin again: the server is idle."""
        self.current = self.first


class Admission:
    """The calls that leave the queue for one prefill.

    Attributes:
        admitted: Each call, and the tokens of its prompt that this prefill computes.
        chunked: The call of which only a piece fits, if any.
    """

    def __init__(
        self, shape: ServerShape, cache: RadixTree, free: int, running: Sequence[Call], ratio: float
    ) -> None:
        self._cache, self._free = cache, free
        self._left_chunk, self._left_input = shape.chunk_tokens, shape.prefill_tokens
        self._total = sum(min(call.max_new_tokens - call.made, CLIP_TOKENS) * ratio for call in running)
        self._current = 0
        self.admitted: list[tuple[Call, int]] = []
        self.chunked: Call | None = None

    @property
    def _available(self) -> int:
        return self._free + self._cache.evictable

    def go_on_with(self, call: Call) -> None:
        """Compute the next piece of a call that an earlier prefill began."""
        room = min(self._left_chunk, int(self._available - self._total))
        room = room if room > 0 else min(self._left_chunk, max(1, self._available))
        left = call.context - call.prefilled
        tokens = min(left, room)
        whole = tokens == left
        self._reserve(tokens, min(call.max_new_tokens, CLIP_TOKENS) if whole else 0)
        self.admitted.append((call, tokens))
        self.chunked = None if whole else call

    def add(self, call: Call) -> Admitted:
        """Take a call if there is room for it; its prefix is locked then."""
        node, prefix = self._cache.match(call.path)
        prefix = min(prefix, call.context - 1)  # the last token is always computed
        tokens = call.context - prefix
        to_make = min(max(call.max_new_tokens - call.made, 0), CLIP_TOKENS)
        self._cache.lock(node)
        if tokens + to_make + PAGE >= self._available - self._total:
            self._cache.unlock(node)
            return Admitted.NO_TOKEN
        piece = min(tokens, self._left_chunk)
        if piece <= 0:
            self._cache.unlock(node)
            return Admitted.OTHER
        call.node, call.prefix, call.prefilled = node, prefix, prefix
        self._reserve(piece, min(call.max_new_tokens, CLIP_TOKENS) if piece == tokens else 0)
        self.admitted.append((call, piece))
        if piece < tokens:
            self.chunked = call
        return self._state()

    def _reserve(self, tokens: int, to_make: int) -> None:
        self._total += tokens + PAGE + to_make
        self._current += tokens + PAGE
        self._left_input -= tokens
        self._left_chunk -= tokens

    def _state(self) -> Admitted:
        if self._available <= self._total or self._available <= self._current:
            return Admitted.NO_TOKEN
        return Admitted.OTHER if self._left_input <= 0 or self._left_chunk <= 0 else Admitted.GO_ON
