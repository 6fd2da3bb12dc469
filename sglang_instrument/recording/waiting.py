"""Count for how long a coroutine waits: the rest of its time it held the event loop itself.

Rewritten and decorated coroutines await through `waited`. What it returns is a `map` over the steps of the
awaited thing, with one callback at each resumption and one at each suspension: C code alone stands between
the two coroutines, so that tracebacks, cancellation and the order of everything stay what they were.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from time import perf_counter_ns
from types import CodeType, CoroutineType
from typing import Any, Final, TypeVar

from sglang_instrument.recording import spans, tasks
from sglang_instrument.recording.tasks import Count

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK: Final = "sglang_instrument counts the awaits of this code"
_MARKED: Final = (_MARK,)


class Waits(map):  # type: ignore[type-arg]
    """The steps of what is awaited, each followed by the callback that sees the suspension."""

    __slots__ = ("awaitable", "count")
    awaitable: Any
    count: Count
    __await__ = map.__iter__  # returns itself, in C

    @property
    def steps(self) -> Any:
        """The iterator under the map."""
        return self.__reduce__()[1][2]

    @property
    def throw(self) -> Callable[..., Any]:
        """The awaited iterator's own `throw`, which a cancellation calls."""
        unsuspend(self.count)
        throw: Callable[..., Any] = self.steps.throw
        return throw

    @property
    def send(self) -> Callable[[Any], Any]:
        """The awaited iterator's own `send`; asyncio sends nothing, other loops may."""
        send: Callable[[Any], Any] = self.steps.send
        return send

    @property
    def close(self) -> Callable[[], None]:
        """The awaited iterator's own `close`, which the end of a coroutine that nobody finishes calls."""
        unsuspend(self.count)
        close: Callable[[], None] = self.steps.close
        return close


class WaitingIterator:
    """An asynchronous iterator of `async for` whose steps are counted."""

    __slots__ = ("_iterator",)

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __aiter__(self) -> "WaitingIterator":
        return self

    def __anext__(self) -> Any:
        return waited(self._iterator.__anext__())


class WaitingContext:
    """An asynchronous context manager of `async with` whose entry and exit are counted."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    def __aenter__(self) -> Any:
        return waited(self._context.__aenter__())

    def __aexit__(self, *exception: Any) -> Any:
        return waited(self._context.__aexit__(*exception))


def marked(code: CodeType) -> CodeType:
    """Return the code of a coroutine as one that counts its own awaits, so that nobody need count it."""
    return code.replace(co_consts=(*code.co_consts, _MARK))


def counts_awaits(function: Function) -> Function:
    """Let a coroutine function, whose code is its own, say that it counts its awaits; return it."""
    function.__code__ = marked(function.__code__)
    return function


def waited(awaitable: Any) -> Any:
    """Return what to await instead of `awaitable`, so that the running task's waiting is counted."""
    if type(awaitable) is CoroutineType and (
        awaitable.cr_code.co_consts[-1:] == _MARKED or awaitable.cr_await is not None
    ):
        return awaitable
    task = tasks.current(None)
    if task is None or task.count is None:
        return awaitable  # no span is open in this task that would want to know
    if not hasattr(type(awaitable), "__await__"):  # an old-style coroutine, or nothing: let `await` say so
        return awaitable
    return waits(task.count, awaitable)


def waits(count: Count, awaitable: Any) -> Waits:
    """Return the steps of `awaitable` as ones that are counted; the first one resumes nothing."""
    suspended, resumed = count.callbacks or count_callbacks(count)
    counted = Waits(suspended, chain((True,), resumed), awaitable.__await__())
    counted.count, counted.awaitable = count, awaitable
    return counted


def unsuspend(count: Count) -> None:
    """Count a suspension that an exception ends; whether another follows shows when that one ends."""
    if count.suspended_at > 0:
        now = perf_counter_ns()
        count.waited += now - count.suspended_at
        count.suspended_at = -now


def waited_iterator(iterable: Any) -> Any:
    """Return what to iterate over in `async for` instead of `iterable`."""
    iterate = getattr(type(iterable), "__aiter__", None)
    if iterate is None:
        return iterable
    iterator = iterable.__aiter__()
    return WaitingIterator(iterator) if hasattr(type(iterator), "__anext__") else iterable


def waited_context(context: Any) -> Any:
    """Return what to enter in `async with` instead of `context`."""
    kind = type(context)
    return WaitingContext(context) if hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__") else context


def counting(span: Any) -> Any:
    """Mark a span whose own block counts its awaits, before it is entered; return it."""
    if isinstance(span, spans.Span):
        span.waited = 0
    return span


def count_callbacks(count: Count) -> tuple[Callable[[bool, Any], Any], Iterator[bool]]:
    """Return what to call when the task was suspended, and an iterator that is advanced when it goes on.

    Counted coroutines may lie in one another: only the innermost suspension and the outermost resumption of
    an interval count, which are the first to come.
    """

    def suspended(resumed: bool, step: Any) -> Any:
        if count.suspended_at <= 0:
            count.suspended_at = perf_counter_ns()
        return step

    def resumed() -> bool:
        if count.suspended_at:
            count.waited += perf_counter_ns() - abs(count.suspended_at)
            count.suspended_at = 0
        return True

    callbacks = count.callbacks = suspended, iter(resumed, None)
    return callbacks
