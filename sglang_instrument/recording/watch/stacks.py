"""Return the stack of a thread or of a suspended asyncio task, as short lines: `file:line function`."""

import gc
import sys
from collections.abc import Iterable, Mapping
from types import CoroutineType, FrameType
from typing import Any

from sglang_instrument.recording.measure.tasks import Task, known
from sglang_instrument.recording.measure.waiting import Waits

_DEEPEST = 200  # frames followed; a deep recursion must not fill the record


Owners = Mapping[int, Any]


def owners_of(tasks: Iterable[Task | None]) -> Owners:
    """Return the asyncio tasks that still exist, by the id() of our Task of each.

    This visits all tasks of each loop, once: pass many tasks in one call.
    """
    wanted = {id(task): task for task in tasks if task is not None and task.loop is not None}
    loops = {id(loop): loop for task in wanted.values() if (loop := task.loop()) is not None}
    found: dict[int, Any] = {}
    for loop in loops.values():
        for owner in _tasks_of(loop):
            task = known(owner)
            if task is not None and id(task) in wanted:
                found[id(task)] = owner
    return found


def of_task(task: Task | None, owners: Owners, thread: int, frames: int) -> list[str]:
    """Return the innermost `frames` frames of an asyncio task, or else of the thread, innermost last."""
    owner = None if task is None else owners.get(id(task))
    if owner is None or owner.done():
        return of_thread(thread, frames)
    return _awaited(owner.get_coro())[-frames:] or of_thread(thread, frames)


def of_thread(thread: int, frames: int) -> list[str]:
    """Return the innermost `frames` frames of a thread, innermost last."""
    frame = sys._current_frames().get(thread)
    places: list[str] = []
    while frame is not None and len(places) < frames:
        places.append(_place(frame))
        frame = frame.f_back
    return places[::-1]


def _tasks_of(loop: Any) -> Iterable[Any]:
    import asyncio

    try:
        return asyncio.all_tasks(loop)
    except RuntimeError:  # other threads change the set of tasks while asyncio copies it
        return ()


def _awaited(awaited: Any) -> list[str]:
    """Return the stack of a suspended coroutine: follow what it awaits, outermost first."""
    places: list[str] = []
    for _ in range(_DEEPEST):
        if awaited is None:
            break
        frame = _own(awaited, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            places.append(_place(frame))
        if isinstance(awaited, Waits):
            awaited = _under(awaited.steps)
        else:
            awaited = _own(awaited, "cr_await", "gi_yieldfrom", "ag_await")
    return places


def _under(steps: Any) -> Any:
    """Return the coroutine that these steps belong to; a future or generator is its own steps."""
    if type(steps).__name__ != "coroutine_wrapper":
        return steps
    return next((held for held in gc.get_referents(steps) if type(held) is CoroutineType), None)


def _own(waiting: Any, *names: str) -> Any:
    """Return an attribute of a coroutine or generator; reading one of another object could run its code."""
    kind = vars(type(waiting))
    return next((getattr(waiting, name) for name in names if name in kind), None)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
