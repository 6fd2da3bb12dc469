"""Start processes of ours with this interpreter: they read logs, and must not write one."""

import contextlib
import os
from pathlib import Path

from sglang_instrument.config import FollowerPriority


def environment(**more: str) -> dict[str, str]:
    """Return the environment of such a process, which imports this same package."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1", "SGLANG_INSTRUMENT": "0"}
    return {**os.environ, **ours, **more}


def yield_to_training(priority: FollowerPriority = "idle") -> None:
    """Give this process, and those that it starts, a priority below the training's.

    On two cores, a process of the lowest priority (nice 19) slows the training's own processes down that wake
    up on its core; one of the scheduling class SCHED_IDLE leaves at once, and its core counts as idle.

    Args:
        priority: "idle": runs only where nothing else wants to; "low": nice 19, which gets a small share of a
            host whose cores are always busy; "normal": that of any process.
    """
    if priority == "normal":
        return
    os.nice(19)  # also where the class is refused, or where there is none: only Linux has it
    if priority == "idle" and hasattr(os, "sched_setscheduler"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
