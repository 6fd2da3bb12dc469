"""Bind step, worker, request and turn for a block, as users write it: `with bind(step=3): ...`."""

from typing import Any

from sglang_instrument.recording.context import CURRENT, Bound, Identifier, push


class bind:  # noqa: N801 - used like a function
    """Bind the given ids for a block: `with bind(step=3, worker=1): ...`, in coroutines too.

    One object may be entered again within itself, and by several threads and tasks at a time.

    Args:
        step: Training step. The end of the outermost block that binds it is the end of the step.
        worker: Rank of the rollout worker; default `RANK`, or 0.
        request_id: A string or integer.
        turn: 0-based turn of the request.
        validate: Whether this is validation, whose records are kept apart from training's.
        role: What this process is to these records; default "worker".
    """

    __slots__ = ("_bounds", "_changes")

    def __init__(
        self,
        *,
        step: int | None = None,
        worker: int | None = None,
        request_id: Identifier | None = None,
        turn: int | None = None,
        validate: bool | None = None,
        role: str | None = None,
    ) -> None:
        changes: dict[str, Any] = {}
        if request_id is not None:
            changes["request_id"] = request_id
        if turn is not None:
            changes["turn"] = turn
        places = (("step", step), ("worker", worker), ("validate", validate), ("role", role))
        changes.update({name: value for name, value in places if value is not None})
        self._changes = changes
        self._bounds: dict[int, Bound] = {}  # by id() of the context that was set: each block knows its own

    def __enter__(self) -> "bind":
        bound = push(self._changes)
        self._bounds[id(bound.context)] = bound
        return self

    def __exit__(self, *exc: object) -> None:
        bound = self._bounds.pop(id(CURRENT.get()), None)
        if bound is None and self._bounds:  # left in another task than it was entered in
            _, bound = self._bounds.popitem()
        if bound is not None:
            bound.pop()


def step(number: int) -> bind:
    """Bind a training step for a block, as in `with step(12): ...`."""
    return bind(step=number)
