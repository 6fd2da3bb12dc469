"""Tell what two prompts share by the hashes of their beginnings, whatever was in a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sglang_instrument.prompt_prefixes import block_tokens

_MOST_GROUPS = 0.5  # of the groups begin with what counts as common


@dataclass(frozen=True, slots=True)
class PromptPrefixes:
    """The hashes of a prompt's beginnings.

    Attributes:
        tokens: Of the prompt.
        hashes: Of the first block, of the first two, and so on, as a scheduler logs them.
    """

    tokens: int
    hashes: tuple[str, ...]

    @property
    def block(self) -> int:
        """How many tokens a block has."""
        return block_tokens(self.tokens)

    def by_length(self, multiple: int) -> dict[int, str]:
        """Return the hashes of beginnings whose lengths are multiples of this number."""
        lengths = ((place + 1) * self.block for place in range(len(self.hashes)))
        return {
            length: digest
            for length, digest in zip(lengths, self.hashes, strict=True)
            if length % multiple == 0
        }


def shared_tokens(first: PromptPrefixes, second: PromptPrefixes) -> tuple[int, int]:
    """Return between how many tokens the beginnings of two prompts are the same.

    Returns:
        As many as are the same for sure, and fewer than so many.
    """
    block = max(first.block, second.block)
    mine, theirs = first.by_length(block), second.by_length(block)
    both = [length for length in mine if length in theirs]
    same = max((length for length in both if mine[length] == theirs[length]), default=0)
    differing = min(
        (length for length in both if length > same), default=min(first.tokens, second.tokens) + 1
    )
    return same, differing


def common_tokens(prompts: Iterable[PromptPrefixes]) -> int:
    """Return with how many tokens most of these prompts begin, one of each group; whole blocks only."""
    known = [prompt for prompt in prompts if prompt.hashes]
    if len(known) < 2:
        return 0
    seen = Counter(item for prompt in known for item in prompt.by_length(1).items())
    wanted = max(2, _MOST_GROUPS * len(known))
    return max((length for (length, _), count in seen.items() if count >= wanted), default=0)
