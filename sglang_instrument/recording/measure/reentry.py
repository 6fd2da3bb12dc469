"""Give each block of a span object that is entered more than once a span of its own.

The object itself may still wait to be encoded, or be open in another task: only its first block changes it.
"""

from _thread import get_ident
from typing import Any, Final

from sglang_instrument.recording.measure import tasks
from sglang_instrument.recording.safety.notices import log_swallowed

#: The open spans of later blocks: by the object that was entered, and by the task or thread that entered it.
AGAIN: Final[dict[tuple[int, Any], list[Any]]] = {}
#: What a span without fields was given; `Span.given` is None before its first `add`.
NO_EXTRA: Final[dict[str, Any]] = {}


def enter_again(known: Any) -> Any:
    """Enter a new span with the event and the fields that `known` was made with; return it."""
    try:
        given = known.extra if known.given is None else known.given
        made = type(known)(known.event, given or None, known.phase)
        AGAIN.setdefault(_key(known), []).append(made)
    except BaseException as error:
        log_swallowed("entering a span again", error)
        return known
    return made.__enter__()


def left_again(known: Any, *exception: Any) -> bool:
    """End the span of this task's innermost block of `known`, unless that is its first block."""
    try:
        key = _key(known)
        open_here = AGAIN.get(key)
        if not open_here:
            return False
        later = open_here.pop()
        if not open_here:
            del AGAIN[key]
    except BaseException as error:
        log_swallowed("leaving a span", error)
        return False
    later.__exit__(*exception)
    return True


def innermost(known: Any) -> Any:
    """Return the span of this task's innermost open block of `known`."""
    open_here = AGAIN.get(_key(known))
    return open_here[-1] if open_here else known


def _key(known: Any) -> tuple[int, Any]:
    task = tasks.current(None)
    return id(known), -get_ident() if task is None else task.number
