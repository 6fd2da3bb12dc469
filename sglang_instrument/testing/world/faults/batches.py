"""What may go wrong with the requests of all workers: tools, rewards, lengths."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.testing.world.faults.fault import (
    AtStep,
    FaultKind,
    Place,
    Sizes,
    Span,
    WorldFault,
    factor_on,
    knob,
    parts,
)
from sglang_instrument.testing.world.faults.servers import long_prompts
from sglang_instrument.testing.world.rollout.shape import (
    ASYNCHRONOUS,
    DRAINED,
    ONE_OFF,
    OVERSAMPLED,
    OWN,
    ROUTED,
    WorldShape,
)

if TYPE_CHECKING:
    from sglang_instrument.testing.world.stage import Stage

_BATCHED: Final = (ROUTED, OWN, ONE_OFF, OVERSAMPLED)
_ANY: Final = (*_BATCHED, ASYNCHRONOUS, DRAINED)


def _time_out(fault: WorldFault, stage: "Stage") -> None:
    stage.knobs.timeout_share = fault.size
    stage.knobs.timeout_sec = 30.0


def _limit(fault: WorldFault, stage: "Stage") -> None:
    if fault.tool is not None:
        stage.knobs.tool_places[fault.tool] = round(fault.size)


def _score_all(fault: WorldFault, stage: "Stage") -> None:
    stage.knobs.reward_factor[None] = fault.size


def _score_one(fault: WorldFault, stage: "Stage") -> None:
    """Make one of the reward workers slow."""
    stage.knobs.reward_factor[-1] = fault.size


def make_long(fault: WorldFault, stage: "Stage") -> None:
    """Make one reply of the batch long."""
    stage.knobs.long_reply = round(fault.size * stage.shape.work.max_new_tokens)


def uncapped(shape: WorldShape) -> WorldShape:
    """Return a world in which one reply may be far longer than the usual ones."""
    work = replace(shape.work, max_new_tokens=4096, tokens_log=4.6, tokens_sigma=0.4)
    kv_tokens = max(shape.server.kv_tokens, 60_000)
    return replace(shape, work=work, server=replace(shape.server, kv_tokens=kv_tokens))


def _scores(shape: WorldShape) -> WorldShape:
    return replace(shape, scores_alone=True)


def _scores_batches(shape: WorldShape) -> WorldShape:
    return replace(shape, scores_alone=False)


def _kind(
    span: Span,
    words: frozenset[str],
    sizes: Sizes,
    at_step: AtStep,
    place: Place = "all",
    families: tuple[str, ...] = _BATCHED,
    **more: Any,
) -> FaultKind:
    return FaultKind(words, place, span, families, sizes, at_step, **more)


_one: Final = partial(_kind, "one")
_from: Final = partial(_kind, "from")
_TOOL: Final = parts("tool")
_TIMES: Final = factor_on("tool_factor", lambda fault: (None, fault.tool))
_LENGTHS: Final = factor_on("reply_factor", lambda fault: None)
BATCHES: Final[dict[str, FaultKind]] = {
    "tools: time out in a step": _one(_TOOL, (0.05, 0.15, 0.3), _time_out, families=_ANY),
    "tools: one slow in a step": _one(_TOOL, (4.0, 10.0, 25.0), _TIMES, "tool"),
    "tools: one slow from a step on": _from(_TOOL, (4.0, 10.0, 25.0), _TIMES, "tool", _ANY),
    "tools: few places in a step": _one(parts("tool", "pool"), (4, 2, 1), _limit, "tool"),
    "tools: few places from a step on": _from(parts("tool", "pool"), (4, 2, 1), _limit, "tool", _ANY),
    "tools: one call hangs": _one(
        parts("tool"), (0.5, 1.0, 2.0), knob("stuck_tool_sec", times_wall=True), may_name=-1
    ),
    "rewards: slow in a step": _one(parts("reward"), (50.0, 150.0, 400.0), _score_all, needs=_scores),
    "rewards: batch slow in a step": _one(
        parts("reward"), (0.15, 0.4, 1.0), knob("reward_batch_sec", times_wall=True), needs=_scores_batches
    ),
    "rewards: one reward worker slow": _from(
        parts("reward"), (50.0, 150.0, 400.0), _score_one, needs=_scores
    ),
    "environments: slow in a step": _one(
        parts("environment"), (0.15, 0.4, 1.0), knob("environment_sec", times_wall=True)
    ),
    "replies: one is long": _one(
        parts("lengths"), (0.3, 0.6, 1.0), make_long, families=_ANY, needs=uncapped, may_name=0
    ),
    "replies: longer in a step": _one(parts("lengths"), (1.3, 1.7, 2.6), _LENGTHS),
    "replies: longer from a step on": _from(parts("lengths"), (1.3, 1.7, 2.6), _LENGTHS, families=_ANY),
    "prompts: longer in a step": _one(
        parts("prefill", "prompts"), (2.0, 4.0, 8.0), knob("prompt_factor"), needs=long_prompts
    ),
    "turns: more in a step": _one(parts("turns"), (1.5, 2.0, 3.0), knob("turns_factor")),
}
