"""Keep the bound ids: the step, worker, request and turn that the program works on now."""

import sys
from _thread import RLock, get_ident
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from typing import Any, Final
from weakref import ref

from msgspec import Struct

from sglang_instrument import native
from sglang_instrument.recording.measure import tasks
from sglang_instrument.recording.measure.identity import new_agent, with_agent, word
from sglang_instrument.recording.measure.scopes import (
    Scope,
    forget_scope,
    forget_scopes,
    scope_for,
    scopes,
    tell_left,
)
from sglang_instrument.recording.measure.scopes import tell_began as _tell_began
from sglang_instrument.recording.measure.tasks import Task
from sglang_instrument.recording.measure.values import LONGEST_ID as LONGEST_ID
from sglang_instrument.recording.measure.values import Identifier, flag, identifier, integer
from sglang_instrument.recording.safety.notices import log_swallowed


class Context(Struct, gc=False, eq=False):
    """The bound ids; None where an id is not bound. All records made under it share it: derive, don't set.

    `extra` has those that records show: {"request_id": ..., "turn": ..., ...}; `shared_json` is the encoder's
    cache (see `LineEncoder`).
    `bound_by_task` is the task that bound it: it has spawned the other tasks with this context. `outer` is
    the context that was bound before; `ended` says that the block has ended, though spawned tasks may keep
    the context; `opened` that the block is one of the scope's open blocks; `left` that the block was left in
    another task, where it could not be unset. `block` is a weak reference to the block's `Bound`.
    """

    worker: int | None = None
    step: int | None = None
    validate: bool = False
    request_id: Identifier | None = None
    turn: int | None = None
    role: str | None = None
    scope: Scope | None = None
    extra: dict[str, Any] | None = None
    agent: Identifier | None = None
    parent_request: Identifier | None = None
    bound_by_task: Task | None = None
    shared_json: Any = None
    outer: "Context | None" = None
    ended: bool = False
    opened: bool = False
    left: bool = False
    block: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        known = (self.worker, self.step, self.validate, self.request_id, self.turn, self.role)
        agents = (self.agent, self.parent_request)
        return Context, (*known, None, self.extra, *agents)  # a scope and a block belong to this process


UNBOUND: Final = Context()
CURRENT: Final[ContextVar[Context]] = ContextVar("sglang_instrument", default=UNBOUND)

# Held while open blocks are counted: several threads and a signal handler may open and close them.
_counting = RLock()


# The size of a context variable's token, with the garbage collector's header.
_TOKEN_BYTES: Final = Token.__basicsize__ + 2 * tuple.__itemsize__ - sys.getsizeof(b"")


def put(variable: ContextVar[Any], value: Any) -> None:
    """Set a context variable, or raise MemoryError: without memory for a token, CPython itself may crash."""
    bytes(_TOKEN_BYTES)  # freed at once, so that the token fits
    variable.set(value)


class Bound(Struct, eq=False, weakref=True):
    """A context that was set.

    The context itself refers to the previous one, and no `ContextVar` token is kept: a token refers to all
    context variables of the program, which may refer back to the coroutine that holds this object.
    """

    context: Context

    def pop(self, in_generator: bool = False) -> None:
        """Unset the context, and count its block as ended, with the blocks inside that stayed bound.

        It may be called again: an exception of the program may interrupt it anywhere. `in_generator` says
        that the block lies in a generator: blocks inside may be its consumer's, and go on.
        """
        context, current = self.context, CURRENT.get()
        try:
            if current is context and not in_generator and not context.ended:
                put(CURRENT, context.outer or UNBOUND)
            elif not context.ended and context.outer is not None:
                _unset(context, current, in_generator)
        except MemoryError:
            end_block(context)
            raise
        end_block(context)


def _unset(context: Context, current: Context, in_generator: bool) -> None:
    is_here = encloses(context, current)
    if not is_here or (in_generator and context.bound_by_task is not _running_task(context)):
        context.left = True  # the task that bound it unsets it when it binds or records again
    if current is not context and in_generator:
        _take_out(context, current)
    elif is_here:
        end_blocks_within(context, current)
        put(CURRENT, context.outer or UNBOUND)


def _take_out(context: Context, current: Context) -> None:
    """Take a context out from those that enclose the current one."""
    while current.outer is not None and current.outer is not context:
        current = current.outer
    if current.outer is context:
        current.outer = context.outer


def skip_left(context: Context) -> Context:
    """Unset the contexts that this task has bound and other tasks have left; return the current one."""
    current: Context | None = context
    while current is not None and current.left and current.bound_by_task is _running_task(context):
        current = current.outer
    if current is not None and current is not context and CURRENT.get() is context:
        put(CURRENT, current)
    return current or UNBOUND


def _running_task(inherited: Context) -> Task:
    return tasks.current(inherited.bound_by_task) or tasks.thread_task(get_ident())


def encloses(context: Context, current: Context | None) -> bool:
    """Return whether `context` is the current one, or encloses it; if not, it was bound in another task."""
    while current is not None and current is not context:
        current = current.outer
    return current is not None


def end_blocks_within(context: Context, current: Context) -> None:
    """End the blocks inside a context that did not end; `current` is the innermost one."""
    while current is not context and current.outer is not None:
        if not current.ended:
            end_block(current)
        current = current.outer


def skip_ended(context: Context) -> None:
    """Drop ended contexts that enclose a context: else tasks that spawn one another make an endless chain."""
    outer = context.outer
    while outer is not None and outer.ended:
        context.outer = outer = outer.outer


def push(changes: Mapping[str, Any], root: bool = False) -> Bound:
    """Bind `changes`, the ids that `bind()` takes, on top of the current context.

    Args:
        changes: Values by name.
        root: Whether to ignore the current context, and start from an empty one.
    """
    outer = _drop_interrupted(CURRENT.get())
    outer = skip_left(outer) if outer.left else outer
    before = UNBOUND if root else outer
    context = derive(before, changes)
    skip_ended(outer)
    context.outer = outer
    context.bound_by_task = tasks.current(before.bound_by_task) or tasks.thread_task(get_ident())
    bound = Bound(context)
    context.block = ref(bound)
    try:
        put(CURRENT, context)
        scope = context.scope
        if changes.get("step") is not None and scope is not None:
            open_block(context, scope)
        elif scope is not before.scope and scope is not None and before.scope is not None:
            open_within(context, scope, before.scope)
        return bound
    except BaseException:
        bound.pop()
        raise


def _drop_interrupted(context: Context) -> Context:
    """Return the innermost context whose block is open; end blocks whose end an exception has interrupted.

    Such a block has not ended, but its `Bound` is gone. The exception came before the first line of the
    function that would have ended the block. A finalizer is no way out: Python discards exceptions in one.
    """
    while context.block is not None and not context.ended and context.block() is None:
        end_block(context)
        context = context.outer or UNBOUND
    return context


def derive(before: Context, changes: Mapping[str, Any]) -> Context:
    """Return `before` with `changes`; a change to None keeps the bound value."""
    request_id, turn = changes.get("request_id"), changes.get("turn")
    request_id = before.request_id if request_id is None else identifier(request_id)
    turn = before.turn if turn is None else integer(turn)
    extra: dict[str, Any] | None = None if request_id is None else {"request_id": request_id}
    if turn is not None:
        extra = {"turn": turn} if extra is None else {"request_id": request_id, "turn": turn}
    place = _place if _IDS.issuperset(changes) else _new_place
    step, worker, role, validate, scope = place(before, changes)
    agent, parent_request = before.agent, before.parent_request
    if "agent" in changes or "parent_request" in changes:
        agent, parent_request = new_agent(before, changes, request_id)
    if agent is not None or parent_request is not None:
        extra = with_agent(extra, request_id, agent, parent_request)
    return Context(worker, step, validate, request_id, turn, role, scope, extra, agent, parent_request)


_IDS: Final = frozenset({"request_id", "turn", "agent", "parent_request"})
_Place = tuple[int | None, int | None, str | None, bool, Scope | None]


def _place(context: Context, changes: Mapping[str, Any]) -> _Place:
    return context.step, context.worker, context.role, context.validate, context.scope


def _new_place(before: Context, changes: Mapping[str, Any]) -> _Place:
    step, worker, role, validate, scope = _place(before, changes)
    if changes.get("step") is not None:
        step = integer(changes["step"])
    if changes.get("worker") is not None:
        worker = integer(changes["worker"])
    if changes.get("role") is not None:
        role = word(changes["role"])
    if changes.get("validate") is not None:
        validate = flag(changes["validate"], validate)
    if (step, worker, role, validate) != _place(before, changes)[:4]:
        scope = scope_for(role, worker, step, validate)
    return step, worker, role, validate, scope


_ended: Callable[[], object] | None = None  # the writer sets it


def on_scope_closed(ended: Callable[[], object] | None) -> None:
    """Call `ended()` whenever the last block of a step has ended; None while nothing is installed."""
    global _ended
    _ended = ended


def open_block(context: Context, scope: Scope) -> None:
    """Count one more block of the step as open."""
    with _counting:
        # In one statement: Python handles signals between statements.
        scope.open, context.opened, scope.ended = scope.open + 1, True, False
        is_first = scope.open == 1
    if is_first:
        _tell_began(scope)


def open_within(context: Context, scope: Scope, outer: Scope) -> None:
    """Count a block that binds another worker inside a step, if one is bound."""
    if scope.step is None or outer.step is None or not outer.bound:
        return
    root = outer if outer.within is None else outer.within
    with _counting:
        scope.within = None if scope is root else root
        scope.open, context.opened, scope.ended = scope.open + 1, True, False


def end_block(context: Context) -> None:
    """Note that a block has ended; the last open block of a step ends the step."""
    scope, is_last = context.scope, False
    if scope is not None and context.opened:
        with _counting:
            if context.opened:
                is_last = scope.open <= 1 and (scope.within is None or scope.within.open <= 0)
                scope.open, context.opened, scope.ended = scope.open - 1, False, is_last
            is_last = scope.ended
    context.ended = True
    if is_last and scope is not None:
        _tell_all_ended(scope)


def _tell_all_ended(scope: Scope) -> None:
    """Tell that a step has ended, and with it the steps that were bound for other workers inside of it."""
    with _counting:
        inner = [each for each in scopes() if each.within is scope and each.open <= 0]
        for each in inner:
            each.ended, each.within = True, None
        if scope.within is not None:
            scope.within = None
    for each in (scope, *inner):
        _tell_ended(each)


def count_task(scope: Scope, change: int) -> None:
    """Count a task that another process has sent as a block of its step: 1 at its begin, -1 at its end.

    Such tasks may be many and short, so this tells no one: the encoder's next tick writes `step_closed`.
    """
    with _counting:
        scope.open += change
        scope.ended = scope.open <= 0


def _tell_ended(scope: Scope) -> None:
    ended = _ended  # read once: another thread may uninstall meanwhile
    try:
        tell_left(scope)
        if ended is None:
            forget_scope(scope)  # nothing is installed, so no writer will use it
        else:
            ended()
    except BaseException as error:
        log_swallowed("the end of a step", error)


def count_dropped(scope: Scope, records: int) -> None:
    """Count lost records of the step; the encoder's and the disk's thread both call this."""
    with _counting:
        scope.dropped += records


def take_ended(scope: Scope) -> bool:
    """Return whether the step has ended since the last call, and is not open again."""
    with _counting:
        ended = scope.ended and scope.open <= 0
        scope.ended = scope.ended and not ended
    return ended


def forget_all() -> None:
    """Start anew, as after a fork: no scope, no block, tasks numbered from zero."""
    global _counting
    _counting = RLock()  # a thread that does not exist in this child may hold the parent's lock
    forget_scopes()
    tasks.forget_tasks()


native.use_compiled(
    globals(), "Context", "UNBOUND", "CURRENT", "Bound", "push", "derive", "take_ended", "skip_left"
)
