"""Hold what a fault may turn while a world runs; without faults everything stands at its usual value."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Knobs:
    """The state of a world in one step. A worker of None stands for all workers.

    Attributes:
        tool_factor, tool_places: Factor on the seconds of a tool by (worker, tool), and its places where they
            are limited; None stands for all.
        timeout_share, timeout_sec: Share of the tool calls that time out, and after how long.
        stuck_tool_sec: Seconds for which one call of a tool hangs, 0 if none does.
        reward_factor: Factor on the seconds of a reward, by worker.
        reward_batch_sec: More seconds of a reward for the whole batch.
        late_sec, before_sec, after_sec: Seconds by which a worker begins late, and that it takes longer
            before and after its requests.
        call_sec: Seconds that each call of a worker takes longer between it and the router.
        blocked: From when to when, in seconds of the step, a worker's event loop is blocked.
        locked: Workers whose tools run one at a time.
        reply_factor: Factor on the tokens of replies, by worker.
        long_reply: Tokens of one reply, 0 if none is long.
        turns_factor, prompt_factor: Factors on the turns of a request and on the tokens of its question.
        environment_sec: More seconds in which an environment is set up.
        phase_sec: More seconds of a phase of the trainer, by event.
        gap_sec: Seconds between this step and the next of which nothing is recorded.
        transfer_sec: More seconds of the weights' transfer, by server.
        filtered_share: Share of the groups that are filtered.
        ahead_groups: How many groups may be made ahead of the trainer; None is as the world is set.
        validate_factor: Factor on the requests of a validation.
    """

    tool_factor: dict[tuple[int | None, str | None], float] = field(default_factory=dict)
    tool_places: dict[str, int] = field(default_factory=dict)
    timeout_share: float = 0.0
    timeout_sec: float = 30.0
    stuck_tool_sec: float = 0.0
    reward_factor: dict[int | None, float] = field(default_factory=dict)
    reward_batch_sec: float = 0.0
    late_sec: dict[int, float] = field(default_factory=dict)
    before_sec: dict[int, float] = field(default_factory=dict)
    after_sec: dict[int, float] = field(default_factory=dict)
    call_sec: dict[int, float] = field(default_factory=dict)
    blocked: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    locked: set[int] = field(default_factory=set)
    reply_factor: dict[int | None, float] = field(default_factory=dict)
    long_reply: int = 0
    turns_factor: float = 1.0
    prompt_factor: float = 1.0
    environment_sec: float = 0.0
    phase_sec: dict[str, float] = field(default_factory=dict)
    gap_sec: float = 0.0
    transfer_sec: dict[int | None, float] = field(default_factory=dict)
    filtered_share: float | None = None
    ahead_groups: int | None = None
    validate_factor: float = 1.0

    def tool_times(self, worker: int, tool: str) -> float:
        """Return the factor on a tool of a worker."""
        factor = 1.0
        for key in ((worker, tool), (worker, None), (None, tool), (None, None)):
            factor *= self.tool_factor.get(key, 1.0)
        return factor
