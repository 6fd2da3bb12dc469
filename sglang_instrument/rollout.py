"""A rollout function that only waits, so that a user can send requests to the engines and profile them.

In slime and its forks: `--rollout-function-path sglang_instrument.rollout.sleep`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final, NoReturn

from sglang_instrument.config import PREFIX
from sglang_instrument.errors import InstrumentError
from sglang_instrument.profilers.trainers import router_of
from sglang_instrument.profilers.workers import EngineWorker, workers_behind

HEARTBEAT_SEC: Final = 60.0
_LOOK_EVERY_SEC: Final = 0.5
_ROUTER_SEC: Final = 5.0


def sleep(
    args: Any = None,
    rollout_id: Any = 0,
    data_source: Any = None,
    evaluation: bool = False,
    *,
    heartbeat_sec: float | None = None,
    **others: Any,
) -> NoReturn:
    """Wait, and print every minute on stderr how to reach the engines.

    The wait ends on Ctrl-C, on a signal, when a user touches the wake file, or after
    SGLANG_INSTRUMENT_SLEEP_SEC seconds. SGLANG_INSTRUMENT_WAKE names the wake file; by default it is in a new
    folder that only this user can write to.

    Args:
        args: The trainer's arguments, which hold the router's address.
        rollout_id: The step.
        data_source: Not used; trainers pass it to every rollout function.
        evaluation: Not used.
        heartbeat_sec: Seconds between two printed lines; default SGLANG_INSTRUMENT_HEARTBEAT_SEC, else 60.
        **others: Not used.

    Raises:
        SystemExit: The wait has ended. There are no samples, so training cannot continue.
    """
    named = os.environ.get(f"{PREFIX}WAKE")
    if named:
        _wait(args, rollout_id, Path(named), heartbeat_sec)
    # A new folder: in a shared one, another user could create the file.
    with tempfile.TemporaryDirectory(prefix="sglang-instrument-") as folder:
        _wait(args, rollout_id, Path(folder) / "wake", heartbeat_sec)


def _wait(args: Any, rollout_id: Any, wake: Path, heartbeat_sec: float | None) -> NoReturn:
    begun = time.monotonic()
    longest = _seconds("SLEEP_SEC", float("inf"))
    every = heartbeat_sec or _seconds("HEARTBEAT_SEC", HEARTBEAT_SEC)
    said = -every
    waiting = threading.Event()  # signals and Ctrl-C interrupt its wait()
    while True:
        spent = time.monotonic() - begun
        if spent - said >= every:
            said = spent
            print(_heartbeat(args, rollout_id, spent, wake), file=sys.stderr, flush=True)  # noqa: T201
        if wake.exists():
            raise SystemExit(f"sglang_instrument.rollout.sleep: ended by {wake} after {spent:.0f} s")
        if spent >= longest:
            raise SystemExit(f"sglang_instrument.rollout.sleep: ended after {longest:g} s")
        waiting.wait(min(_LOOK_EVERY_SEC, every, max(0.01, longest - spent)))


def _seconds(name: str, default: float) -> float:
    try:
        return float(os.environ.get(PREFIX + name) or default)
    except ValueError:
        return default


def _heartbeat(args: Any, rollout_id: Any, spent: float, wake: Path) -> str:
    router = router_of(args)
    reach = " --router-url URL (or --worker-url URL)"
    workers: list[EngineWorker] = []
    if router is not None:
        reach = f" --router-url {router}"
        try:
            workers = workers_behind([router], timeout_sec=_ROUTER_SEC)
        except InstrumentError as error:
            reach += f" ({error})"
    urls = ", ".join(worker.url for worker in workers[:8]) + (" ..." if len(workers) > 8 else "")
    reached = f"; {len(workers)} workers: {urls}" if workers else ""
    return (
        f"sglang_instrument.rollout.sleep: rollout {rollout_id} has waited for {spent:.0f} s{reached}; "
        f"to profile: sglang-instrument profile capture{reach}; to end: touch {wake}"
    )
