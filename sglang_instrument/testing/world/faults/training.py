"""What may go wrong with the trainer: its phases, its weights, what it filters, how far ahead it lets run."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.testing.world.faults.batches import make_long, uncapped
from sglang_instrument.testing.world.faults.fault import (
    AtStep,
    FaultKind,
    Sizes,
    Span,
    WorldFault,
    knob,
    parts,
    seconds_on,
)
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

_ANY: Final = (ROUTED, OWN, OVERSAMPLED, ONE_OFF, ASYNCHRONOUS, DRAINED)
_STREAMED: Final = (ASYNCHRONOUS, DRAINED)


def _tighten(fault: WorldFault, stage: "Stage") -> None:
    """Let the rollout run less far ahead of the trainer than it did; with 0, not at all."""
    stage.knobs.ahead_groups = round(fault.size * stage.shape.ahead_groups)


def _validated(shape: WorldShape) -> WorldShape:
    return replace(shape, validate_every=3)


def _kind(
    words: frozenset[str],
    span: Span,
    sizes: Sizes,
    at_step: AtStep,
    families: tuple[str, ...] = _ANY,
    **more: Any,
) -> FaultKind:
    return FaultKind(words, "all", span, families, sizes, at_step, **more)


def _phase(event: str) -> AtStep:
    return seconds_on("phase_sec", lambda fault: event)


TRAINING: Final[dict[str, FaultKind]] = {
    "trainer: slow update in a step": _kind(
        parts("trainer"), "one", (0.15, 0.4, 1.0), _phase("trainer_update_actor")
    ),
    "trainer: slow update from a step on": _kind(
        parts("trainer"), "from", (0.15, 0.4, 1.0), _phase("trainer_update_actor")
    ),
    "trainer: slow checkpoint in a step": _kind(
        parts("trainer", "checkpoint"), "one", (0.15, 0.4, 1.0), _phase("trainer_save_checkpoint")
    ),
    "trainer: gap after a step": _kind(
        parts("gap", "trainer"), "one", (0.15, 0.4, 1.0), knob("gap_sec", times_wall=True)
    ),
    "trainer: long validation": _kind(
        parts("validation"), "all", (2.0, 4.0, 8.0), knob("validate_factor"), (ROUTED,), needs=_validated
    ),
    "weights: slow to all in a step": _kind(
        parts("weights"), "one", (0.15, 0.4, 1.0), seconds_on("transfer_sec", lambda fault: None)
    ),
    "weights: wait for one long reply": _kind(
        parts("drain", "lengths", "weights"),
        "one",
        (0.4, 0.7, 1.0),
        make_long,
        (DRAINED,),
        needs=uncapped,
        may_name=-1,
    ),
    "groups: filtered in a step": _kind(
        parts("filter"), "one", (0.4, 0.6, 0.8), knob("filtered_share"), (OVERSAMPLED, *_STREAMED)
    ),
    "groups: filtered from a step on": _kind(
        parts("filter"), "from", (0.4, 0.6, 0.8), knob("filtered_share"), (OVERSAMPLED, *_STREAMED)
    ),
    "staleness: bound too tight": _kind(parts("staleness"), "from", (0.5, 0.2, 0.0), _tighten, _STREAMED),
}
