"""Run one worker of the demo on the real engine, with a plant: `real_plants.py` starts it and says which."""

import asyncio
import json
import re
import sys
import threading
import time

from sglang_instrument.demo import engine, faults, worker
from sglang_instrument.demo.options import DemoOptions, WorkerOrder

STEP, WORKER = 4, 1  # of what happens in one step of one worker
LATE_SEC, LOCK_SEC, SLOW_SEC, POOLED_SEC = 8.0, 8.0, 5.0, 1.0
LONG = 900_000_000  # numbers that are added up in one call, which holds the interpreter's lock
PATTERN, TEXT = re.compile(r"(a|aa)+$"), "a" * 38 + "b"
_lock = threading.Lock()


class PlantedFault(faults.Fault):
    """A fault of the demo that is none of its own: what is planted in this worker."""

    plant = ""
    rank = 0

    def begin_step(self, step):
        """Begin late, if that is the plant."""
        super().begin_step(step)
        self._step, self._planted_once = step, False
        self._pool = asyncio.Semaphore(1)
        if self._is_here("late start"):
            time.sleep(LATE_SEC)

    async def at_tool_call(self):
        """Take longer, or wait for the only place."""
        if self._is_here("slow tool"):
            await faults.pause(SLOW_SEC)
        if self.plant == "pool of 1" and self.rank == WORKER and self._step >= STEP:
            async with self._pool:
                await faults.pause(POOLED_SEC)

    async def at_reward(self):
        """Hold the event loop in one of three ways, once in the step."""
        if self._planted_once:
            return
        self._planted_once = True
        if self._is_here("regex"):
            graded_by_pattern(TEXT)
        if self._is_here("lock"):
            wait_for_the_lock()
        if self._is_here("interpreter lock"):
            threading.Thread(target=add_up_in_one_call).start()

    def _is_here(self, plant):
        return self.plant == plant and self._step == STEP and self.rank == WORKER


def graded_by_pattern(text):
    """Match a pattern that takes exponentially long."""
    return PATTERN.match(text) is not None


def wait_for_the_lock():
    """Wait, in the event loop, for a lock that a thread holds."""
    holder = threading.Thread(target=_hold_the_lock)
    holder.start()
    time.sleep(0.05)
    with _lock:
        pass


def _hold_the_lock():
    with _lock:
        time.sleep(LOCK_SEC)


def add_up_in_one_call():
    """Hold the interpreter's lock, in a thread beside the event loop."""
    return sum(range(LONG))


def main():
    """Plant, then run the worker."""
    plant, order = sys.argv[1], json.loads(sys.argv[2])
    PlantedFault.plant, PlantedFault.rank = plant, order["rank"]
    faults.Fault = PlantedFault
    if order["rank"] == WORKER and plant == "running limit of 1":
        engine.MAX_RUNNING_REQUESTS = 1
    if order["rank"] == WORKER and plant == "small key-value cache":
        engine.MAX_TOTAL_TOKENS = 700
    worker.main(WorkerOrder(**{**order, "run": DemoOptions(**order["run"])}))


if __name__ == "__main__":
    main()
