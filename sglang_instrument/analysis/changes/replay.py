"""Replay requests at engines that are slower the more calls they have at once.

The work of a recorded call is counted in tokens that each running call decoded while it did.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed
from sglang_instrument.analysis.timing import processor_sharing
from sglang_instrument.analysis.timing.processor_sharing import NEVER, Caller, SharingRules, serve


@dataclass
class ReplayedCall:
    """An engine call.

    Attributes:
        wait_sec: From the end of the call before to its begin.
        prefill_sec: From its admission by the engine to its first token.
        work: By how much the count of tokens grows from there to its end.
    """

    wait_sec: float
    prefill_sec: float
    work: float


@dataclass
class ReplayedRequest:
    """A request: `begin` in seconds, its calls, and `rest_sec` from the end of the last one to its own.

    It is cut `most_sec` after its begin.
    """

    begin: float
    calls: list[ReplayedCall]
    rest_sec: float
    most_sec: float = NEVER


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
    """Return when each request ends.

    Args:
        requests: What calls the engines.
        speed: Of each engine.
        limit: How many calls an engine runs at once; None for any number.
        engines: How many engines share the calls: `processor_sharing` says how.
    """
    ends = [request.begin + request.most_sec for request in requests]
    callers = (_calls(number, request, ends) for number, request in enumerate(requests))
    serve(callers, SharingRules(speed.token_sec, speed.crowd_sec, limit, engines), list(ends))
    return ends


def _calls(number: int, request: ReplayedRequest, ends: list[float]) -> Caller:
    """Make the calls of a request, and write down when it ends."""
    now = request.begin
    for call in request.calls:
        served = yield processor_sharing.SharedCall(now + call.wait_sec, call.prefill_sec, call.work)
        now = served.end
    ends[number] = min(now + request.rest_sec, ends[number])
