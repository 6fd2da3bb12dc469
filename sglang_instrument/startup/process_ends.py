"""Call back after a fork and at a process's end, also in children of multiprocessing without atexit hooks.

Up to Python 3.12 a forked child of multiprocessing runs no atexit hooks, only multiprocessing's finalizers.
dill's `multiprocess` (of datasets and pathos) has finalizers of its own; billiard uses multiprocessing's.
"""

import atexit
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from sglang_instrument import launchers

_FINALIZERS: Final = ("multiprocessing.util", "multiprocess.util")


class ProcessEnds:
    """Hooks for forks and exits. They cannot be removed, so the callbacks check for an installed session.

    Args:
        before_fork: Called in a process that is about to fork.
        after_fork: Called in each forked child.
        at_exit: Called when a process ends, perhaps more than once.
    """

    def __init__(
        self,
        before_fork: Callable[[], object],
        after_fork: Callable[[], object],
        at_exit: Callable[[], object],
    ) -> None:
        self._before_fork = before_fork
        self._after_fork = after_fork
        self._at_exit = at_exit
        self._is_hooked = False
        self._hooked_modules: set[str] = set()
        self._has_finalizer = False

    def hook(self) -> None:
        """Register the hooks, once in a process and its forked children."""
        if not self._is_hooked:
            self._is_hooked = True
            os.register_at_fork(before=self._before, after_in_child=self._in_child)
            atexit.register(self._at_exit)
        self._hook_finalizers()
        if launchers.is_child():
            self._finalize()

    def _before(self) -> None:
        self._hook_finalizers()  # once, in the parent: each child would copy the memory that this changes
        self._before_fork()

    def _in_child(self) -> None:
        self._after_fork()
        if self._has_finalizer:  # a finalizer does nothing in another process than the one that made it
            self._finalize()
        if "billiard.process" in sys.modules:  # its child imports multiprocessing's finalizers, but later
            importlib.import_module("multiprocessing.util")
            self._hook_finalizers()

    def _hook_finalizers(self) -> None:
        """Have each kind of multiprocessing call `_finalize` when a child begins its work.

        A child may install between its fork and its work, when it imports its target's module.
        multiprocessing drops all finalizers in between.
        """
        for name in _FINALIZERS:
            util: Any = sys.modules.get(name)
            if hasattr(util, "register_after_fork") and name not in self._hooked_modules:
                util.register_after_fork(self, ProcessEnds._finalize)
                self._hooked_modules.add(name)

    def _finalize(self) -> None:
        """Have multiprocessing call `at_exit` when this process, one of its children, ends."""
        self._has_finalizer = True
        for name in _FINALIZERS:
            finalize: Any = getattr(sys.modules.get(name), "Finalize", None)
            if finalize is not None:
                finalize(None, self._at_exit, exitpriority=-100)  # after all other finalizers
