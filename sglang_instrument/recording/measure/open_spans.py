"""Track the open watched spans, so that other threads can say what is open, and what never ends."""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from sglang_instrument.recording.measure.values import first_entries
from sglang_instrument.recording.safety.notices import log_swallowed

#: The open watched spans, each by its id().
OPEN: Final[dict[int, Any]] = {}
#: Spans that are copied, and looked at, while other threads wait for the GIL.
PART: Final = 250
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


def in_parts(newest_first: bool = False) -> Iterator[list[Any]]:
    """Yield the open spans in parts, in the order in which they were entered, and give up the GIL after each.

    A span that ends between two parts shifts the next ones, so that one of them is left out.
    """
    done = 0
    while part := _part(done, newest_first):
        yield part
        done += len(part)
        time.sleep(0)


def _part(done: int, newest_first: bool) -> list[Any]:
    # To pass over the spans of earlier parts is fast: they are in the processor's cache.
    ordered: Callable[[Any], Iterator[Any]] = reversed if newest_first else iter
    return first_entries(PART, lambda: islice(ordered(OPEN.values()), done, None))
