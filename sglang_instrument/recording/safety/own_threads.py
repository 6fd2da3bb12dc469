"""Start threads of our own where that is possible, and end them before the interpreter does."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from sglang_instrument.recording.safety.notices import notice, swallowed

#: A thread that could not be started is tried again after so long: each try costs tens of microseconds.
TRY_AGAIN_SEC: Final = 1.0


class OneAtATime:
    """Run one action at a time; refuse another one to a signal handler that interrupts the first."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # also held directly, for what a signal handler may always do
        self._is_busy = False

    def do(self, act: Callable[[], object], doing: str, wait_sec: float = -1) -> None:
        """Run `act`, or return without it; note what it raises instead of raising it.

        It is not run where this thread already runs an action, which a signal handler or finalizer has
        interrupted, nor where another thread's action takes longer than `wait_sec`; -1 waits without a limit.

        Args:
            act: What to run.
            doing: What it does, for the notice.
            wait_sec: Seconds to wait for another thread.
        """
        if not self.lock.acquire(timeout=wait_sec):
            return
        try:
            if not self._is_busy:
                self._is_busy = True
                try:
                    act()
                except BaseException as error:
                    swallowed(doing, error)
                finally:
                    self._is_busy = False
        finally:
            self.lock.release()


class OwnThread:
    """A daemon thread, which a limit on processes or memory may forbid to start.

    Args:
        run: What it runs.
        name: Its name, for whoever lists threads.
    """

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run = run
        self._name = name
        self._thread: threading.Thread | None = None
        self._next_try = 0.0

    @property
    def started(self) -> bool:
        """Whether it was started."""
        return self._thread is not None

    def start(self, at_once: bool = False) -> bool:
        """Start it, unless that was done or has just failed; return whether it was started.

        Args:
            at_once: Try even if that has just failed.
        """
        if self._thread is not None:
            return True
        now = time.monotonic()
        if now < self._next_try and not at_once:
            return False
        self._next_try = now + TRY_AGAIN_SEC
        try:
            self._start()
        except (RuntimeError, MemoryError) as error:  # a limit, or the interpreter is going
            self._thread = None
            notice(
                "threads",
                f"no thread can be started ({error!r}): records are kept in memory until one can, which is "
                "tried every second, or until flush() or the end of the process writes them",
            )
            return False
        return True

    def _start(self) -> None:
        # Set before start(): Ctrl-C may interrupt start() when the thread runs already.
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def join(self, ends: float) -> None:
        """Wait until it has ended, until `time.monotonic()` is `ends` at most."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, ends - time.monotonic()))


def preload_libgcc() -> None:
    """Load libgcc_s now: glibc aborts the process where it cannot load it to end a thread.

    A thread that a disk holds up cannot be joined. If it returns while the interpreter ends, Python calls
    `pthread_exit()`, for which glibc needs the library; no descriptor or memory may be left then.
    """
    with contextlib.suppress(Exception):  # other C libraries do not need it
        import _ctypes  # not ctypes, which takes ten times as long
        import os

        _ctypes.dlopen("libgcc_s.so.1", os.RTLD_NOW)
