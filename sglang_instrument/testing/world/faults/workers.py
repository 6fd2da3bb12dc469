"""What may go wrong with one worker: its tools, its rewards, its event loop, its begin."""

from typing import TYPE_CHECKING, Final

from sglang_instrument.testing.world.faults.fault import (
    AtStep,
    FaultKind,
    Sizes,
    Span,
    WorldFault,
    factor_on,
    parts,
    seconds_on,
)
from sglang_instrument.testing.world.rollout.shape import ASYNCHRONOUS, DRAINED, ONE_OFF, OWN, ROUTED

if TYPE_CHECKING:
    from sglang_instrument.testing.world.stage import Stage

_BATCHED: Final = (ROUTED, OWN, OWN, ONE_OFF)
_ANY: Final = (*_BATCHED, ASYNCHRONOUS, DRAINED)


def _block(fault: WorldFault, stage: "Stage") -> None:
    if fault.worker is not None:
        stage.knobs.blocked[fault.worker] = [(0.2 * fault.wall_sec, fault.size * fault.wall_sec)]


def _lock(fault: WorldFault, stage: "Stage") -> None:
    """Let a worker's tools run one at a time; the size is how many times as long each takes."""
    if fault.worker is not None:
        stage.knobs.locked.add(fault.worker)
        stage.knobs.tool_factor[fault.worker, None] = fault.size


def _worker(fault: WorldFault) -> int | None:
    return fault.worker


def _tools(fault: WorldFault) -> tuple[int | None, None]:
    return fault.worker, None


def _kind(
    words: frozenset[str], span: Span, sizes: Sizes, at_step: AtStep, families: tuple[str, ...] = _BATCHED
) -> FaultKind:
    return FaultKind(words, "worker", span, families, sizes, at_step)


WORKERS: Final[dict[str, FaultKind]] = {
    "worker: slow tools": _kind(
        parts("tool"), "all", (5.0, 10.0, 20.0), factor_on("tool_factor", _tools), _ANY
    ),
    "worker: slow tools in a step": _kind(
        parts("tool"), "one", (5.0, 10.0, 25.0), factor_on("tool_factor", _tools)
    ),
    "worker: tools one at a time": _kind(parts("tool", "lock"), "all", (0.5, 1.0, 2.0), _lock),
    "worker: slow rewards": _kind(
        parts("reward"), "all", (50.0, 150.0, 400.0), factor_on("reward_factor", _worker)
    ),
    "worker: slow rewards in a step": _kind(
        parts("reward"), "one", (50.0, 150.0, 400.0), factor_on("reward_factor", _worker)
    ),
    "worker: late in a step": _kind(parts("start"), "one", (0.15, 0.4, 1.0), seconds_on("late_sec", _worker)),
    "worker: always late": _kind(parts("start"), "all", (0.15, 0.3, 0.8), seconds_on("late_sec", _worker)),
    "worker: blocked loop": _kind(parts("loop"), "one", (0.2, 0.5, 1.2), _block, _ANY),
    "worker: slow preprocessing in a step": _kind(
        parts("preprocess"), "one", (0.15, 0.4, 1.0), seconds_on("before_sec", _worker)
    ),
    "worker: slow batch in a step": _kind(
        parts("postprocess"), "one", (0.15, 0.4, 1.0), seconds_on("after_sec", _worker)
    ),
    "worker: slow way to the servers": _kind(
        parts("network", "call"), "all", (0.6, 1.5, 4.0), factor_on("call_sec", _worker), _ANY
    ),
    "worker: long replies in a step": _kind(
        parts("lengths"), "one", (1.4, 2.0, 3.0), factor_on("reply_factor", _worker)
    ),
}
