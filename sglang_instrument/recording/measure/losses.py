"""Count records that could not be made or kept, and log why, even if memory has run out."""

import sys
from itertools import count
from typing import Final

from sglang_instrument.recording.measure.context import CURRENT, count_dropped
from sglang_instrument.recording.safety.guard import let_through
from sglang_instrument.recording.safety.notices import swallowed

# Not an int: a count() keeps its number in C, so it also counts where no memory is left for another int.
_lost: Final = count()


def count_lost(where: str, event: str = "") -> None:
    """Count a lost record; call it, as all functions here, while the exception is handled."""
    try:
        next(_lost)
    except MemoryError:
        pass
    note_lost(where, event)


def note_lost(where: str, event: str = "") -> None:
    """Count a lost record in its step, and log why; without memory for that, do nothing."""
    let_through()
    try:
        scope = CURRENT.get().scope
        if scope is not None:
            count_dropped(scope, 1)
        swallowed_now(f"{where} {event}" if event else where)
    except BaseException:
        let_through()


def swallowed_now(where: str) -> None:
    """Log the error that is being handled, as `swallowed` does."""
    error = sys.exc_info()[1]
    if error is not None:
        swallowed(where, error)


def lost() -> int:
    """Return how many records were lost on the threads that made them, since this process began."""
    # Only its repr shows a count() without advancing it: Python 3.12 deprecates copying one.
    return int(repr(_lost).removeprefix("count(").removesuffix(")"))
