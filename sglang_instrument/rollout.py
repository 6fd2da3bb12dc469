"""Roll out nothing: wait, so that a person can send requests to the engines, and profile them.

In slime and its kin: `--rollout-function-path sglang_instrument.rollout.sleep`.
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
from sglang_instrument.profiling.engines import router_of
from sglang_instrument.profiling.workers import Worker, workers_behind

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
    """Wait until somebody ends it, and say every minute, on stderr, how to reach the engines.

    It ends by Ctrl-C, by a signal, by a file, which a person touches where no key can be pressed, or after
    SGLANG_INSTRUMENT_SLEEP_SEC seconds. SGLANG_INSTRUMENT_WAKE names the file; else it is one in a new folder
    that this user alone can write to.

    Args:
        args: The trainer's, with the router's address.
        rollout_id: The step; data_source, evaluation, others: what else a trainer gives a rollout function.
        data_source: As above.
        evaluation: As above.
        heartbeat_sec: Between two lines; SGLANG_INSTRUMENT_HEARTBEAT_SEC, or a minute.
        **others: As above.

    Raises:
        SystemExit: It was woken: nothing was rolled out, so that the training has nothing to go on with.
    """
    named = os.environ.get(f"{PREFIX}WAKE")
    if named:
        _wait(args, rollout_id, Path(named), heartbeat_sec)
    # A folder of its own, where nobody but its user can make the file.
    with tempfile.TemporaryDirectory(prefix="sglang-instrument-") as own:
        _wait(args, rollout_id, Path(own) / "wake", heartbeat_sec)


def _wait(args: Any, rollout_id: Any, wake: Path, heartbeat_sec: float | None) -> NoReturn:
    begun = time.monotonic()
    longest = _seconds("SLEEP_SEC", float("inf"))
    every = heartbeat_sec or _seconds("HEARTBEAT_SEC", HEARTBEAT_SEC)
    said = -every
    waiting = threading.Event()  # its wait() is ended by signals, and by Ctrl-C
    while True:
        spent = time.monotonic() - begun
        if spent - said >= every:
            said = spent
            print(_heartbeat(args, rollout_id, spent, wake), file=sys.stderr, flush=True)  # noqa: T201
        if wake.exists():
            raise SystemExit(f"sglang_instrument.rollout.sleep: woken by {wake} after {spent:.0f} s")
        if spent >= longest:
            raise SystemExit(f"sglang_instrument.rollout.sleep: {longest:g} s are over")
        waiting.wait(min(_LOOK_EVERY_SEC, every, max(0.01, longest - spent)))


def _seconds(name: str, default: float) -> float:
    try:
        return float(os.environ.get(PREFIX + name) or default)
    except ValueError:
        return default


def _heartbeat(args: Any, rollout_id: Any, spent: float, wake: Path) -> str:
    router = router_of(args)
    reach = "; --router-url or --worker-url says where they are"
    found: list[Worker] = []
    if router is not None:
        reach = f" --router-url {router}"
        try:
            found = workers_behind([router], timeout_sec=_ROUTER_SEC)
        except InstrumentError as error:
            reach += f" ({error})"
    urls = ", ".join(worker.url for worker in found[:8]) + (" ..." if len(found) > 8 else "")
    there = f"; {len(found)} workers: {urls}" if found else ""
    return (
        f"sglang_instrument.rollout.sleep: rollout {rollout_id} waits since {spent:.0f} s{there}; "
        f"sglang-instrument profile capture{reach}; to end it: touch {wake}"
    )
