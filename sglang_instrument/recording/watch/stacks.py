"""Return the stack of a thread or of a suspended asyncio task, as short lines: `file:line function`."""

import gc
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CoroutineType, FrameType
from typing import Any, Final, NamedTuple

from sglang_instrument.recording.measure.tasks import Task, known
from sglang_instrument.recording.measure.waiting import Waits

_DEEPEST = 200  # frames followed; a deep recursion must not fill the record
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", "<frozen ")
_OURS: Final = tuple(f"{Path(__file__).parents[2] / room}{os.sep}" for room in ("recording", "patching"))
_NOT_THE_PROGRAMS: Final = (*_OURS, os.path.dirname(os.__file__) + os.sep)  # noqa: PTH120 - as above


class Stack(NamedTuple):
    """Where a thread or a task stands.

    Attributes:
        frames: Its innermost frames, the innermost last.
        place: The innermost frame of the program's own code, outside the standard library, `site-packages`
            and the probes; None if no frame is.
    """

    frames: list[str]
    place: str | None

    def fields(self) -> dict[str, Any]:
        """Return `stack`, and `place` if it is known, as fields of a record."""
        return {"stack": self.frames} if self.place is None else {"place": self.place, "stack": self.frames}


Owners = Mapping[int, Any]


def owners_of(tasks: Iterable[Task | None]) -> Owners:
    """Return the asyncio tasks that still exist, by the id() of our Task of each.

    This visits all tasks of each loop, once: pass many tasks in one call.
    """
    wanted = {id(task): task for task in tasks if task is not None and task.loop is not None}
    loops = {id(loop): loop for task in wanted.values() if (loop := task.loop()) is not None}
    owners: dict[int, Any] = {}
    for loop in loops.values():
        for owner in _tasks_of(loop):
            task = known(owner)
            if task is not None and id(task) in wanted:
                owners[id(task)] = owner
    return owners


def of_task(task: Task | None, owners: Owners, thread: int, most: int) -> Stack:
    """Return the stack of an asyncio task, or else of the thread, with at most `most` frames."""
    owner = None if task is None else owners.get(id(task))
    if owner is None or owner.done():
        return of_thread(thread, most)
    awaited = _awaited(owner.get_coro())
    return _stack(awaited[::-1], most) if awaited else of_thread(thread, most)


def of_thread(thread: int, most: int) -> Stack:
    """Return the stack of a thread, with at most `most` frames."""
    frame = sys._current_frames().get(thread)
    inner_first: list[FrameType] = []
    while frame is not None and len(inner_first) < _DEEPEST:
        inner_first.append(frame)
        frame = frame.f_back
    return _stack(inner_first, most)


def _stack(inner_first: list[FrameType], most: int) -> Stack:
    frame_of_program = next(
        (frame for frame in inner_first if _is_of_program(frame.f_code.co_filename)), None
    )
    lines = [_line(frame) for frame in inner_first[:most]]
    return Stack(lines[::-1], None if frame_of_program is None else _line(frame_of_program))


def _is_of_program(file: str) -> bool:
    return not (file.startswith(_NOT_THE_PROGRAMS) or any(part in file for part in _INSTALLED))


def _tasks_of(loop: Any) -> Iterable[Any]:
    import asyncio

    try:
        return asyncio.all_tasks(loop)
    except RuntimeError:  # other threads change the set of tasks while asyncio copies it
        return ()


def _awaited(awaited: Any) -> list[FrameType]:
    """Return the stack of a suspended coroutine: follow what it awaits, outermost first."""
    frames: list[FrameType] = []
    for _ in range(_DEEPEST):
        if awaited is None:
            break
        frame = _own(awaited, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            frames.append(frame)
        if isinstance(awaited, Waits):
            awaited = _under(awaited.steps)
        else:
            awaited = _own(awaited, "cr_await", "gi_yieldfrom", "ag_await")
    return frames


def _under(steps: Any) -> Any:
    """Return the coroutine that these steps belong to; a future or generator is its own steps."""
    if type(steps).__name__ != "coroutine_wrapper":
        return steps
    return next((held for held in gc.get_referents(steps) if type(held) is CoroutineType), None)


def _own(waiting: Any, *names: str) -> Any:
    """Return an attribute of a coroutine or generator; reading one of another object could run its code."""
    kind = vars(type(waiting))
    return next((getattr(waiting, name) for name in names if name in kind), None)


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
