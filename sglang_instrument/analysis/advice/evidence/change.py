"""Say what is changed in a replay: rules for requests, servers, limits, pools, waits."""

from dataclasses import dataclass, field, replace

from sglang_instrument.analysis.changes.replaying.rules import Rules


@dataclass(frozen=True)
class Change:
    """What is another in a replay; the default changes nothing.

    Attributes:
        rules: For the requests.
        servers: How many more servers there are.
        limit: How many calls a server runs at once; None for as many as recorded.
        more_requests: By which share more requests are begun; a step still ends when as many as recorded
            are done.
        free_pools: Events whose calls no longer wait for a place, such as `tool_call search`.
        most_sec: Most seconds of a call of such an event.
        outside_sec: Seconds that each step saves outside of requests, by step.
    """

    rules: Rules = field(default_factory=Rules)
    servers: int = 0
    limit: int | None = None
    more_requests: float = 0.0
    free_pools: frozenset[str] = frozenset()
    most_sec: dict[str, float] = field(default_factory=dict)
    outside_sec: dict[int, float] = field(default_factory=dict)

    @property
    def changes_servers(self) -> bool:
        """Whether servers, their limit or how many requests they get is another."""
        return bool(self.servers or self.limit or self.more_requests)

    def with_change(self, other: "Change") -> "Change":
        """Return both changes together: where both change one thing, the stricter value counts."""
        mine, others = self.rules, other.rules
        rules = Rules(
            max_tokens=_least(mine.max_tokens, others.max_tokens),
            max_turn_tokens=_least(mine.max_turn_tokens, others.max_turn_tokens),
            max_turns=_least(mine.max_turns, others.max_turns),
            scale={**mine.scale, **others.scale},
        )
        steps = {*self.outside_sec, *other.outside_sec}
        return replace(
            self,
            rules=rules,
            servers=self.servers + other.servers,
            limit=self.limit or other.limit,
            more_requests=max(self.more_requests, other.more_requests),
            free_pools=self.free_pools | other.free_pools,
            most_sec={**self.most_sec, **other.most_sec},
            outside_sec={
                step: self.outside_sec.get(step, 0.0) + other.outside_sec.get(step, 0.0) for step in steps
            },
        )


def _least(first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return min(known, default=None)
