"""Define the causes that can be planted in a synthetic run, for an analysis to find."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Straggler:
    """The engine of `worker` takes `factor` times as long in `step`."""

    step: int
    worker: int
    factor: float = 2.0


@dataclass(frozen=True)
class Plateau:
    """In `step` exactly `requests` requests of `worker` stand still, in the engine call of `turn` (0-based).

    From `start_sec` to `end_sec` after the start of generation they neither advance nor end; all other
    requests of the worker have ended before. The rest of their engine calls then takes `slowdown` times as
    long.
    """

    step: int
    worker: int
    start_sec: float
    end_sec: float
    requests: int
    turn: int = 1
    slowdown: float = 1.0


@dataclass(frozen=True)
class SlowReward:
    """Every reward of `worker` in `step` takes `seconds` longer."""

    step: int
    worker: int
    seconds: float


@dataclass(frozen=True)
class BlockedLoop:
    """Code blocks the event loop of `worker` for `seconds`, `at_sec` after the start of generation."""

    step: int
    worker: int
    at_sec: float
    seconds: float


@dataclass(frozen=True)
class Hang:
    """In `step` one tool of `worker` never returns; it is the last step, and no worker passes the barrier."""

    step: int
    worker: int


@dataclass(frozen=True)
class TornFile:
    """The last line of the file of `worker` in `step` is cut off in its middle, as after a kill."""

    step: int
    worker: int


@dataclass(frozen=True)
class Planted:
    """All causes of one run; None plants nothing."""

    straggler: Straggler | None = None
    plateau: Plateau | None = None
    slow_reward: SlowReward | None = None
    blocked_loop: BlockedLoop | None = None
    hang: Hang | None = None
    torn_file: TornFile | None = None


def is_planted(cause: object, step: int, worker: int) -> bool:
    """Return whether a cause (or None) is planted in this step of this worker."""
    return cause is not None and (getattr(cause, "step", None), getattr(cause, "worker", None)) == (
        step,
        worker,
    )
