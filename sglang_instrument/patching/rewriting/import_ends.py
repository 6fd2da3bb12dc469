"""Call back when the import of any module has ended, without a part in that import.

Python holds a lock for each module that it imports, and forgets the lock when the import has ended: a weak
reference to the lock calls back then. Neither the module nor its spec or loader shows a trace of it.
"""

import _thread
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final
from weakref import ref

from sglang_instrument.recording.safety.notices import log_swallowed
from sglang_instrument.recording.safety.static_lookup import entries

_LOCKS: Final = "_module_locks"  # of importlib, weak references by the module's name


class ImportEnds:
    """Watch imports that have begun.

    Args:
        ended: called in the importing thread after the module's code has run, or has failed.
    """

    def __init__(self, ended: Callable[[], object]) -> None:
        self._ended = ended
        self._locks: dict[int, ref[Any]] = {}

    def expect(self, name: str) -> None:
        """Watch the import of the module `name`; a Python with other locks is not watched."""
        locks = entries(sys.modules.get("_frozen_importlib")).get(_LOCKS)
        known = locks.get(name) if isinstance(locks, Mapping) else None
        lock = known() if isinstance(known, ref) else None
        if lock is not None and id(lock) not in self._locks:
            self._locks[id(lock)] = ref(lock, self._forgotten(id(lock)))

    def stop(self) -> None:
        """Watch no import any more."""
        self._locks.clear()

    def _forgotten(self, key: int) -> Callable[[ref[Any]], None]:
        def forgotten(_: ref[Any]) -> None:
            try:
                self._locks.pop(key, None)
                self._ended()
            except KeyboardInterrupt:  # Python would print it and go on: the program meets it next
                _thread.interrupt_main()
            except BaseException as error:
                log_swallowed("looking for subclasses of targets", error)

        return forgotten
