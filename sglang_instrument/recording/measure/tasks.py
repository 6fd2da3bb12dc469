"""Give asyncio tasks and threads small numbers, at the cost of two lookups per span.

Our `Task` is an attribute of the asyncio task. A context variable or a weak dictionary would add three more
objects per task for the garbage collector to visit; with ten thousand requests in flight, each of them costs
as much as all their spans. `_tasks.pyx` adds no object at all: it finds the `Task` by the address of the
asyncio task (`_owners.pxi`, which has no pure counterpart, because Python cannot do that). It also calls the
hook of `know_asyncio` at most every 10 ms for new tasks of one loop, which Python's part does for each task.
Both serve one bound: a loop of 10,000 coroutines with spans takes at most 1.2 times as long as without. It
takes 1.1 times with both, and comes close to the bound without either.
"""

import itertools
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final
from weakref import ref

from msgspec import Struct

from sglang_instrument import native
from sglang_instrument.recording.safety.guard import reraise_if_programs_own

_THREADS_LIMIT: Final = 10_000  # remembered threads; a program may start a thread for every request


class Task(Struct, gc=False, eq=False):
    """An asyncio task or a thread, with a number that is unique in this process, and its suspended time.

    The garbage collector does not visit it, so nothing in it may refer back to it: `loop` is a weak
    reference, because a loop refers to its tasks; `counted_by` is the id of the outermost span that counts
    the task's waiting. `first_logged_by` is the encoder of the task's first record, which has `spawned_by`.

    `waited` is in nanoseconds. `suspended_at` is the time of the last suspension, 0 while the task runs, and
    negative after an exception was thrown into the task: then the task runs, unless it has caught the
    exception and awaits something else; no callback sees that suspension begin.
    """

    number: int
    spawned_by: int | None = None
    thread: int = 0
    loop: Any = None
    first_logged_by: Any = None
    counted_by: int = 0
    waited: int = 0
    suspended_at: int = 0

    def suspended(self, resumed: bool, step: Any) -> Any:
        """Note that the task is suspended; return the awaited step unchanged."""
        if self.suspended_at <= 0:
            self.suspended_at = perf_counter_ns()
        return step

    def resumed(self) -> bool:
        """Note that the task runs again.

        Counted coroutines may be nested: only the innermost suspension and the outermost resumption of an
        interval count, which are the first ones to be called.
        """
        if self.suspended_at:
            self.waited += perf_counter_ns() - abs(self.suspended_at)
            self.suspended_at = 0
        return True

    def unsuspend(self) -> None:
        """Count a suspension that an exception ends; another one may follow, and shows only at its end."""
        if self.suspended_at:  # negative: an exception was thrown before; suspended, unseen, since then
            now = perf_counter_ns()
            self.waited += now - abs(self.suspended_at)
            self.suspended_at = -now


# asyncio's own dictionary: the running task of each running loop. It is empty while no coroutine runs: the
# cheapest test for synchronous code. Until `know_asyncio()` it is our own empty dictionary.
running: Any = {}

_numbers = itertools.count()
_threads: dict[int, Task] = {}


def no_loop() -> None:
    """Return None: `know_asyncio` was not called yet."""


_running_loop: Callable[[], Any] = no_loop  # asyncio's


class AskAsyncio:
    """Replaces the dictionary of running tasks where asyncio hides it."""

    __slots__ = ("_running_loop",)

    def __init__(self, running_loop: Callable[[], Any]) -> None:
        self._running_loop = running_loop

    def __bool__(self) -> bool:
        return self._running_loop() is not None

    def get(self, loop: Any) -> Any:
        """Return the task that runs in `loop`."""
        import asyncio

        return None if loop is None else asyncio.current_task(loop)


def unseen(loop: Any, thread: int) -> None:
    """Do nothing about a new task."""


_seen: Callable[[Any, int], object] = unseen


def know_asyncio(seen: Callable[[Any, int], object]) -> Any:
    """Distinguish asyncio tasks from now on; call `seen(loop, thread)` for each new one that has a span.

    Returns:
        `running`: asyncio's dictionary of running tasks by loop.
    """
    global running, _running_loop, _seen
    import asyncio.tasks  # not at the top: it takes longer than the rest of `import sglang_instrument`

    running = getattr(asyncio.tasks, "_current_tasks", None)
    _running_loop, _seen = asyncio._get_running_loop, seen
    running = AskAsyncio(_running_loop) if running is None else running
    return running


def ignore_asyncio() -> Any:
    """Stop reading asyncio tasks; return `running`, now an empty dictionary."""
    global running, _seen
    running, _seen = {}, unseen
    return running


def current(inherited: Task | None) -> Task | None:
    """Return our Task of the asyncio task that runs now on this thread; None outside of any.

    Args:
        inherited: The task that spawned it, if its context names one.
    """
    return look_up(inherited) if running else None


def counted() -> Task | None:
    """Return the task that runs now if a span counts its waiting, else None."""
    task = current(None)
    return task if task is not None and task.counted_by else None


def look_up(inherited: Task | None) -> Task | None:
    """Return the task that runs now on this thread, and number a new one; None outside of any."""
    loop = _running_loop()
    owner = running.get(loop) if loop else None
    if owner is None:
        return None
    task = known(owner)  # not by catching AttributeError, which takes longer than all else here
    if task is None:
        return _meet(owner, loop, inherited)
    task.thread = get_ident()  # its loop may have been moved
    return task


def known(owner: Any) -> Task | None:
    """Return our Task of an asyncio task; None if no span was seen in it."""
    try:
        task: Task | None = getattr(owner, "_sglang_instrument", None)
    except BaseException:  # a third-party task, which may raise anything
        reraise_if_programs_own()
        return None
    return task


def thread_task(ident: int) -> Task:
    """Return the Task of a thread: of its code outside of asyncio."""
    task = _threads.get(ident)
    if task is None:
        if len(_threads) >= _THREADS_LIMIT:
            _threads.clear()
        task = _threads.setdefault(ident, Task(next(_numbers)))
    return task


def waited_so_far(task: Task) -> int:
    """Return how long a task was suspended; called from a span of it, so the task runs now."""
    if task.suspended_at < 0:  # an exception was thrown into it, and it still runs
        task.suspended_at = -perf_counter_ns()
    return task.waited


def leave_task(leaving: Any) -> None:
    """Set the span's waiting time: the task's suspended time now, minus that at the span's start."""
    task, waited = leaving.task, leaving.waited
    if task is None or waited is None:
        leaving.waited = None
        return
    leaving.waited = (task.waited if task.suspended_at >= 0 else waited_so_far(task)) - waited
    if task.counted_by == id(leaving):
        task.counted_by = 0


def forget_gone() -> None:
    """Free the entries of asyncio tasks that are gone; the pure Python keeps none."""


def forget_tasks() -> None:
    """Start anew, as after a fork: forget all threads, number tasks from zero."""
    global _numbers
    _threads.clear()
    _numbers = itertools.count()


def _meet(owner: Any, loop: Any, inherited: Task | None) -> Task | None:
    """Number an asyncio task that is seen for the first time."""
    thread = get_ident()
    _seen(loop, thread)
    try:
        met = Task(next(_numbers), (inherited or thread_task(thread)).number, thread, ref(loop))
        owner._sglang_instrument = met
    except BaseException:  # a third-party task or loop that takes no attribute or weak reference
        reraise_if_programs_own()
        return None
    return met


native.use_compiled(
    globals(),
    *("Task", "know_asyncio", "ignore_asyncio", "current", "counted", "look_up", "known", "thread_task"),
    *("forget_gone", "forget_tasks", "_threads"),
)
