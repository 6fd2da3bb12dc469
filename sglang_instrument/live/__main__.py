"""Follow a run: `python -m sglang_instrument.live LOGS` writes the numbers of each step once it is finished.

`install(scalars=True)` starts this process beside the training, with the priority of the setting
`follower_priority`. It reads the run's files and appends a line a step to `LOGS/live/scalars.jsonl`. It ends
with the process that started it.
"""

import argparse
import contextlib
import fcntl
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, get_args

import msgspec

from sglang_instrument.config import FollowerPriority
from sglang_instrument.errors import InstrumentError
from sglang_instrument.extras import install_extra
from sglang_instrument.live.children import yield_to_training
from sglang_instrument.safe_files.folder import SafeFolder, write_whole

_LOOK_SEC: Final = 0.3
_FINISH_SEC: Final = 30.0  # for the last step, once the driver has ended: other jobs may have the cores
_LOCK_SEC: Final = 90.0  # an earlier follower may take twice _FINISH_SEC to end
_AFTER_FAILURE_SEC: Final = 5.0


class ScalarsLine(msgspec.Struct, omit_defaults=True):
    """A line of `scalars.jsonl`. A step that went on gets another line: its last one counts.

    `failed` says why the follower failed, instead of numbers.
    """

    run_id: str
    step: int | None = None
    scalars: dict[str, float] = {}
    failed: str = ""


def main(arguments: list[str] | None = None) -> int:
    """Follow a run until the process that is its driver ends; return the exit code."""
    given = _parsed(arguments)
    folder = Path(given.logs)
    is_alive = _alive_check(given.driver) if given.driver else lambda: True
    terminated = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())  # `uninstall()` ends us: after a last look

    def is_wanted() -> bool:
        return is_alive() and not terminated.is_set()

    if given.driver:
        yield_to_training(given.priority)
    try:
        _ours(folder).make()
        with _ours(folder).changing("lock") as lock:
            if _is_mine(lock, is_wanted):
                follow(folder, given.run, is_wanted)
            elif is_wanted():
                _say(folder, given.run, "the follower of another run that logs there holds live/lock")
    except KeyboardInterrupt:
        return 0
    except ModuleNotFoundError as missing:
        _say(folder, given.run, f"{missing}: {install_extra('analysis')}")
        return 2
    except (OSError, ImportError, InstrumentError) as error:
        _say(folder, given.run, str(error) if isinstance(error, InstrumentError) else repr(error))
        return 2
    return 0


def follow(folder: Path, run_id: str | None, is_wanted: Callable[[], bool]) -> None:
    """Write the numbers of each finished step of a run, until the run is not wanted any more.

    Args:
        folder: The run's folder.
        run_id: Write only those of this run; None: of the newest one that writes to the folder.
        is_wanted: Whether to go on; called after each look at the folder.
    """
    from sglang_instrument.live.follower import Follower

    if importlib.util.find_spec("polars") is None:  # imported by the follower's own process only
        raise ModuleNotFoundError("No module named 'polars'")
    follower = Follower(folder, run_id, with_now=False)
    written: dict[int, dict[str, float]] = {}
    has_failed = False
    follower.start()
    try:
        while True:
            is_last, pause = not is_wanted(), _LOOK_SEC
            snapshot = follower.finish(_FINISH_SEC) if is_last else follower.snapshot()
            failures = [problem.sentence for problem in snapshot.problems]
            done = {step.step: step for step in snapshot.done if not step.validate}
            written = {step: numbers for step, numbers in written.items() if step in done}
            for step, done_step in done.items():
                try:
                    if written.get(step) != done_step.scalars:
                        _append(folder, ScalarsLine(done_step.run_id or "", step, dict(done_step.scalars)))
                        written[step] = dict(done_step.scalars)
                except OSError as error:  # the disk may recover
                    failures.append(repr(error))
                    pause = _AFTER_FAILURE_SEC
            if failures and not has_failed:
                has_failed = True
                _say(folder, run_id, failures[0])
            if is_last:
                return
            time.sleep(pause)
    finally:
        follower.stop()


def _say(folder: Path, run_id: str | None, why: str) -> None:
    """Say why the follower failed: on stderr, and through the file to the training."""
    print(f"sglang_instrument.live: {why}", file=sys.stderr)  # noqa: T201 - a program's message
    with contextlib.suppress(OSError):  # the file may be what failed
        _append(folder, ScalarsLine(run_id or "", failed=why))


def _append(folder: Path, line: ScalarsLine) -> None:
    """Append a line; the last one may be torn, by a kill or a full disk: end it first."""
    with _ours(folder).changing("scalars.jsonl", append=True) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        end = b"" if file.read(1) in (b"", b"\n") else b"\n"
        write_whole(file, end + msgspec.json.encode(line) + b"\n")


def _ours(folder: Path) -> SafeFolder:
    return SafeFolder(folder, ("live",))


def _is_mine(lock: IO[bytes], is_wanted: Callable[[], bool]) -> bool:
    """Return whether this process is the folder's follower; two would write each step twice.

    It waits: the follower of an earlier launch ends within a minute after its driver.
    """
    ends = time.monotonic() + _LOCK_SEC
    while is_wanted() and time.monotonic() < ends:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_SEC)
        except OSError:  # a file system without locks: at worst, each step gets two lines
            return True
        else:
            return True
    return False


def _alive_check(driver: int) -> Callable[[], bool]:
    """Return a function that says whether the process with this number still runs.

    A later process may get the same number, but it begins at another time. It is asked of the kernel, because
    a pipe from the driver would be inherited by its other children, which may live on.
    """
    begin = _begin_of(driver)
    return lambda: begin is not None and _begin_of(driver) == begin


def _begin_of(pid: int) -> bytes | None:
    """Return when a process began, in ticks since the host did; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19]


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m sglang_instrument.live", description=__doc__)
    parser.add_argument("logs", metavar="LOGS", help="the run's folder")
    parser.add_argument("--run", help="id of the run; default: the newest one in the folder")
    priorities = get_args(FollowerPriority)
    parser.add_argument("--priority", choices=priorities, default="idle", help="with --driver (idle)")
    parser.add_argument("--driver", type=int, help="number of the process to end with")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
