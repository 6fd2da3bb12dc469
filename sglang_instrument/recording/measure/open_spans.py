"""Track the open watched spans, so that the watchdog can report one that never ends."""

import sys
from collections.abc import Callable
from typing import Any, Final

from sglang_instrument.recording.safety.notices import log_swallowed

#: The open watched spans, each by its id().
OPEN: Final[dict[int, Any]] = {}
# References to a span that only OPEN holds, in `drop_interrupted`: of OPEN, the list, the variable, the call.
_UNHELD: Final = 4
_first_opened: Callable[[], object] | None = None  # the writer sets both
_all_closed: Callable[[], object] | None = None


def watch(on_first_opened: Callable[[], object] | None, on_all_closed: Callable[[], object] | None) -> None:
    """Call the first when a span is opened while none is, the second when the last one is closed."""
    global _first_opened, _all_closed
    _first_opened, _all_closed = on_first_opened, on_all_closed


def note_open(entered: Any) -> None:
    """Add a span to the open ones."""
    try:
        if not OPEN and _first_opened is not None:
            _first_opened()
        entered.open_key = id(entered)
        OPEN[entered.open_key] = entered
    except BaseException as error:
        log_swallowed("watching a span", error)


def note_closed(left: Any) -> None:
    """Remove a span from the open ones."""
    try:
        OPEN.pop(left.open_key, None)
        if not OPEN and _all_closed is not None:
            _all_closed()
    except BaseException as error:
        log_swallowed("watching a span", error)


def drop_interrupted() -> None:
    """Remove spans that no block holds: an exception interrupted the end of their block."""
    for entered in list(OPEN.values()):
        if sys.getrefcount(entered) <= _UNHELD:
            note_closed(entered)
