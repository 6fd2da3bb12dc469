"""Choose a server for each call, as verl's load balancer and SGLang's router do.

Source: `verl/workers/rollout/router.py` (GlobalRequestLoadBalancer: sticky, else the fewest in flight)
of verl 0.9, `sgl-router/src/policies` (round_robin, cache_aware) of SGLang's router.
"""

from collections import Counter
from itertools import count
from random import Random
from typing import Final

CACHE_THRESHOLD: Final = 0.3
BALANCE_ABSOLUTE: Final = 64
BALANCE_RELATIVE: Final = 1.5
POLICIES: Final = ("sticky", "least_load", "round_robin", "cache_aware")


class Router:
    """A router before some servers.

    Attributes:
        policy: One of POLICIES.
        in_flight: Calls that each server has.
        stuck: Shares of new conversations that a fault sends to one server: (begin, end, server, share).
    """

    def __init__(self, policy: str, servers: int, seed: str) -> None:
        self.policy = policy
        self.in_flight = [0] * servers
        self.stuck: list[tuple[float, float, int, float]] = []
        self.unsticky: list[tuple[float, float]] = []
        self._random, self._turn = Random(f"{seed}/router"), count()
        self._homes: dict[str, int] = {}
        self._known: dict[str, Counter[int]] = {}
        self._sizes: Counter[int] = Counter(dict.fromkeys(range(servers), 0))

    def choose(self, now: float, conversation: str, group: str, prompt_tokens: int, known_tokens: int) -> int:
        """Return the server of a call, which is in flight there from now on.

        Args:
            now: The time.
            conversation: Its conversation.
            group: Its prompt's group: conversations of a group begin with the same text.
            prompt_tokens: Tokens of its prompt.
            known_tokens: How many of them the last call of the conversation had, its reply included.
        """
        server = self._stuck(now, conversation)
        if server is None:
            server = self._choose(now, conversation, group, prompt_tokens, known_tokens)
        self._homes[conversation] = server
        self._known.setdefault(group, Counter())[server] = prompt_tokens
        self._sizes[server] += prompt_tokens - known_tokens
        self.in_flight[server] += 1
        return server

    def done(self, server: int) -> None:
        """Say that a call has ended."""
        self.in_flight[server] -= 1

    def _stuck(self, now: float, conversation: str) -> int | None:
        for begin, end, server, share in self.stuck:
            if begin <= now < end and Random(conversation).random() < share:
                return server
        return None

    def _choose(
        self, now: float, conversation: str, group: str, prompt_tokens: int, known_tokens: int
    ) -> int:
        if any(begin <= now < end for begin, end in self.unsticky):
            return self._random.randrange(len(self.in_flight))
        home = self._homes.get(conversation)
        if self.policy == "sticky":
            return self._fewest(draw=True) if home is None else home
        if self.policy == "least_load":
            return self._fewest(draw=True)
        if self.policy == "round_robin":
            return next(self._turn) % len(self.in_flight)
        most, least = max(self.in_flight), min(self.in_flight)
        if most - least > BALANCE_ABSOLUTE and most > least * BALANCE_RELATIVE:
            return self._fewest()
        if home is not None and known_tokens > CACHE_THRESHOLD * prompt_tokens:
            return home
        known = self._known.get(group)
        if known and home is None:
            return known.most_common(1)[0][0]
        return min(self._sizes, key=lambda server: (self._sizes[server], server))

    def _fewest(self, draw: bool = False) -> int:
        least = min(self.in_flight)
        servers = [server for server, calls in enumerate(self.in_flight) if calls == least]
        return self._random.choice(servers) if draw else servers[0]
