"""Count the processors that this process may use, on Linux and elsewhere."""

import os


def processors() -> int:
    """Return how many processors this process may use: those of its affinity, where the system has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
