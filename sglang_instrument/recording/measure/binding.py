"""Bind step, worker, request and turn for a block, as users write it: `with bind(step=3): ...`."""

from typing import Any, Final

from msgspec import Struct, field

from sglang_instrument.recording.measure.context import CURRENT, Bound, Identifier, push
from sglang_instrument.recording.safety.notices import log_swallowed


class Binding(Struct, eq=False):
    """Binds `changes` while one of its blocks is open. It never raises: ids that fail are not bound."""

    changes: dict[str, Any]
    # By id() of the context that was set: each block sets its own.
    bounds: dict[int, Bound] = field(default_factory=dict)

    def __enter__(self) -> "Binding":
        bound = None
        try:
            bound = push(self.changes)
            self.bounds[id(bound.context)] = bound
        except BaseException as error:
            if bound is not None:
                bound.pop()
            log_swallowed("binding ids", error)
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            bound = self.bounds.pop(id(CURRENT.get()), None)
            if bound is None and self.bounds:  # another task than the one that entered the block leaves it
                _, bound = self.bounds.popitem()
            if bound is not None:
                bound.pop()
        except BaseException as error:
            log_swallowed("unbinding ids", error)


_NOTHING: Final = Binding({})


def bind(
    *,
    step: int | None = None,
    worker: int | None = None,
    request_id: Identifier | None = None,
    turn: int | None = None,
    validate: bool | None = None,
    role: str | None = None,
) -> Binding:
    """Bind the given ids for a block: `with bind(step=3, worker=1): ...`, in coroutines too.

    The returned object may be entered again within its own block, and by several threads and tasks at once.

    Args:
        step: Training step. The end of the outermost block that binds it is the end of the step.
        worker: Rank of the rollout worker; default `RANK`, or 0.
        request_id: A string or integer.
        turn: 0-based turn of the request.
        validate: Whether this is validation; its records are kept apart from training's.
        role: The role of this process in these records; default "worker".
    """
    try:
        changes: dict[str, Any] = {}
        if request_id is not None:
            changes["request_id"] = request_id
        if turn is not None:
            changes["turn"] = turn
        places = (("step", step), ("worker", worker), ("validate", validate), ("role", role))
        changes.update({name: value for name, value in places if value is not None})
        return Binding(changes)
    except BaseException as error:
        log_swallowed("binding ids", error)
        return _NOTHING


def step(number: int) -> Binding:
    """Bind a training step for a block, as in `with step(12): ...`."""
    return bind(step=number)
