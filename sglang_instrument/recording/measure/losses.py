"""Count records that could not be made or kept, and log why, even if memory has run out."""

import sys
from itertools import count
from typing import Final

from sglang_instrument.recording.measure.context import CURRENT, count_dropped
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.recording.safety.notices import log_swallowed

# Not an int: a count() keeps its number in C, so it also counts where no memory is left for another int.
_dropped: Final = count()


def count_dropped_record(where: str, event: str = "") -> None:
    """Count a lost record; call it, as all functions here, while the exception is handled."""
    try:
        next(_dropped)
    except MemoryError:
        pass
    log_dropped_record(where, event)


def log_dropped_record(where: str, event: str = "") -> None:
    """Count a lost record in its step, and log why; without memory for that, do nothing."""
    reraise_if_programs_own()
    try:
        scope = CURRENT.get().scope
        if scope is not None:
            count_dropped(scope, 1)
        log_swallowed_now(f"{where} {event}" if event else where)
    except BaseException:
        reraise_if_programs_own()


def log_swallowed_now(where: str) -> None:
    """Log the error that is being handled, as `log_swallowed` does."""
    error = sys.exc_info()[1]
    try:
        if error is not None:
            log_swallowed(where, error)
    finally:
        del error  # this frame may be in its traceback: a cycle would keep the program's objects alive


def dropped_records() -> int:
    """Return how many records were lost on the threads that made them, since this process began."""
    # Only its repr shows a count() without advancing it: Python 3.12 deprecates copying one.
    return int(repr(_dropped).removeprefix("count(").removesuffix(")"))
