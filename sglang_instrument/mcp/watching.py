"""Follow a run until something is wrong with it, or the time is over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.run.logged_runs import split_run_id
from sglang_instrument.errors import InstrumentError
from sglang_instrument.live.follower import Follower
from sglang_instrument.live.state import Snapshot
from sglang_instrument.live.state import as_json as plain_values

#: What may be waited for: a kind of problem, any of them, or the end of the step in progress.
AWAITED: Final = ("any", "hang", "death", "step_end", "run_end")
LONGEST_SEC: Final = 600.0
_ROUND_SEC: Final = 0.2


def watch_until(path: str, problem: str, timeout_sec: float) -> dict[str, Any]:
    """Return the state of a run, and whether what was waited for came.

    Args:
        path: The run, as the commands take it.
        problem: One of `AWAITED`.
        timeout_sec: How long to wait at most.

    Raises:
        InstrumentError: It waits for something else, or for too long.
    """
    if problem not in AWAITED:
        raise InstrumentError(f"problem must be one of {', '.join(AWAITED)}, got {problem[:40]!r}")
    if not 0 < timeout_sec <= LONGEST_SEC:
        raise InstrumentError(
            f"timeout_sec must be over 0 and at most {LONGEST_SEC:.0f}; call again after it"
        )
    ends = time.monotonic() + timeout_sec
    follower = Follower(*split_run_id(Path(path)))
    try:
        now = first = follower.catch_up(timeout_sec)
        follower.start()
        while not (came := _came(problem, first, now)) and time.monotonic() < ends:
            time.sleep(min(_ROUND_SEC, max(0.0, ends - time.monotonic())))
            now = follower.snapshot()
    finally:
        follower.stop()
    return {"came": came, "waited_for": problem, **plain_values(now)}


def _came(problem: str, first: Snapshot, now: Snapshot) -> bool:
    if problem == "step_end":
        return _step(now) != _step(first) or (now.step is not None and now.step.is_over)
    if problem == "run_end":
        return now.ended is not None
    return any(problem in ("any", each.kind) for each in now.problems)


def _step(snapshot: Snapshot) -> int | None:
    return None if snapshot.step is None else snapshot.step.step
