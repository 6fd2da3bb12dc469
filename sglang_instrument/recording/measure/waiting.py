"""Count how long a coroutine is suspended; the rest of its time it occupies the event loop itself.

Rewritten and decorated coroutines await through `waited`. It returns a `map` over the steps of the awaitable,
with one callback at each resumption and one at each suspension. Only C code runs between the two coroutines,
so tracebacks, cancellation and execution order stay the same.

`_waiting.pyx` is not built on `map`: its `Waits` is an iterator of its own, whose `throw` also sees the
suspension that follows an exception. A `map` sees only calls of `throw` itself: so `Task.unsuspend` notes the
time in a negative `suspended_at`, and the next resumption decides whether the task was suspended.
"""

from collections.abc import Callable
from itertools import chain
from types import CoroutineType
from typing import Any, Final, TypeVar

from msgspec import Struct

from sglang_instrument import native
from sglang_instrument.recording.measure import tasks
from sglang_instrument.recording.measure.tasks import Task
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.recording.safety.static_lookup import class_entry
from sglang_instrument.recording.safety.static_lookup import special_method as special_method

Function = TypeVar("Function", bound=Callable[..., Any])

#: The last constant of a coroutine that counts its own awaits: its callers then do not count.
MARK: Final = "sglang_instrument counts the awaits of this code"
_FIRST: Final = (True,)
_constant: Final = tuple.__getitem__  # rewritten code has constants of a class of their own


class Waits(map):  # type: ignore[type-arg]
    """The steps of an awaitable: `map(task.suspended, resumptions, steps)`.

    For each step, `map` first takes the next resumption, which calls `task.resumed`, then the next step, and
    calls `task.suspended` with both, which returns the step. A generator would do the same in Python: its
    frame would be in the program's tracebacks, and the contract with training forbids that.
    """

    __slots__ = ("steps", "task")
    __await__ = map.__iter__  # returns itself, in C
    task: Task
    steps: Any  # the iterator under the map

    @property
    def throw(self) -> Callable[..., Any]:
        """The awaited iterator's own `throw`, which a cancellation calls."""
        self.task.unsuspend()
        throw: Callable[..., Any] = self.steps.throw
        return throw

    @property
    def send(self) -> Callable[[Any], Any]:
        """The awaited iterator's own `send`; asyncio sends nothing, other loops may."""
        send: Callable[[Any], Any] = self.steps.send
        return send

    @property
    def close(self) -> Callable[[], None]:
        """The awaited iterator's own `close`, which Python calls for a coroutine that is never finished."""
        self.task.unsuspend()
        close: Callable[[], None] = self.steps.close
        return close


class WaitingIterator:
    """An asynchronous iterator of `async for` whose waiting is counted."""

    __slots__ = ("iterator",)
    iterator: Any

    def __aiter__(self) -> Any:
        is_iterator = class_entry(type(self.iterator), "__anext__") is not None
        return self if is_iterator else self.iterator  # which `async for` refuses

    def __anext__(self) -> Any:
        return waited(anext(self.iterator))


class WaitingContext(Struct, eq=False):
    """An asynchronous context manager of `async with` whose waiting at entry and exit is counted."""

    enter: Callable[..., Any]
    leave: Callable[..., Any]

    def __aenter__(self) -> Any:
        return waited(self.enter())

    def __aexit__(self, *exception: Any) -> Any:
        return waited(self.leave(*exception))


def counts_awaits(function: Function) -> Function:
    """Mark a coroutine function, in place, as one that counts its own awaits; return it."""
    code = function.__code__
    function.__code__ = code.replace(co_consts=(*code.co_consts, MARK))
    return function


def waited(awaitable: Any) -> Any:
    """Return what to await instead of `awaitable`, so that the running task's waiting is counted."""
    kind = type(awaitable)
    try:
        if kind is CoroutineType:
            constants = awaitable.cr_code.co_consts
            if (constants and _constant(constants, -1) == MARK) or awaitable.cr_await is not None:
                return awaitable
        task = tasks.counted()
        if task is None:
            return awaitable  # no open span of this task counts waiting
        if class_entry(kind, "__await__") is None:  # an old-style coroutine, or none: `await` itself raises
            return awaitable
    except BaseException:  # its metaclass raises, or memory has run out
        reraise_if_programs_own()
        return awaitable
    return waits(task, awaitable)


def waits(task: Task, awaitable: Any) -> Any:
    """Return the steps of `awaitable`, counted; the first step is no resumption."""
    try:
        steps = special_method(awaitable, "__await__")()
        resumptions = chain(_FIRST, iter(task.resumed, None))  # the first step resumes nothing
        made = Waits(task.suspended, resumptions, steps)
        made.task, made.steps = task, steps
        return made
    except MemoryError:  # the await is not counted
        return awaitable


def waited_iterator(iterable: Any) -> Any:
    """Return what to iterate over in `async for` instead of `iterable`."""
    try:
        begin = special_method(iterable, "__aiter__")
        if begin is None:
            return iterable
        waiting = WaitingIterator()
    except BaseException:  # as above
        reraise_if_programs_own()
        return iterable
    waiting.iterator = begin()
    return waiting


def waited_context(context: Any) -> Any:
    """Return what to enter in `async with` instead of `context`."""
    try:
        enter, leave = special_method(context, "__aenter__"), special_method(context, "__aexit__")
        return context if enter is None or leave is None else WaitingContext(enter, leave)
    except BaseException:  # as above
        reraise_if_programs_own()
        return context


native.use_compiled(globals(), "Waits", "waited", "waits", "special_method")
