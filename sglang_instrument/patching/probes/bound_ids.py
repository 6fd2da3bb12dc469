"""Read the ids that are bound where a region begins, for the roots `bound` and `latest` of fields."""

from typing import Any

from sglang_instrument.patching.tables.field_functions import Unreadable
from sglang_instrument.recording.measure.context import CURRENT
from sglang_instrument.recording.measure.scopes import scopes


def bound(name: str) -> Any:
    """Return the bound id `name` when the region begins.

    Raises:
        Unreadable: The id is not bound.
    """
    value = getattr(CURRENT.get(), name)
    if value is None:
        raise Unreadable(f"no {name} is bound")
    return value


def latest(name: str) -> int:
    """Return the newest training step that this process has bound, in any task; `name` is "step".

    Requests of a loop that outlives the step in which it began belong to the step that goes on now.

    Raises:
        Unreadable: No step has been bound.
    """
    steps = [
        scope.step for scope in scopes() if scope.bound and scope.step is not None and not scope.validate
    ]
    if not steps:
        raise Unreadable(f"no {name} has been bound")
    return max(steps)
