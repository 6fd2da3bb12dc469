"""Plant how a run or a file ends early: hangs, deaths, torn lines."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sglang_instrument.testing.causes.base import OneWorkerCause
from sglang_instrument.testing.causes.kill import kill_worker
from sglang_instrument.testing.simulation.plan import StepPlan
from sglang_instrument.testing.simulation.workload import TOOLS

_OVER_SEC: Final = 600.0  # so old are the files of a run that is over


@dataclass(frozen=True)
class Hang(OneWorkerCause):
    """In `step` one tool of `worker` never returns; it is the last step, and no worker passes the barrier."""

    cause = "hang"

    def plant(self, plan: StepPlan) -> None:
        """Let the request with the most turns hang in its first tool call."""
        requests = plan.workers[self.worker].requests
        request = max(requests, key=lambda request: len(request.turns))
        request.turns[0].tools = [(TOOLS[0], 0.0)]
        request.hangs = True


@dataclass(frozen=True)
class Death(OneWorkerCause):
    """`worker` is killed in `step` after `share` of its way to the barrier, the others `ahead_sec` later."""

    share: float = 0.5
    ahead_sec: float = 10.0
    cause = "death"
    size = "ahead_sec"

    def damage(self, folder: Path) -> None:
        """Cut the files as dying workers leave them."""
        kill_worker(folder, self.step, self.worker, self.share, self.ahead_sec)
        long_ago = time.time() - _OVER_SEC  # a run whose files still change is not over
        for path in folder.rglob("*.jsonl"):
            os.utime(path, (long_ago, long_ago))


@dataclass(frozen=True)
class TornFile(OneWorkerCause):
    """The last `cut_bytes` of the file of `worker` in `step` are missing, as after a kill.

    40 of them tear its `log_closed`, 200 its `step_closed`.
    """

    cut_bytes: int = 40
    cause = ""  # no finding: `check` names the damaged file
    size = "cut_bytes"

    def damage(self, folder: Path) -> None:
        """Cut the end of the file."""
        path = self.log(folder)
        path.write_bytes(path.read_bytes()[: -self.cut_bytes])
