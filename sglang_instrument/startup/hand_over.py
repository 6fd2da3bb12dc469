"""Hand the bound ids over to threads, processes and the tasks of pools, from `install()` to `uninstall()`.

A thread or a process of the program runs under the ids that were bound at its `start()`. A worker of a pool
begins unbound, and each of its tasks has the ids that were bound at its submit. Only our ids travel, no other
context variable. While nothing is bound, a task is passed on as it is.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from sglang_instrument.patching.places.loaded_modules import loaded_module
from sglang_instrument.patching.rewriting.imports import ImportWatch
from sglang_instrument.patching.rewriting.swap import SwappedEntry
from sglang_instrument.recording.measure.binding import forget_inherited, inherit
from sglang_instrument.recording.measure.context import (
    CURRENT,
    UNBOUND,
    Context,
    count_task,
    derive,
    put,
    skip_left,
)
from sglang_instrument.recording.safety.notices import log_swallowed
from sglang_instrument.startup.carried_task import CarriedTask, bind_tasks, ids_of

_Function = Callable[..., Any]

#: The name under which a process object carries ids to a child that unpickles it.
_IDS: Final = "_sglang_instrument_ids"
#: Threads and processes whose code is in these packages serve a pool, a queue or a manager.
_MACHINERY: Final = frozenset(
    {"concurrent", "multiprocessing", "multiprocess", "billiard", "loky", "joblib", "asyncio"}
)


class TaskBlock:
    """Binds ids for a task's time, on top of what its worker has bound.

    Args:
        ids: The ids by name, from another process; or a context of this one.
    """

    __slots__ = ("_before", "_ids", "_scope")

    def __init__(self, ids: Any) -> None:
        self._ids = ids
        self._before: Context | None = None
        self._scope: Any = None

    def enter(self) -> None:
        """Bind the ids. A step that another process has sent counts as open here."""
        try:
            before = CURRENT.get()
            is_ours = isinstance(self._ids, Context)
            context = self._ids if is_ours and before is UNBOUND else derive(before, ids_of(self._ids))
            put(CURRENT, context)
            self._before = before
            if not is_ours and context.step is not None and context.scope is not None:
                count_task(context.scope, 1)
                self._scope = context.scope
        except BaseException as error:
            log_swallowed("binding the ids of a task", error)

    def go_on_in_child(self) -> None:
        """Count the step as open in a child that was forked inside this block, too."""
        if self._scope is not None:
            inherit(self._scope)

    def leave(self) -> None:
        """Unbind the ids."""
        scope, self._scope = self._scope, None
        try:
            if self._before is not None:
                put(CURRENT, self._before)
        except BaseException as error:
            log_swallowed("unbinding the ids of a task", error)
        finally:
            if scope is not None:
                count_task(scope, -1)


def _bound_now() -> Context:
    """Return the current context, without blocks that were left elsewhere, as by another task."""
    context = CURRENT.get()
    try:
        return skip_left(context) if context.left else context
    except MemoryError as error:
        log_swallowed("reading the bound ids", error)
        return context


class ThreadBegin:
    """Replaces `Thread._bootstrap`, which `Thread.start` reads on the thread that starts another one."""

    def __init__(self, original: _Function) -> None:
        self._original = original

    def __get__(self, thread: Any, owner: Any = None) -> Any:
        begin = self._original.__get__(thread, owner)
        context = _bound_now()
        if thread is None or context is UNBOUND or is_machinery(thread):
            return begin
        return functools.partial(_begin_under, context, begin)


def _begin_under(context: Context, begin: _Function) -> None:
    try:
        put(CURRENT, context)
    except MemoryError as error:
        log_swallowed("binding the ids of a thread", error)
    begin()


def carrying(*names: str) -> Callable[[_Function], _Function]:
    """Return a wrapper for functions that take a task or a callback as one of the parameters `names`."""

    def wrap(original: _Function) -> _Function:
        parameters = list(inspect.signature(original).parameters.values())
        places = [
            (position, parameter.name, parameter.kind)
            for position, parameter in enumerate(parameters)
            if parameter.name in names
        ]
        by_position = [position for position, _, _ in places]
        by_name = [name for _, name, kind in places if kind is not inspect.Parameter.POSITIONAL_ONLY]

        @functools.wraps(original)
        def carry(*args: Any, **kwargs: Any) -> Any:
            context = _bound_now()
            if context is UNBOUND:
                return original(*args, **kwargs)
            return original(*_carried(args, by_position, context), **_carried_named(kwargs, by_name, context))

        return carry

    return wrap


def _carried(args: tuple[Any, ...], places: list[int], context: Context) -> list[Any]:
    carried = list(args)
    for place in places:
        if place < len(carried) and callable(carried[place]):
            carried[place] = CarriedTask(carried[place], context)
    return carried


def _carried_named(kwargs: dict[str, Any], names: list[str], context: Context) -> dict[str, Any]:
    changes = {name: CarriedTask(kwargs[name], context) for name in names if callable(kwargs.get(name))}
    return {**kwargs, **changes} if changes else kwargs


def handing_over(original: _Function) -> _Function:
    """Return `Process.start`, which gives the process the ids that are bound now."""

    @functools.wraps(original)
    def start(self: Any, *args: Any, **kwargs: Any) -> Any:
        context = _bound_now()
        if context is UNBOUND or is_machinery(self):
            return original(self, *args, **kwargs)
        vars(self)[_IDS] = ids_of(context)
        try:
            return original(self, *args, **kwargs)
        finally:
            vars(self).pop(_IDS, None)

    return start


def beginning(original: _Function) -> _Function:
    """Return `Process._bootstrap`, which runs in the child, and binds the ids that the process was given."""

    @functools.wraps(original)
    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin_process(self)
        return original(self, *args, **kwargs)

    return _bootstrap


_process_block: TaskBlock | None = None


def begin_process(process: Any) -> None:
    """Bind the ids that the object of this process was given; unbind a pool's worker."""
    global _process_block
    try:
        ids = getattr(process, "__dict__", {}).pop(_IDS, None)
        if ids is None and not is_machinery(process):
            return
        put(CURRENT, UNBOUND)  # a forked child inherits the context of the thread that started it
        forget_inherited()
        _process_block = None  # its parent's
        if ids:
            _process_block = TaskBlock(ids)
            _process_block.enter()
    except BaseException as error:
        log_swallowed("binding the ids of a process", error)


def is_machinery(started: Any) -> bool:
    """Return whether a thread or process serves a pool or queue, by where its target or class is defined."""
    target = getattr(started, "_target", None)
    module = getattr(type(started) if target is None else target, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in _MACHINERY


_SUBMIT: Final = {"submit": carrying("fn")}
_POOL: Final = {
    "apply_async": carrying("func", "callback", "error_callback"),
    "_map_async": carrying("func", "callback", "error_callback"),
    "imap": carrying("func"),
    "imap_unordered": carrying("func"),
}
_PROCESS: Final = {"start": handing_over, "_bootstrap": beginning}

#: By module and class: the methods that are replaced, each with the function that makes its replacement.
_WAYS: Final[Mapping[str, tuple[str, Mapping[str, Callable[[_Function], Any]]]]] = {
    "threading": ("Thread", {"_bootstrap": ThreadBegin}),
    # Pools submit from callbacks, too: joblib's next batch is submitted when one is done.
    "concurrent.futures._base": ("Future", {"add_done_callback": carrying("fn")}),
    "concurrent.futures.thread": ("ThreadPoolExecutor", _SUBMIT),
    "concurrent.futures.process": ("ProcessPoolExecutor", _SUBMIT),
    "loky.process_executor": ("ProcessPoolExecutor", _SUBMIT),
    "joblib.externals.loky.process_executor": ("ProcessPoolExecutor", _SUBMIT),
    "multiprocessing.pool": ("Pool", _POOL),
    "multiprocess.pool": ("Pool", _POOL),
    "billiard.pool": ("Pool", _POOL),
    "multiprocessing.process": ("BaseProcess", _PROCESS),
    "multiprocess.process": ("BaseProcess", _PROCESS),
    "billiard.process": ("BaseProcess", _PROCESS),
}
_PROCESSES: Final = tuple(name for name in _WAYS if name.endswith(".process"))


class HandOver:
    """Replaces the methods that start threads, processes and tasks, from `start` to `stop`."""

    def __init__(self) -> None:
        self._watch = ImportWatch(self._put)
        self._entries: list[SwappedEntry] = []

    def start(self) -> None:
        """Replace the methods now, or after the import of their modules; bind what this process was given."""
        self._watch.start(frozenset(_WAYS))
        for name in _WAYS:
            module = loaded_module(name)
            if module is not None:
                self._put(name, module)
        bind_tasks(TaskBlock)
        for name in _PROCESSES:
            current = getattr(sys.modules.get(name), "current_process", None)
            if current is not None and _IDS in getattr(current(), "__dict__", ()):
                begin_process(current())

    def stop(self) -> list[str]:
        """Restore the methods; return a message for each one that other code has replaced since."""
        self._watch.stop()
        bind_tasks(None)
        entries, self._entries = self._entries, []
        return [reason for entry in entries if (reason := entry.restore()) is not None]

    def restart_in_child(self) -> None:
        """Go on inside the block of the process's own ids, in a child that it forks."""
        if _process_block is not None:
            _process_block.go_on_in_child()

    def end(self) -> None:
        """End the block of the process's own ids, as the process ends: its step is complete."""
        global _process_block
        block, _process_block = _process_block, None
        if block is not None:
            block.leave()

    def _put(self, name: str, module: ModuleType) -> None:
        class_name, methods = _WAYS[name]
        owner = vars(module).get(class_name)
        try:
            for method, make in methods.items():
                original = None if owner is None else vars(owner).get(method)
                if original is not None and not any(entry.ours is original for entry in self._entries):
                    self._entries.append(SwappedEntry.put(owner, method, original, make(original)))
        except Exception as error:  # another class of that name, which takes no attributes
            log_swallowed("handing ids over", error)
