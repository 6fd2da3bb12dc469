"""Keep the steps that this process works on: one scope for each step of each worker; tell of their ends."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from sglang_instrument.recording.measure.identity import ENGINE_ROLES, process_role, process_worker
from sglang_instrument.recording.safety.notices import log_swallowed


class Scope(Struct, eq=False):
    """One step of one worker in this process; its records go to one file.

    An engine process cannot know the step: it has one scope, whose step is None.

    `open` counts the blocks that bound this step and have not ended; the step is complete when it falls to
    zero, and `ended` is True from then until `step_closed` is written. `bound` is False for records outside
    of any step: they go to the file of step 0, which may also be a real step. `within` is the scope in whose
    step this one was bound, as in `with step(1): with bind(worker=2)`; it is complete with that one.
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
    within: "Scope | None" = None


#: Roles that may know the step; where they do not, readers place their records by time.
_SOMETIMES_STEPLESS: Final = frozenset({"reward", "learner", "receiver", "rollouter"})

_scopes: dict[tuple[str, int, int | None, bool, bool], Scope] = {}


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
    _scopes.pop(_key_of(scope), None)


def keep_scope(scope: Scope) -> None:
    """Use this scope for its ids from now on."""
    _scopes[_key_of(scope)] = scope


def _key_of(scope: Scope) -> tuple[str, int, int | None, bool, bool]:
    return scope.role, scope.worker, scope.step, scope.validate, scope.bound


def forget_scopes() -> None:
    """Forget all scopes, as after a fork."""
    _scopes.clear()


_look: Callable[[], object] | None = None  # the patcher sets it
_began: Callable[[Scope], object] | None = None  # the profilers set it while there are steps to profile
_left: Callable[[Scope], object] | None = None


def before_steps(look: Callable[[], object] | None) -> None:
    """Call `look()` before a step is told to have begun; None while nothing is installed."""
    global _look
    _look = look


def on_steps(began: Callable[[Scope], object] | None, left: Callable[[Scope], object] | None) -> None:
    """Call `began(scope)` when the first block of a step is entered, `left(scope)` when its last one ends."""
    global _began, _left
    _began, _left = began, left


def tell_began(scope: Scope) -> None:
    """Tell that the first block of a step was entered."""
    look, began = _look, _began  # read once: another thread may uninstall meanwhile
    try:
        if look is not None:
            look()
        if began is not None:
            began(scope)
    except BaseException as error:
        log_swallowed("the beginning of a step", error)


def tell_left(scope: Scope) -> None:
    """Tell that the last block of a step has ended."""
    left = _left
    try:
        if left is not None:
            left(scope)
    except BaseException as error:
        log_swallowed("the end of a step", error)
