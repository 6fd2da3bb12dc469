"""Keep the bound ids: the step, worker, request and turn that the program works on now."""

import sys
from _thread import RLock, get_ident
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from typing import Any, Final

from msgspec import Struct

from sglang_instrument import native
from sglang_instrument.recording.measure import tasks
from sglang_instrument.recording.measure.identity import ENGINE_ROLES, process_role, process_worker, word
from sglang_instrument.recording.measure.tasks import Task
from sglang_instrument.recording.measure.values import integer, reduce_value
from sglang_instrument.recording.safety.notices import log_swallowed

Identifier = str | int


class Scope(Struct, eq=False):
    """One step of one worker in this process; its records go to one file.

    An engine process cannot know the step: it has one scope, whose step is None.

    `open` counts the blocks that bound this step and have not ended; the step is complete when it falls to
    zero, and `ended` is True from then until `step_closed` is written. `bound` is False for records outside
    of any step: they go to the file of step 0, which may also be a real step.
    """

    role: str
    worker: int
    step: int | None
    validate: bool
    bound: bool = True
    open: int = 0
    ended: bool = False
    written: int = 0
    dropped: int = 0
    sampled_out: int = 0


class Context(Struct, gc=False, eq=False):
    """The bound ids; None where an id is not bound. All records made under it share it: derive, don't set.

    `extra` is {"request_id": ..., "turn": ...}; `shared_json` is the encoder's cache (see `LineEncoder`).
    `bound_by_task` is the task that bound it: it has spawned the other tasks with this context. `outer` is
    the context that was bound before; `ended` says that the block has ended, though spawned tasks may keep
    the context.
    """

    worker: int | None = None
    step: int | None = None
    validate: bool = False
    request_id: Identifier | None = None
    turn: int | None = None
    role: str | None = None
    scope: Scope | None = None
    extra: dict[str, Any] | None = None
    bound_by_task: Task | None = None
    shared_json: Any = None
    outer: "Context | None" = None
    ended: bool = False


UNBOUND: Final = Context()
CURRENT: Final[ContextVar[Context]] = ContextVar("sglang_instrument", default=UNBOUND)

#: Roles that may know the step; where they do not, readers place their records by time.
_SOMETIMES_STEPLESS: Final = frozenset({"reward", "learner", "receiver", "rollouter"})

_scopes: dict[tuple[str, int, int | None, bool, bool], Scope] = {}
# Held while open blocks are counted: several threads and a signal handler may open and close them.
_counting = RLock()


def scope_for(role: str | None, worker: int | None, step: int | None, validate: bool) -> Scope:
    """Return the one scope of these ids; ids that were never bound get their default."""
    role = process_role() if role is None else role
    worker = process_worker() if worker is None else worker
    stepless = role in ENGINE_ROLES or (step is None and role in _SOMETIMES_STEPLESS)
    place = (None, False, True) if stepless else (step or 0, validate, step is not None)
    key = (role, worker, *place)
    scope = _scopes.get(key)
    if scope is None:
        scope = _scopes.setdefault(key, Scope(*key))  # setdefault: two threads get the same one
    return scope


def scopes() -> list[Scope]:
    """Return the scopes in use, oldest first."""
    return list(_scopes.values())


def current_scope() -> Scope:
    """Return the scope that this process works on: the newest open one, else the newest of its role."""
    newest_first = scopes()[::-1]
    for scope in newest_first:
        if scope.open > 0:
            return scope
    # An asynchronous trainer's requests continue after the call that began them has returned.
    for scope in newest_first:
        if scope.role == process_role():
            return scope
    return scope_for(None, None, None, False)


def forget_scope(scope: Scope) -> None:
    """Forget a scope whose file was closed; later records of that step get a new scope."""
    _scopes.pop((scope.role, scope.worker, scope.step, scope.validate, scope.bound), None)


# The size of a context variable's token, with the garbage collector's header.
_TOKEN_BYTES: Final = Token.__basicsize__ + 2 * tuple.__itemsize__ - sys.getsizeof(b"")


def put(variable: ContextVar[Any], value: Any) -> None:
    """Set a context variable, or raise MemoryError: without memory for a token, CPython itself may crash."""
    bytes(_TOKEN_BYTES)  # freed at once, so that the token fits
    variable.set(value)


class Bound(Struct, gc=False, eq=False):
    """A context that was set.

    The context itself refers to the previous one, and no `ContextVar` token is kept: a token refers to all
    context variables of the program, which may refer back to the coroutine that holds this object.
    """

    context: Context
    opened: Scope | None

    def pop(self) -> None:
        """Unset the context; if the block bound a step, count the block as ended."""
        opened, self.opened = self.opened, None
        context = self.context
        is_first, context.ended = not context.ended, True
        try:
            if is_first and context.outer is not None and encloses(context, CURRENT.get()):
                put(CURRENT, context.outer)
        finally:
            if opened is not None:
                close_scope(opened)


def encloses(context: Context, current: Context | None) -> bool:
    """Return whether `context` is the current one, or encloses it.

    If not, its block was entered in another task or context: there is nothing to undo in this one.
    """
    while current is not None and current is not context:
        current = current.outer
    return current is not None


def skip_ended(context: Context) -> None:
    """Drop ended contexts that enclose a context: else tasks that spawn one another make an endless chain."""
    outer = context.outer
    while outer is not None and outer.ended:
        context.outer = outer = outer.outer


def push(changes: Mapping[str, Any], root: bool = False) -> Bound:
    """Bind `changes` (step, worker, request_id, turn, validate, role) on top of the current context.

    Args:
        changes: Values by name.
        root: Whether to ignore the current context, and start from an empty one.
    """
    outer = CURRENT.get()
    before = UNBOUND if root else outer
    context = derive(before, changes)
    skip_ended(outer)
    context.outer = outer
    context.bound_by_task = tasks.current(before.bound_by_task) or tasks.thread_task(get_ident())
    bound = Bound(context, None)
    put(CURRENT, context)
    if changes.get("step") is not None and context.scope is not None:
        open_scope(context.scope)
        bound.opened = context.scope
    return bound


def derive(before: Context, changes: Mapping[str, Any]) -> Context:
    """Return `before` with `changes`; a change to None keeps the bound value."""
    request_id, turn = changes.get("request_id"), changes.get("turn")
    request_id = before.request_id if request_id is None else _identifier(request_id)
    turn = before.turn if turn is None else integer(turn)
    extra: dict[str, Any] | None = None if request_id is None else {"request_id": request_id}
    if turn is not None:
        extra = {"turn": turn} if extra is None else {"request_id": request_id, "turn": turn}
    place = _place if _IDS.issuperset(changes) else _new_place
    step, worker, role, validate, scope = place(before, changes)
    return Context(worker, step, validate, request_id, turn, role, scope, extra)


_LONGEST_ID: Final = 256  # characters
_IDS: Final = frozenset({"request_id", "turn"})
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
        validate = _flag(changes["validate"], validate)
    if (step, worker, role, validate) != _place(before, changes)[:4]:
        scope = scope_for(role, worker, step, validate)
    return step, worker, role, validate, scope


_ended: Callable[[], object] | None = None  # the writer sets it


def on_scope_closed(ended: Callable[[], object] | None) -> None:
    """Call `ended()` whenever the last block of a step has ended; None while nothing is installed."""
    global _ended
    _ended = ended


_step_began: Callable[[Scope], object] | None = None  # the profilers set it while there are steps to profile
_step_left: Callable[[Scope], object] | None = None


def on_steps(began: Callable[[Scope], object] | None, left: Callable[[Scope], object] | None) -> None:
    """Call `began(scope)` when the first block of a step is entered, `left(scope)` when its last one ends."""
    global _step_began, _step_left
    _step_began, _step_left = began, left


def open_scope(scope: Scope) -> None:
    """Count one more block of the step as open."""
    with _counting:
        scope.open += 1
        scope.ended = False
        is_first = scope.open == 1
    began = _step_began  # read once: another thread may uninstall meanwhile
    try:
        if is_first and began is not None:
            began(scope)
    except BaseException as error:
        log_swallowed("the beginning of a step", error)


def close_scope(scope: Scope) -> None:
    """Count one block of the step as ended; after the last one the step is complete."""
    with _counting:
        scope.open -= 1
        scope.ended = scope.open <= 0
    try:
        if scope.ended:
            _tell_ended(scope)
    except BaseException as error:
        log_swallowed("the end of a step", error)


def count_task(scope: Scope, change: int) -> None:
    """Count a task that another process has sent as a block of its step: 1 at its begin, -1 at its end.

    Such tasks may be many and short, so this tells no one: the encoder's next tick writes `step_closed`.
    """
    with _counting:
        scope.open += change
        scope.ended = scope.open <= 0


def _tell_ended(scope: Scope) -> None:
    left, ended = _step_left, _ended
    if left is not None:
        left(scope)
    if ended is None:
        forget_scope(scope)  # nothing is installed, so no writer will use it
    else:
        ended()


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


def _identifier(value: Any) -> Identifier:
    """Return a request id as a short string or a number: every line of the request repeats it."""
    if type(value) is str and len(value) <= _LONGEST_ID:
        return value
    identifier = reduce_value(value)
    return identifier if type(identifier) is int else str(identifier)[:_LONGEST_ID]


def _flag(value: Any, otherwise: bool) -> bool:
    """Return the truth value of a number or string; `otherwise` for any other value."""
    reduced = reduce_value(value)
    known = type(reduced) in (bool, int, float) or issubclass(type(value), str)
    return bool(reduced) if known else otherwise


def forget_all() -> None:
    """Start anew, as after a fork: no scope, no block, tasks numbered from zero."""
    global _counting
    _counting = RLock()  # a thread that does not exist in this child may hold the parent's lock
    _scopes.clear()
    tasks.forget_tasks()


native.use_compiled(globals(), "Context", "UNBOUND", "CURRENT", "Bound", "push", "derive")
