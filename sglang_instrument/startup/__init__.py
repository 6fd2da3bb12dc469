"""Switch instrumentation on and off, and reach every process that a rollout starts."""

TYPE_CHECKING = False  # importing it from typing takes longer than the start-up hook may
if TYPE_CHECKING:
    from typing import Any


def carried(function: "Any", ids: "dict[str, Any]") -> "Any":
    """Return a function that another process has sent, to be run under the ids that were bound there.

    A task unpickles by this function, because each process that records, or waits to, has loaded this module.
    """
    from sglang_instrument.startup.carried_task import CarriedTask

    return CarriedTask(function, ids)
