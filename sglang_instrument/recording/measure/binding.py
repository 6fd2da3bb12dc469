"""Bind step, worker, request and turn for a block, as users write it: `with bind(step=3): ...`.

An exception of the program, such as Ctrl-C, may interrupt entering or leaving a block. If it interrupts the
entering, nothing stays bound. If it interrupts the leaving, the ids may stay bound: the next block that ends
around it, or begins after it, drops them. In `_binding.pyx` neither can be interrupted.

A forked child goes on inside the blocks in which it was forked, and leaves them.
"""

import sys
from types import FrameType, TracebackType
from typing import Any, Final

from msgspec import Struct, field

from sglang_instrument import native
from sglang_instrument.recording.measure.context import CURRENT, Bound, Context, push
from sglang_instrument.recording.measure.losses import log_swallowed_now
from sglang_instrument.recording.measure.scopes import Scope, forget_scope, keep_scope
from sglang_instrument.recording.measure.values import Identifier

_GENERATORS: Final = 0x20 | 0x200  # CO_GENERATOR, CO_ASYNC_GENERATOR: importing inspect takes long


class Binding(Struct, eq=False):
    """Binds `changes` while one of its blocks is open. It never raises: ids that fail are not bound."""

    changes: dict[str, Any]
    # By id() of the context that was set: each block sets its own.
    bounds: dict[int, Bound] = field(default_factory=dict)

    def __enter__(self) -> "Binding":
        bound = None
        try:
            _end_interrupted(sys.exc_info()[2])
            bound = push(self.changes)
            self.bounds[id(bound.context)] = bound
        except BaseException:
            _undo(bound)
            log_swallowed_now("binding ids")
        return self

    def __exit__(self, *exception: object) -> None:
        bound = None
        try:
            current = CURRENT.get()
            bound = self.bounds.pop(id(current), None)
            if bound is None and self.bounds:  # another task than the one that entered the block leaves it
                _, bound = self.bounds.popitem()
            if bound is not None:
                is_usual = bound.context is current and (not exception or exception[0] is not GeneratorExit)
                bound.pop(not is_usual and _lies_in_generator(sys._getframe(1)))
        except BaseException:
            _undo(bound)
            log_swallowed_now("unbinding ids")


def _lies_in_generator(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & _GENERATORS)


def _undo(bound: Bound | None) -> None:
    """Unbind what an exception has interrupted; call it while the exception is handled."""
    try:
        if bound is not None:
            bound.pop()
    except MemoryError:
        pass


def _end_interrupted(trace: TracebackType | None) -> None:
    """End the blocks whose `__exit__` the exception being handled interrupted before its first line."""
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if frame.f_code is Binding.__exit__.__code__:
            for bound in frame.f_locals["self"].bounds.values():
                bound.pop()


_NOTHING: Final = Binding({})


def bind(
    *,
    step: int | None = None,
    worker: int | None = None,
    request_id: Identifier | None = None,
    turn: int | None = None,
    validate: bool | None = None,
    role: str | None = None,
    agent: Identifier | None = None,
    parent_request: Identifier | None = None,
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
        agent: Which agent works here, such as "planner".
        parent_request: The request that this agent's requests are for; by default the one that is bound
            around it, if both `agent` and `request_id` are given.
    """
    try:
        changes: dict[str, Any] = {}
        if request_id is not None:
            changes["request_id"] = request_id
        if turn is not None:
            changes["turn"] = turn
        places = (
            *(("step", step), ("worker", worker), ("validate", validate), ("role", role)),
            *(("agent", agent), ("parent_request", parent_request)),
        )
        changes.update({name: value for name, value in places if value is not None})
        return Binding(changes)
    except BaseException:
        log_swallowed_now("binding ids")
        return _NOTHING


def step(number: int) -> Binding:
    """Bind a training step for a block, as in `with step(12): ...`."""
    return bind(step=number)


_inherited: list[Scope] = []


def keep_inherited() -> None:
    """In a forked child, count the blocks around the fork as open; those of other threads are gone.

    The scopes begin without records: those so far are the parent's.
    """
    _inherited.clear()
    context: Context | None = CURRENT.get()
    while context is not None:
        if context.scope is not None and context.opened and not context.ended:
            inherit(context.scope)
        context = context.outer


def inherit(scope: Scope) -> None:
    """Count one more block of this scope as inherited."""
    if scope not in _inherited:
        _inherited.append(scope)
        scope.open = scope.written = scope.dropped = scope.sampled_out = 0
        scope.ended = False
        keep_scope(scope)
    scope.open += 1


def forget_inherited() -> None:
    """Forget these blocks: the child begins with work of its own, and never leaves them."""
    for scope in _inherited:
        forget_scope(scope)
    _inherited.clear()


native.use_compiled(globals(), "Binding", "bind")
