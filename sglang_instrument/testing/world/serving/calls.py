"""Hold what a server knows of a call, and what shapes a server."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang_instrument.testing.world.serving.clock import FOREVER, Signal
from sglang_instrument.testing.world.serving.prefix_cache import Segment, TreeNode


@dataclass(frozen=True)
class ServerShape:
    """How a server is set and how fast its machine is.

    Attributes:
        max_running: Most requests in a batch (`max_running_requests`).
        kv_tokens: Tokens of the key-value cache (`max_total_num_tokens`).
        chunk_tokens: Most tokens of a prefill (`chunked_prefill_size`).
        prefill_tokens: Most tokens of prompts in a batch (`max_prefill_tokens`).
        conservativeness: Factor on the share of the cache that is reserved for replies.
        caches: Whether prefixes are kept.
        decode_sec, decode_request_sec, decode_token_sec: Seconds of a decode: constant, for each request, for
            each token of context.
        prefill_sec, prefill_token_sec: Seconds of a prefill: constant, for each token.
        tokenize_sec: Seconds of the tokenizer for each call; it does one call at a time.
        detokenize_sec: Seconds of the detokenizer for each call; it does one call at a time.
        network_sec: Seconds from a caller to the server, and back again.
    """

    max_running: int = 64
    kv_tokens: int = 200_000
    chunk_tokens: int = 8192
    prefill_tokens: int = 16384
    conservativeness: float = 1.0
    caches: bool = True
    decode_sec: float = 0.018
    decode_request_sec: float = 0.00022
    decode_token_sec: float = 5e-8
    prefill_sec: float = 0.012
    prefill_token_sec: float = 6e-5
    tokenize_sec: float = 0.0008
    detokenize_sec: float = 0.0008
    network_sec: float = 0.001


@dataclass(eq=False)
class Call:
    """A call of the engine.

    Attributes:
        rid: Its name.
        path: Its prompt.
        reply_key: The name of its reply, in the cache.
        reply_tokens: Tokens that it makes unless it is aborted.
        max_new_tokens: Most tokens of its reply, by which the scheduler reserves.
        made: Tokens that it has made.
        cached_tokens: Tokens of its prompt that were in the cache when it was first admitted.
        received, admitted, first: When the scheduler received it, first took it from the queue, and had its
            first token.
        retractions: How often it lost its place.
        node, held: The last node of its prompt, which it locks, and its tokens outside of the tree.
        prefilled, prefix: Tokens whose keys and values are there, and those that were when it was admitted.
        aborted: Whether somebody aborted it.
        done: Its end.
    """

    rid: str
    path: Sequence[Segment]
    reply_key: str
    reply_tokens: int
    max_new_tokens: int
    made: int = 0
    cached_tokens: int | None = None
    received: float = FOREVER
    admitted: float = FOREVER
    first: float = FOREVER
    retractions: int = 0
    node: TreeNode | None = None
    held: int = 0
    prefilled: int = 0
    prefix: int = 0
    aborted: bool = False
    weight_version: int = 0
    done: Signal = field(default_factory=Signal)

    def __post_init__(self) -> None:
        self.prompt_tokens = sum(segment.tokens for segment in self.path)

    @property
    def context(self) -> int:
        """Tokens of the prompt and of what was made."""
        return self.prompt_tokens + self.made

    @property
    def finish_reason(self) -> str:
        """Why it ended."""
        if self.aborted:
            return "abort"
        return "length" if self.made >= self.max_new_tokens else "stop"
