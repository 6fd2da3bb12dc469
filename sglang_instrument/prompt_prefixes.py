"""Hash the beginnings of a prompt: a log then tells which prompts share one, and no token of it."""

from array import array
from hashlib import blake2b
from typing import Any, Final

SMALLEST_BLOCK: Final = 16  # tokens
MOST_BLOCKS: Final = 16
MOST_TOKENS: Final = 65_536
_DIGEST: Final = 6  # bytes: among a million prompts, the chance that two look alike by mistake is 1 in 500


def block_tokens(tokens: int) -> int:
    """Return how many tokens a block of a prompt has: a power of 2, so that there are 16 blocks at most."""
    block = SMALLEST_BLOCK
    while block * MOST_BLOCKS < min(tokens, MOST_TOKENS):
        block *= 2
    return block


def prefix_hashes(token_ids: Any) -> list[str]:
    """Return a hash of the first block of a prompt, of the first two, and so on; the last block is whole.

    Args:
        token_ids: A list or an array of integers.

    Raises:
        TypeError: They are no list or array of integers: a tensor, for example.
        OverflowError: One of them has more than 64 bits.
    """
    if not isinstance(token_ids, (list, array)):
        raise TypeError(f"{type(token_ids).__name__} is no list of tokens")
    block = block_tokens(len(token_ids))
    digest = blake2b(digest_size=_DIGEST)
    hashes = []
    for end in range(block, min(len(token_ids), MOST_TOKENS) + 1, block):
        digest.update(array("q", token_ids[end - block : end]))
        hashes.append(digest.copy().hexdigest())
    return hashes
