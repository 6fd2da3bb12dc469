"""Start this package's threads where that is possible, and end them before the interpreter exits."""

import contextlib
import time
from collections.abc import Callable
from typing import Final

from sglang_instrument.recording.safety.notices import log_swallowed, notice
from sglang_instrument.recording.safety.unpatched import RLock, Thread

#: Delay between two tries to start a thread: each failed try costs tens of microseconds.
TRY_AGAIN_SEC: Final = 1.0


class OneAtATime:
    """Run one action at a time; refuse another one to a signal handler that interrupts the first."""

    def __init__(self) -> None:
        self.lock = RLock()  # also held directly, for what a signal handler may always do
        self._is_busy = False

    def do(self, act: Callable[[], object], doing: str, wait_sec: float = -1) -> None:
        """Run `act`, or return without running it; log an error instead of raising it.

        `act` is not run if this thread already runs an action, which a signal handler or finalizer has
        interrupted, or if another thread's action takes longer than `wait_sec`; -1 waits without a limit.

        Args:
            act: The function to run.
            doing: What `act` does, for the notice.
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
                    log_swallowed(doing, error)
                finally:
                    self._is_busy = False
        finally:
            self.lock.release()


class OwnThread:
    """A daemon thread that copes with limits on processes or memory, under which no thread may start.

    Args:
        run: The function that it runs.
        name: The thread's name.
        is_bare: Whether `threading` shall not know the thread: that is a third of its cost in a forked child.
    """

    def __init__(self, run: Callable[[], None], name: str, is_bare: bool = False) -> None:
        self._is_bare = is_bare
        self._run = run
        self._name = name
        self._thread: Thread | None = None
        self._next_try = 0.0

    @property
    def started(self) -> bool:
        """Whether the thread was started."""
        return self._thread is not None

    def start(self, at_once: bool = False) -> bool:
        """Start the thread, unless it runs or a start has just failed; return whether it was started.

        Args:
            at_once: Try even if a start has just failed.
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
                f"no thread can be started ({error!r}): records stay in memory until a thread starts (one "
                "try per second), or until flush() or the end of the process writes them",
            )
            return False
        return True

    def _start(self) -> None:
        # Set before start(): Ctrl-C may interrupt start() when the thread already runs.
        self._thread = Thread(self._run, self._name, self._is_bare)
        self._thread.start()

    def join(self, ends: float) -> None:
        """Wait for the thread's end, at most until `time.monotonic()` reaches `ends`."""
        thread = self._thread
        if thread is not None and not thread.is_current():
            thread.join(max(0.0, ends - time.monotonic()))


def preload_libgcc() -> None:
    """Load libgcc_s now: glibc aborts the process if it cannot load this library to end a thread.

    A thread that is blocked on a disk cannot be joined. If it returns while the interpreter exits, Python
    calls `pthread_exit()`, which needs the library; then no descriptor or memory may be left to load it.
    """
    with contextlib.suppress(Exception):  # other C libraries do not need it
        import _ctypes  # not ctypes: its import takes ten times as long
        import os

        _ctypes.dlopen("libgcc_s.so.1", os.RTLD_NOW)
