"""Know the watched spans that are open, so that one which never ends can be reported."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument import native
from sglang_instrument.recording.notices import swallowed

#: What stands for each of them, by id() of the span that was entered.
OPEN: Final[dict[int, Any]] = {}
_first_opened: Callable[[], object] = int  # the writer's; int() does nothing
_all_closed: Callable[[], object] = int


def watch(on_first_opened: Callable[[], object], on_all_closed: Callable[[], object]) -> None:
    """Call the first when a span is opened while none is, the second when the last one is closed."""
    global _first_opened, _all_closed
    _first_opened, _all_closed = on_first_opened, on_all_closed


def note_open(entered: Any, known: Any) -> None:
    """Let `known` be among the open spans until the one that was entered is left."""
    try:
        if not OPEN:
            _first_opened()
        entered.place = id(entered)
        OPEN[entered.place] = known
    except BaseException as error:
        swallowed("watching a span", error)


def note_closed(left: Any) -> None:
    """Let what stood for this span be among the open ones no more."""
    try:
        OPEN.pop(left.place, None)
        if not OPEN:
            _all_closed()
    except BaseException as error:
        swallowed("watching a span", error)


if not TYPE_CHECKING and native.ON:
    from sglang_instrument.native import spans as compiled

    OPEN = compiled.open_spans
