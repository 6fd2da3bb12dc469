"""Know, at any moment, for which step, worker, request and turn the program is working."""

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
from sglang_instrument.recording.safety.notices import swallowed

Identifier = str | int


class Scope(Struct, eq=False):
    """One step of one worker as this process sees it: the file that its records go to.

    A process of the engine cannot know the step: it has one scope, whose step is None.

    `open` counts the blocks that bound this step and have not ended; the step is whole when it falls to
    zero, which `ended` remembers until `step_closed` is written. `bound` is False for records outside of
    any step: they lie in the file of step 0, which may be a real step, too.
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
    """What is bound, None where nothing was said. All records made under it share it: derive, don't set.

    `extra` is {"request_id": ..., "turn": ...}; `part` what the encoder keeps of it (see `lines`). `bound_in`
    is the task that bound it: other tasks that have it were made by that one. `around` is what was bound
    before it, `ended` says that its block has ended: what was begun under it may still have it.
    """

    worker: int | None = None
    step: int | None = None
    validate: bool = False
    request_id: Identifier | None = None
    turn: int | None = None
    role: str | None = None
    scope: Scope | None = None
    extra: dict[str, Any] | None = None
    bound_in: Task | None = None
    part: Any = None
    around: "Context | None" = None
    ended: bool = False


_compiled = native.take_over(globals(), "context", "Context")

UNBOUND: Final = Context()
CURRENT: Final[ContextVar[Context]] = ContextVar("sglang_instrument", default=UNBOUND)

#: Roles that may know the step, and are placed by time where they do not.
_SOMETIMES_STEPLESS: Final = frozenset({"reward", "learner", "receiver"})

_scopes: dict[tuple[str, int, int | None, bool, bool], Scope] = {}
# Of the open blocks of a step, which several threads may open and close, and a signal handler meanwhile.
_counting = RLock()


def scope_for(role: str | None, worker: int | None, step: int | None, validate: bool) -> Scope:
    """Return the one scope of these ids; what was never bound gets its default."""
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
    """Return the step that this process works on: the last bound that has not ended, else its last one."""
    newest_first = scopes()[::-1]
    for scope in newest_first:
        if scope.open > 0:
            return scope
    # An asynchronous trainer's requests run on when the call that began them is over.
    for scope in newest_first:
        if scope.role == process_role():
            return scope
    return scope_for(None, None, None, False)


def forget_scope(scope: Scope) -> None:
    """Let go of a scope whose file was closed; later records of that step get a new one."""
    _scopes.pop((scope.role, scope.worker, scope.step, scope.validate, scope.bound), None)


# Of a token of a context variable, with what the collector puts before it.
_TOKEN_BYTES: Final = Token.__basicsize__ + 2 * tuple.__itemsize__ - sys.getsizeof(b"")


def put(variable: ContextVar[Any], value: Any) -> None:
    """Set a context variable, or raise MemoryError: without memory for a token CPython itself may crash."""
    bytes(_TOKEN_BYTES)  # given back at once, for the token
    variable.set(value)


class Bound(Struct, gc=False, eq=False):
    """A context that was set.

    What was set before it stands in the context itself, and no token of the `ContextVar` anywhere: a token
    leads to all variables of the program, which may lead back to the coroutine that holds this.
    """

    context: Context
    opened: Scope | None

    def pop(self) -> None:
        """Unset the context; the step of a block that bound it ends here."""
        opened, self.opened = self.opened, None
        context = self.context
        is_first, context.ended = not context.ended, True
        try:
            if is_first and context.around is not None and is_around(context, CURRENT.get()):
                put(CURRENT, context.around)
        finally:
            if opened is not None:
                close_scope(opened)


def is_around(context: Context, current: Context | None) -> bool:
    """Whether what is bound now was bound by a block of `context`, or within it.

    If not, that block was entered in another task or context: there is nothing to undo in this one.
    """
    while current is not None and current is not context:
        current = current.around
    return current is not None


def skip_ended(context: Context) -> None:
    """Let what is around a context be open still: tasks that begin one another make no chain without end."""
    around = context.around
    while around is not None and around.ended:
        context.around = around = around.around


def push(changes: Mapping[str, Any], root: bool = False) -> Bound:
    """Bind `changes` (step, worker, request_id, turn, validate, role) on top of what is bound.

    Args:
        changes: By name.
        root: Whether to begin from nothing.
    """
    around = CURRENT.get()
    before = UNBOUND if root else around
    context = derive(before, changes)
    skip_ended(around)
    context.around = around
    context.bound_in = tasks.current(before.bound_in) or tasks.thread_task(get_ident())
    bound = Bound(context, None)
    put(CURRENT, context)
    if changes.get("step") is not None and context.scope is not None:
        open_scope(context.scope)
        bound.opened = context.scope
    return bound


def derive(before: Context, changes: Mapping[str, Any]) -> Context:
    """Return `before` with `changes`; a change to None leaves what was bound."""
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


_ended: Callable[[], object] | None = None  # the writer's, while there is one


def on_scope_closed(ended: Callable[[], object] | None) -> None:
    """Call `ended()` whenever the last block of a step has ended; None while nothing is installed."""
    global _ended
    _ended = ended


_step_began: Callable[[Scope], object] | None = None  # the profilers', while there are steps to profile
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
    began = _step_began  # another thread may uninstall between two looks at it
    try:
        if is_first and began is not None:
            began(scope)
    except BaseException as error:
        swallowed("the beginning of a step", error)


def close_scope(scope: Scope) -> None:
    """Count one block of the step as ended; the last one makes the step whole."""
    with _counting:
        scope.open -= 1
        scope.ended = scope.open <= 0
    try:
        if scope.ended:
            _tell_ended(scope)
    except BaseException as error:
        swallowed("the end of a step", error)


def _tell_ended(scope: Scope) -> None:
    left, ended = _step_left, _ended
    if left is not None:
        left(scope)
    if ended is None:
        forget_scope(scope)  # nothing is installed: nobody will ask for it
    else:
        ended()


def count_dropped(scope: Scope, records: int) -> None:
    """Count records of the step that are lost, as the encoder and the disk thread both see them."""
    with _counting:
        scope.dropped += records


def take_ended(scope: Scope) -> bool:
    """Return whether the step has ended since it was asked last, and is not open again."""
    with _counting:
        ended = scope.ended and scope.open <= 0
        scope.ended = scope.ended and not ended
    return ended


def _identifier(value: Any) -> Identifier:
    """Return a request id as a short text or number, for it stands in every line of its request."""
    if type(value) is str and len(value) <= _LONGEST_ID:
        return value
    identifier = reduce_value(value)
    return identifier if type(identifier) is int else str(identifier)[:_LONGEST_ID]


def _flag(value: Any, otherwise: bool) -> bool:
    """Return whether a value is true, of which only numbers and texts can be asked; else `otherwise`."""
    reduced = reduce_value(value)
    known = type(reduced) in (bool, int, float) or issubclass(type(value), str)
    return bool(reduced) if known else otherwise


def forget_all() -> None:
    """Start anew, as after a fork: no scope, no block, tasks numbered from zero."""
    global _counting
    _counting = RLock()  # the parent's may be held by a thread that does not exist here
    _scopes.clear()
    tasks.forget_tasks()


native.take_over(globals(), "context", "Bound", "derive", "push")
if _compiled is not None:
    _compiled.connect(
        current=CURRENT,
        unbound=UNBOUND,
        identifier=_identifier,
        integer=integer,
        place=_new_place,
        opening=open_scope,
        closing=close_scope,
        longest_id=_LONGEST_ID,
    )
