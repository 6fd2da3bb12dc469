"""Count records that could not be made or kept, and say why, where there may be no memory for that."""

import sys
from itertools import count
from typing import Final

from sglang_instrument import native
from sglang_instrument.recording.measure.context import CURRENT, count_dropped
from sglang_instrument.recording.safety.guard import let_through
from sglang_instrument.recording.safety.notices import swallowed

_lost: Final = count()  # goes on even where there is no memory for the next number


def count_lost(where: str, event: str = "") -> None:
    """Count a lost record; called while the reason is handled, as everything here."""
    try:
        next(_lost)
    except MemoryError:
        pass
    note_lost(where, event)


def note_lost(where: str, event: str = "") -> None:
    """Count a lost record in its step, and say why; there may be no memory even for that."""
    let_through()
    try:
        scope = CURRENT.get().scope
        if scope is not None:
            count_dropped(scope, 1)
        swallowed_now(f"{where} {event}" if event else where)
    except BaseException:
        let_through()


def swallowed_now(where: str) -> None:
    """Note the error that is being handled, as `swallowed` does."""
    error = sys.exc_info()[1]
    if error is not None:
        swallowed(where, error)


def lost() -> int:
    """Return how many records were lost on the threads that made them, since this process began."""
    return int(repr(_lost)[len("count(") : -1])


native.take_over(globals(), "spans", "lost")  # compiled, the number takes no memory
