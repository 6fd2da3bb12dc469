"""Start processes of ours with this interpreter: they read logs, and must not write one."""

import contextlib
import os
from pathlib import Path


def environment(**more: str) -> dict[str, str]:
    """Return the environment of such a process, which imports this same package."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1", "SGLANG_INSTRUMENT": "0"}
    return {**os.environ, **ours, **more}


def yield_to_training() -> None:
    """Let this process run only where nothing else wants to.

    On two cores, a process of the lowest priority (nice 19) slows the training's own processes down that wake
    up on its core; one of this scheduling class leaves at once, and its core counts as idle.
    """
    os.nice(19)  # where the class is refused
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
