"""Inject faults at known places, so that tests can look for them in the log."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Final

# Longer than delays on a busy machine, so that faults stand out.
SLOW_SEC: Final = 4.0
BLOCK_SEC: Final = 0.5
STRAGGLE_SEC: Final = 3.0
STARVED_SEC: Final = 2.0
DYING_SEC: Final = 4.0  # by then the others wait at the barrier, and earlier records are on disk

#: Where each fault occurs; one run can have several. In a run of one step, "step 2" means step 1.
FAULTS: Final[dict[str, str]] = {
    "slow-reward": f"step 2, worker 0: the first reward takes {SLOW_SEC} s",
    "starved-reward": f"first step, worker 0: other code blocks the loop for {STARVED_SEC} s during a reward",
    "slow-tool": f"step 2, worker 0: the first tool call takes {SLOW_SEC} s",
    "loop-block": f"step 2, worker 0: the second tool call blocks the event loop for {BLOCK_SEC} s",
    "straggler": f"step 2, last worker: every tool call takes {STRAGGLE_SEC} s longer",
    "hang": "last step, worker 0: the first tool call never returns",
    "crash": f"last step, last worker: the process kills itself {DYING_SEC} s into its first tool call",
}


class Fault:
    """The faults of one worker.

    The worker calls `begin_step` before each step; the calculator awaits `at_tool_call` and `at_reward`.
    """

    def __init__(self, planted: tuple[str, ...], *, worker: int, workers: int, steps: int) -> None:
        last_worker = worker == workers - 1
        self._planted = {
            name for name in planted if (last_worker if name in _IN_LAST_WORKER else worker == 0)
        }
        self._steps = steps
        self.begin_step(0)

    def begin_step(self, step: int) -> None:
        """Reset the counts and activate the faults of this step; step 0, a validation, has none."""
        second = min(2, self._steps)
        when = {**dict.fromkeys(_IN_FIRST_STEP, 1), **dict.fromkeys(_IN_LAST_STEP, self._steps)}
        self._active = {name for name in self._planted if step == when.get(name, second)}
        self._tool_calls = 0
        self._rewards = 0

    async def at_tool_call(self) -> None:
        """Do what the active faults do to a tool call."""
        self._tool_calls += 1
        if "straggler" in self._active:
            await pause(STRAGGLE_SEC)
        if self._tool_calls == 1:
            await self._first_tool_call()
        if self._tool_calls == 2 and "loop-block" in self._active:
            time.sleep(BLOCK_SEC)  # the fault: a coroutine that blocks the loop

    async def at_reward(self) -> None:
        """Do what the active faults do to a reward."""
        self._rewards += 1
        if self._rewards == 1 and "slow-reward" in self._active:
            await pause(SLOW_SEC)
        if self._rewards == 2 and "starved-reward" in self._active:
            asyncio.get_running_loop().call_soon(unmeasured_work)
            await asyncio.sleep(0)  # the reward itself is quick, but other code runs first

    async def _first_tool_call(self) -> None:
        if "crash" in self._active:
            await pause(DYING_SEC)
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in self._active:
            await asyncio.Event().wait()
        if "slow-tool" in self._active:
            await pause(SLOW_SEC)


async def pause(duration_sec: float) -> None:
    """Sleep for at least `duration_sec`.

    uvloop, which SGLang installs, may wake a sleeper up to 1 ms early: its timers have whole milliseconds.
    """
    end = time.perf_counter() + duration_sec
    while (left := end - time.perf_counter()) > 0:
        await asyncio.sleep(left)


def unmeasured_work() -> None:
    """Block the event loop in code without instrumentation."""
    time.sleep(STARVED_SEC)


_IN_LAST_WORKER: Final = {"straggler", "crash"}
_IN_FIRST_STEP: Final = {"starved-reward"}
_IN_LAST_STEP: Final = {"hang", "crash"}
