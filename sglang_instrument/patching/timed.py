"""Time the calls of a function at the least cost: a span's life written out, without the calls of a `with`.

That takes a quarter off the cost of a call. It is `Span.__enter__` and `Span.__exit__`, step by step; spans
of other classes, which do more at both ends, are left to `with`. A compiled span does all that in fewer
steps by itself: there, `with` is the least.
"""

import functools
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

from sglang_instrument.recording import spans
from sglang_instrument.recording.spans import OFF, Span
from sglang_instrument.recording.tasks import leave_task
from sglang_instrument.recording.waiting import waits

Function = Callable[..., Any]


def timed(function: Function, start: "partial[Span]") -> Function:
    """Return a wrapper of a sync function; `start` makes plain spans."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if spans.buffer is OFF:
            return function(*args, **kwargs)
        run: Span | None = None
        try:
            run = start()
            if spans.running_tasks:
                spans.enter_task(run)
        except BaseException:
            run = None
            spans.lose("beginning a span")
        if run is None:
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            run.error = spans.name_error(type(error), error)
            raise
        finally:
            try:
                run.end = perf_counter_ns()
                if run.waited is not None:
                    leave_task(run)
                spans.buffer.append(run)
            except BaseException:
                spans.lose("recording a span")

    return called


def timed_coroutine(function: Function, start: "partial[Span]") -> Function:
    """Return a wrapper of a coroutine function; `start` makes plain spans whose awaits are counted."""

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        if spans.buffer is OFF:
            return await function(*args, **kwargs)
        run: Span | None = None
        try:
            run = start().__enter__()
        except BaseException:
            spans.lose("beginning a span")
        if run is None:
            return await function(*args, **kwargs)
        task = run.task
        try:
            if task is None or task.counted_by != id(run):  # whoever counts around it counts this await, too
                return await function(*args, **kwargs)
            return await waits(task, function(*args, **kwargs))
        except BaseException as error:
            run.error = spans.name_error(type(error), error)
            raise
        finally:
            try:
                run.end = perf_counter_ns()
                if run.waited is not None:
                    leave_task(run)
                spans.buffer.append(run)
            except BaseException:
                spans.lose("recording a span")

    return awaited


def timed_by_with(function: Function, start: Callable[[], Any]) -> Function:
    """Return a wrapper of a sync function; `start` makes compiled spans."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if spans.buffer is OFF:
            return function(*args, **kwargs)
        with start():
            return function(*args, **kwargs)

    return called


def timed_coroutine_by_with(function: Function, start: Callable[[], Any]) -> Function:
    """Return a wrapper of a coroutine function; `start` makes compiled spans whose awaits are counted."""

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        if spans.buffer is OFF:
            return await function(*args, **kwargs)
        with start() as run:
            return await run.awaiting(function(*args, **kwargs))

    return awaited
