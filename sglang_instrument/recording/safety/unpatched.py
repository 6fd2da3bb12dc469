"""Locks, queues and threads of the operating system, also in programs that replace them, as gevent does.

gevent replaces the primitives of the standard library at any time by ones that only switch between greenlets.
A thread of this package that mixed both kinds would be a greenlet that blocks the program's own thread for
ever. So this package uses the originals alone, which it takes at import, or from gevent.
"""

import contextlib
import functools
import importlib
import sys
import threading
import time
from _thread import TIMEOUT_MAX
from collections.abc import Callable, Generator
from typing import Any, Final


def original(module: str, name: str) -> Any:
    """Return what `module.name` is, or was before gevent replaced it."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None:
        return monkey.get_original(module, name)
    return getattr(importlib.import_module(module), name)


#: Lets other threads run meanwhile; `sleep(0)` gives them the GIL at once.
sleep: Final[Callable[[float], None]] = original("time", "sleep")
RLock: Final = original("_thread", "RLock")
_allocate_lock: Final = original("_thread", "allocate_lock")
start_new_thread: Final = original("_thread", "start_new_thread")
_get_ident: Final[Callable[[], int]] = original("_thread", "get_ident")
_usual_lock: Final = original("threading", "Lock")


class Flag:
    """A flag that other threads wait for; a signal handler may set it, too."""

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = _allocate_lock()  # held until the flag is set, and while it passes to the next waiter
        self._lock.acquire()

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag, and let all waiters go on."""
        if not self._is_set:
            self._is_set = True
            self._release()

    def wait(self, timeout_sec: float) -> bool:
        """Wait for the flag at most so long; return whether it is set."""
        if not self._is_set and self._lock.acquire(timeout=max(0.0, min(timeout_sec, TIMEOUT_MAX))):
            self._release()
        return self._is_set

    def _release(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:  # two threads have set the flag at once
            pass


class Thread:
    """A daemon thread of the operating system. Where the program has replaced threads, it has no name.

    Args:
        run: The function that it runs.
        name: The thread's name.
        is_bare: Whether `threading` shall not know the thread, which takes half of what its start takes.
    """

    def __init__(self, run: Callable[[], object], name: str, is_bare: bool = False) -> None:
        self._run = run
        self._name = name
        self._is_bare = is_bare
        self._ended = Flag()
        self._usual: threading.Thread | None = None
        self._is_started = False
        self._ident = 0

    def start(self) -> None:
        """Start it.

        Raises:
            RuntimeError: There can be no more threads.
            MemoryError: Or there is no memory for one.
        """
        self._is_started = True  # before the start: Ctrl-C may interrupt it when the thread already runs
        try:
            if threading.Lock is _usual_lock and not self._is_bare:
                self._usual = threading.Thread(target=self._work, name=self._name, daemon=True)
                # In its instance, because `Thread.start` waits for ever if the beginning raises.
                vars(self._usual)["_bootstrap"] = _beginning(self._usual._bootstrap)  # type: ignore[attr-defined]
                self._usual.start()
            else:
                start_new_thread(_beginning(self._work), ())
        except (RuntimeError, MemoryError):
            self._is_started = False
            raise

    def is_alive(self) -> bool:
        """Return whether it was started and has not ended."""
        return self._is_started and not self._ended.is_set()

    def is_current(self) -> bool:
        """Return whether this thread itself asks."""
        return self.is_alive() and self._ident == _get_ident()

    def join(self, wait_sec: float) -> None:
        """Wait for its end, at most `wait_sec`."""
        ends = time.monotonic() + wait_sec
        if self._is_started and self._ended.wait(wait_sec) and self._usual is not None:
            self._usual.join(max(0.0, ends - time.monotonic()))

    def _work(self) -> None:
        self._ident = _get_ident()
        try:
            self._run()
        finally:
            self._ended.set()
            if threading.Lock is not _usual_lock and self._usual is not None:
                self._be_known_as(threading.get_ident())

    def _be_known_as(self, ident: int) -> None:
        """Let `threading` forget this thread: gevent has replaced `get_ident()` since it was started."""
        active: dict[int, threading.Thread] = getattr(threading, "_active", {})
        known = active.pop(self._ident, None)
        if known is not None:
            active[ident] = known


def _beginning(run: Callable[[], object]) -> Callable[[], object]:
    """Return what a new thread calls: it runs `run`, and passes on an exception that was set for this thread.

    Before Python 3.12, a thread has the identity of its starter until it begins. `PyThreadState_SetAsyncExc`
    with that identity then sets the exception for the new thread, which meets it before its first statement.
    """
    steps = _begin(run, _get_ident())
    next(steps)
    return functools.partial(next, steps, None)


def _begin(run: Callable[[], object], starter: int) -> Generator[None, None, None]:
    try:
        yield  # a function would raise the exception before its `try`; a generator goes on within it
    except GeneratorExit:  # no thread could be started
        return
    except BaseException as error:
        _set_exception(starter, type(error))
    run()


def _set_exception(ident: int, kind: type[BaseException]) -> None:
    with contextlib.suppress(Exception):  # a Python without ctypes
        import ctypes

        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(kind))
