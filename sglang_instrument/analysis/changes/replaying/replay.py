"""Replay requests at engines that are slower the more calls they have at once.

The work of a recorded call is counted in tokens that each running call decoded while it did.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed
from sglang_instrument.analysis.timing.processor_sharing import (
    NEVER,
    Caller,
    SharedCall,
    SharingRules,
    serve,
)


@dataclass(frozen=True)
class PooledWork:
    """A call of a tool or a reward in a pool.

    Attributes:
        pool: The number of the pool.
        kind: "tool" or "reward".
        wait_sec: From the end of the engine call before to its begin.
        sec: How long it takes once it has a place.
    """

    pool: int
    kind: str
    wait_sec: float
    sec: float


@dataclass
class ReplayedCall:
    """An engine call.

    Attributes:
        wait_sec: From the end of the call before, or of `pooled`, to its begin.
        prefill_sec: From its admission by the engine to its first token.
        work: By how much the count of tokens grows from there to its end.
        pooled: The calls in pools that are made before it.
        engine: The engine that serves it; None for any.
    """

    wait_sec: float
    prefill_sec: float
    work: float
    pooled: Sequence[PooledWork] = ()
    engine: int | None = None


@dataclass
class ReplayedRequest:
    """A request: `begin` in seconds, its calls, and `rest_sec` from the end of the last one to its own.

    Those `pooled` are made after the last engine call. It is cut `most_sec` after its begin.
    """

    begin: float
    calls: list[ReplayedCall]
    rest_sec: float
    most_sec: float = NEVER
    pooled: Sequence[PooledWork] = ()


@dataclass(frozen=True)
class Stations:
    """Where replayed requests wait for each other.

    Attributes:
        speed: Of each engine.
        limit: How many calls an engine runs at once; None for any number.
        engines: How many engines share the calls: `processor_sharing` says how.
        pools: How many calls each pool runs at once.
        prefills_alone: Whether an engine decodes nothing while it reads a prompt.
        paces: How many times as long each engine takes; without them, all are equal.
        to_fewest: Whether a call goes to the engine that it names only if no other has fewer calls.
    """

    speed: EngineSpeed
    limit: int | None = None
    engines: int = 1
    pools: Sequence[int] = field(default_factory=tuple)
    prefills_alone: bool = False
    paces: Sequence[float] = ()
    to_fewest: bool = False


def work_of(spans: Sequence[tuple[float, float, float]], speed: EngineSpeed) -> list[float]:
    """Return the work of recorded calls of one engine.

    Args:
        spans: When each was admitted, when it had its first token, and when it ended.
        speed: Of the engine.
    """
    changes = sorted([(start, 1) for start, _, _ in spans] + [(end, -1) for _, _, end in spans])
    wanted = sorted({time for _, first, end in spans for time in (first, end)})
    done: dict[float, float] = {}
    crowd, clock, place = 0, 0.0, 0
    for (now, change), (later, _) in pairwise([*changes, (NEVER, 0)]):
        crowd += change
        rate = _rate(speed, max(crowd, 1))
        while place < len(wanted) and wanted[place] <= later:
            done[wanted[place]] = clock + (wanted[place] - now) * rate
            place += 1
        clock += (later - now) * rate
    return [done[end] - done[first] for _, first, end in spans]


def _rate(speed: EngineSpeed, crowd: int) -> float:
    sec = speed.token_sec + speed.crowd_sec * crowd
    return 1 / sec if sec else 0.0


def replay(
    requests: Sequence[ReplayedRequest], speed: EngineSpeed, limit: int | None = None, engines: int = 1
) -> list[float]:
    """Return when each request ends that calls engines alone.

    Args:
        requests: What calls the engines.
        speed: Of each engine.
        limit: How many calls an engine runs at once; None for any number.
        engines: How many engines share the calls.
    """
    return replay_at(requests, Stations(speed, limit, engines))


def replay_at(requests: Sequence[ReplayedRequest], stations: Stations) -> list[float]:
    """Return when each request ends."""
    ends = [request.begin + request.most_sec for request in requests]
    callers = (_calls(number, request, ends) for number, request in enumerate(requests))
    speed = stations.speed
    rules = SharingRules(
        speed.token_sec,
        speed.crowd_sec,
        stations.limit,
        stations.engines,
        pools=stations.pools,
        prefills_alone=stations.prefills_alone,
        paces=stations.paces,
        to_fewest=stations.to_fewest,
    )
    serve(callers, rules, list(ends))
    return ends


def _calls(number: int, request: ReplayedRequest, ends: list[float]) -> Caller:
    """Make the calls of a request, and write down when it ends."""
    now = request.begin
    for call in request.calls:
        if call.pooled:
            now = (yield _in_pools(now, call.pooled)).end
        served = yield SharedCall(now + call.wait_sec, call.prefill_sec, call.work, call.engine)
        now = served.end
    if request.pooled:
        now = (yield _in_pools(now, request.pooled)).end
    ends[number] = min(now + request.rest_sec, ends[number])


def _in_pools(now: float, pooled: Sequence[PooledWork]) -> SharedCall:
    """Return calls in pools, all of which are awaited."""
    first, *others = (SharedCall(now + work.wait_sec, work.sec, 0.0, pool=work.pool) for work in pooled)
    return first._replace(beside=tuple(others))
