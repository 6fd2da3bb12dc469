"""Tell asyncio's tasks and threads apart by small numbers, at the price of two look-ups a span.

What is known of an asyncio task stands in an attribute of it; a context variable or a weak dictionary makes
three more objects a task for the garbage collector to visit, and with ten thousand requests in flight each
costs as much as all their spans. Compiled, it takes none (`_owners.pxi`).
"""

import itertools
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final
from weakref import ref

from msgspec import Struct

from sglang_instrument import native
from sglang_instrument.recording.safety.guard import let_through

_THREADS_LIMIT: Final = 10_000  # remembered; a program may start a thread for every request


class Task(Struct, gc=False, eq=False):
    """An asyncio task or a thread, by a small number of this process; and how long it was suspended.

    The collector does not look at it, so nothing in it may lead back to it: `loop` is a weak reference, for a
    loop holds its tasks; `counted_by` is the id of the outermost span that counts the task's waiting.
    `announced` is who has made the task's first record, which names who spawned it.

    `waited` is in nanoseconds. `suspended_at` is when the task last was, 0 while it runs, and negative
    after an exception was thrown into it: then it runs, unless the exception was caught and something else
    is awaited, which nobody sees begin.
    """

    number: int
    spawned_by: int | None = None
    thread: int = 0
    loop: Any = None
    announced: Any = None
    counted_by: int = 0
    waited: int = 0
    suspended_at: int = 0

    def suspended(self, resumed: bool, step: Any) -> Any:
        """See one step of what the task awaits; pass it on."""
        if self.suspended_at <= 0:
            self.suspended_at = perf_counter_ns()
        return step

    def resumed(self) -> bool:
        """See the task go on.

        Counted coroutines may lie in one another: only the innermost suspension and the outermost
        resumption of an interval count, which are the first to come.
        """
        if self.suspended_at:
            self.waited += perf_counter_ns() - abs(self.suspended_at)
            self.suspended_at = 0
        return True

    def unsuspend(self) -> None:
        """Count a suspension that an exception ends; whether another follows shows when that one ends."""
        if self.suspended_at:  # negative: thrown into before, and suspended unseen since then
            now = perf_counter_ns()
            self.waited += now - abs(self.suspended_at)
            self.suspended_at = -now


# asyncio's own: the running task of each running loop. It is empty while no coroutine runs, which is the
# cheapest question that tells synchronous code from coroutines. Until `know_asyncio()` nobody asks.
running: Any = {}

_numbers = itertools.count()
_threads: dict[int, Task] = {}


def no_loop() -> None:
    """Return nothing: nobody has asked for event loops yet."""


_running_loop: Callable[[], Any] = no_loop  # asyncio's


class AskAsyncio:
    """Stands in for the dictionary of running tasks where asyncio hides it."""

    __slots__ = ("_running_loop",)

    def __init__(self, running_loop: Callable[[], Any]) -> None:
        self._running_loop = running_loop

    def __bool__(self) -> bool:
        return self._running_loop() is not None

    def get(self, loop: Any) -> Any:
        """Return the task that runs in `loop`."""
        import asyncio

        return None if loop is None else asyncio.current_task(loop)

    def values(self) -> tuple[()]:
        """Return nothing: who wants to know has to `get` it."""
        return ()


def unseen(loop: Any, thread: int) -> None:
    """Do nothing about a new task."""


_seen: Callable[[Any, int], object] = unseen


def know_asyncio(seen: Callable[[Any, int], object]) -> Any:
    """Tell asyncio's tasks apart from now on; call `seen(loop, thread)` for each new one that has a span.

    Returns:
        `running`: asyncio's dictionary of running tasks by loop.
    """
    global running, _running_loop, _seen
    import asyncio.tasks  # not at the top: it costs more than all else that `import sglang_instrument` does

    running = getattr(asyncio.tasks, "_current_tasks", None)
    _running_loop, _seen = asyncio._get_running_loop, seen
    running = AskAsyncio(_running_loop) if running is None else running
    return running


def ignore_asyncio() -> Any:
    """Ask for no task any more; return the empty dictionary that `running` now is."""
    global running, _seen
    running, _seen = {}, unseen
    return running


def current(inherited: Task | None) -> Task | None:
    """Return the asyncio task that runs now on this thread; None outside of any.

    Args:
        inherited: Who made it, as far as its context tells.
    """
    if not running:
        return None
    try:
        [owner] = running.values()  # the only one in the process: to ask for this thread's loop takes longer
        task: Task = owner._sglang_instrument
        if task.thread == get_ident():
            return task
    except BaseException:  # several loops; not known; a task of somebody's own, which may raise anything
        let_through()
    return look_up(inherited)


def counted() -> Task | None:
    """Return the asyncio task that runs now if some span counts its waiting."""
    task = current(None)
    return task if task is not None and task.counted_by else None


def look_up(inherited: Task | None) -> Task | None:
    """Return the asyncio task that runs now on this thread, be it known or not; None outside of any."""
    loop = _running_loop()
    owner = running.get(loop) if loop else None
    if owner is None:
        return None
    task = known(owner)  # not by an exception, which costs more than all else here
    if task is None:
        return _meet(owner, loop, inherited)
    task.thread = get_ident()  # its loop may have been moved
    return task


def known(owner: Any) -> Task | None:
    """Return what is known of an asyncio task; None if no span was seen in it."""
    try:
        task: Task | None = getattr(owner, "_sglang_instrument", None)
    except BaseException:  # a task of somebody's own, which may raise anything
        let_through()
        return None
    return task


def thread_task(ident: int) -> Task:
    """Return the task that stands for a thread: what runs in it outside of asyncio."""
    task = _threads.get(ident)
    if task is None:
        if len(_threads) >= _THREADS_LIMIT:
            _threads.clear()
        task = _threads.setdefault(ident, Task(next(_numbers)))
    return task


def waited_so_far(task: Task) -> int:
    """Return how long a task was suspended, for a span of it, which therefore runs now."""
    if task.suspended_at < 0:  # thrown into, and running still
        task.suspended_at = -perf_counter_ns()
    return task.waited


def leave_task(leaving: Any) -> None:
    """Turn the task's count of suspended time into that of this span."""
    task, waited = leaving.task, leaving.waited
    if task is None or waited is None:
        leaving.waited = None
        return
    leaving.waited = (task.waited if task.suspended_at >= 0 else waited_so_far(task)) - waited
    if task.counted_by == id(leaving):
        task.counted_by = 0


def owner_of(task: Task) -> Any:
    """Return the asyncio task itself; slow, for reports of what hangs. None if it is gone."""
    loop = None if task.loop is None else task.loop()
    if loop is None:
        return None
    import asyncio

    owners = asyncio.all_tasks(loop)
    return next((owner for owner in owners if known(owner) is task), None)


def forget_gone() -> None:
    """Give back what is kept of asyncio tasks that are gone: here they took it with them."""


def forget_tasks() -> None:
    """Start anew, as after a fork: no thread is known, tasks are numbered from zero."""
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
    except BaseException:  # a task or loop of somebody's own, without room for it
        let_through()
        return None
    return met


_compiled = native.take_over(
    globals(),
    "tasks",
    "Task",
    "counted",
    "current",
    "forget_gone",
    "forget_tasks",
    "ignore_asyncio",
    "know_asyncio",
    "known",
    "look_up",
    "thread_task",
    "_threads",
)
if _compiled is not None:
    _compiled.connect(AskAsyncio, let_through)
