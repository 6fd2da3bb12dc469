"""Describe prompts as pieces of named streams of tokens, and make token ids of these: no text is known."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.twin.agendas.planned import AgendaRequest, AgendaStep

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.int32]

#: The name of a stream of tokens, the first of its tokens, and how many.
Piece = tuple[str, int, int]

#: Ids below are special tokens, or single bytes, of many vocabularies.
_LOWEST: Final = 10
_COMMON: Final = "common"


def first_prompt(step: AgendaStep, request: AgendaRequest) -> list[Piece]:
    """Return the first prompt of a request: what all groups share, what its group shares, and the rest."""
    first = request.turns[0]
    shared = min(first.shared_prefix_tokens, first.prompt_tokens)
    common = min(step.common_prefix_tokens, shared)
    return [
        (_COMMON, 0, common),
        (f"{step.step} {request.group}", 0, shared - common),
        (fresh_tokens(step, request, 0), 0, first.prompt_tokens - shared),
    ]


def fresh_tokens(step: AgendaStep, request: AgendaRequest, turn: int) -> str:
    """Return the name of the tokens that a turn adds to the sequence."""
    return f"{step.step} {request.worker} {request.request_id} {turn}"


def kept_pieces(sequence: list[Piece], tokens: int) -> list[Piece]:
    """Return the first tokens of a sequence."""
    pieces = []
    for name, begin, length in sequence:
        taken = min(length, tokens)
        if taken:
            pieces.append((name, begin, taken))
        tokens -= taken
    return pieces


def token_ids(name: str, tokens: int, vocabulary: int) -> Ids:
    """Return the first tokens of a stream: the same for one name.

    Args:
        name: Of the stream.
        tokens: How many.
        vocabulary: How many tokens the model knows.
    """
    import numpy as np

    seed = int.from_bytes(blake2b(name.encode(errors="replace"), digest_size=8).digest(), "little")
    lowest = min(_LOWEST, vocabulary - 1)
    return np.random.default_rng(seed).integers(lowest, vocabulary, size=max(0, tokens), dtype=np.int32)


class StepTokens:
    """The token ids of a step, made before it begins: making them meanwhile would delay its calls.

    Args:
        step: The step.
        vocabulary: How many tokens the model knows.
        played: How many steps were played before: the same prompts once more would still be in a cache that
            nobody empties. What all groups begin with stays the same.
    """

    def __init__(self, step: AgendaStep, vocabulary: int, played: int = 0) -> None:
        import numpy as np

        self._vocabulary, self._played = vocabulary, played
        self._streams: dict[str, Any] = {}
        self._longest: dict[str, int] = {}
        for request in step.requests:
            for name, _, tokens in first_prompt(step, request)[:2]:
                self._longest[name] = max(tokens, self._longest.get(name, 0))
        for name, tokens in self._longest.items():
            self._streams[name] = self._ids(name, tokens)
        self.first: dict[int, Ids] = {}
        self.fresh: dict[int, list[Ids]] = {}
        for request in step.requests:
            *shared, rest = first_prompt(step, request)
            pieces = [self._streams[name][:tokens] for name, _, tokens in shared]
            pieces.append(self._ids(rest[0], rest[2]))
            self.first[id(request)] = np.concatenate(pieces)
            self.fresh[id(request)] = [
                self._ids(
                    fresh_tokens(step, request, number),
                    turn.prompt_tokens - turn.shared_prefix_tokens if number else 0,
                )
                for number, turn in enumerate(request.turns)
            ]

    def _ids(self, name: str, tokens: int) -> Ids:
        stream = name if name == _COMMON else f"{self._played} {name}"
        return token_ids(stream, tokens, self._vocabulary)

    def next_prompt(self, request: AgendaRequest, number: int, sequence: Ids, reply: list[int]) -> Ids:
        """Return the prompt of a later turn: of the sequence so far what is shared, and fresh tokens."""
        import numpy as np

        so_far = np.concatenate([sequence, np.asarray(reply, dtype=np.int32)])[
            : request.turns[number].shared_prefix_tokens
        ]
        return np.concatenate([so_far, self.fresh[id(request)][number]])
