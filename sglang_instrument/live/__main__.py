"""Follow a run: `python -m sglang_instrument.live LOGS` writes the numbers of each step once it is whole.

`install(scalars=True)` starts this process beside the training, with the lowest priority. It reads the run's
files and appends a line a step to `LOGS/live/scalars.jsonl`. It ends with the process that started it.
"""

import argparse
import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import msgspec

from sglang_instrument.errors import InstrumentError

_LOOK_SEC: Final = 0.3
_LOOK_SHARE: Final = 0.05  # looking takes at most this share of the time: a run may have 1,000 files a step
_AGAIN_SHARE: Final = 0.1  # and so does reading a step again that went on after its end
_LOCK_SEC: Final = 10.0
_AFTER_FAILURE_SEC: Final = 5.0
_CLOCKS_SEC: Final = 60.0  # by how much the clock of a file server may be behind


class Told(msgspec.Struct, omit_defaults=True):
    """A line of `scalars.jsonl`. A step that went on is told again: its last line counts.

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
    is_wanted = _lives(given.driver) if given.driver else lambda: True
    if given.driver:
        os.nice(19)
    try:
        (folder / "live").mkdir(parents=True, exist_ok=True)
        with (folder / "live" / "lock").open("ab") as lock:
            if _is_mine(lock, is_wanted):
                follow(folder, given.run, is_wanted)
    except KeyboardInterrupt:
        return 0
    except ModuleNotFoundError as missing:
        _say(folder, given.run, InstrumentError(f"{missing}: pip install 'sglang-instrument[analysis]'"))
        return 2
    except (OSError, ImportError, InstrumentError) as error:
        _say(folder, given.run, error)
        return 2
    return 0


def follow(folder: Path, run_id: str | None, is_wanted: Callable[[], bool]) -> None:
    """Tell the numbers of each step of a run, until the run is not wanted any more.

    Args:
        folder: The run's folder.
        run_id: Tell only of this run; None: of all that write to the folder.
        is_wanted: Whether to go on; called after each look at the folder.
    """
    from sglang_instrument.live import scalars  # noqa: F401 - a missing package ends the follower here
    from sglang_instrument.live.finished_steps import FinishedSteps

    since = 0.0 if run_id is None else time.time() - _CLOCKS_SEC
    finished = FinishedSteps(folder, int(since * 1e9))
    again_at: dict[int, float] = {}  # a step that goes on and on is not read all of the time
    has_failed = False
    while True:
        begun = time.monotonic()
        found = finished.look()
        pause = max(_LOOK_SEC, (time.monotonic() - begun) / _LOOK_SHARE)
        for step in found:
            begun = time.monotonic()
            if begun < again_at.get(step, 0.0):
                finished.forget(step)
                continue
            try:
                _tell(folder, step, run_id)
            except Exception as error:  # one step that cannot be read must not cost the others
                if not has_failed:
                    _say(folder, run_id, error)
                has_failed = True
                if isinstance(error, OSError):  # the disk may recover
                    finished.forget(step)
                    pause = _AFTER_FAILURE_SEC
            now = time.monotonic()
            again_at[step] = now + (now - begun) / _AGAIN_SHARE
        if not is_wanted():
            return
        time.sleep(pause)


def _tell(folder: Path, step: int, run_id: str | None) -> None:
    from sglang_instrument.analysis.reading.files import newest_runs
    from sglang_instrument.live.scalars import open_step, scalars_of

    run = open_step(folder, step)
    newest = newest_runs(run.files).get(f"step_{step}")
    numbers = scalars_of(run, step) if run_id in (None, newest) else {}
    if numbers:
        _append(folder, Told(newest or "", step, numbers))


def _say(folder: Path, run_id: str | None, error: Exception) -> None:
    """Say why the follower failed, to who started it and, by the file, to the training."""
    text = str(error) if isinstance(error, InstrumentError) else repr(error)
    print(f"sglang_instrument.live: {text}", file=sys.stderr)  # noqa: T201 - a program's message
    with contextlib.suppress(OSError):  # the file may be what failed
        _append(folder, Told(run_id or "", failed=text))


def _append(folder: Path, told: Told) -> None:
    """Append a line; the last one may be torn, by a kill or a full disk: end it first."""
    with (folder / "live" / "scalars.jsonl").open("a+b", buffering=0) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        end = b"" if file.read(1) in (b"", b"\n") else b"\n"
        file.write(end + msgspec.json.encode(told) + b"\n")


def _is_mine(lock: IO[bytes], is_wanted: Callable[[], bool]) -> bool:
    """Return whether this process is the folder's follower; two would tell each step twice.

    It waits a moment: the follower of an earlier launch ends within a second after its driver.
    """
    ends = time.monotonic() + _LOCK_SEC
    while is_wanted() and time.monotonic() < ends:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_SEC)
        except OSError:  # a file system without locks: nothing worse than each step told twice
            return True
        else:
            return True
    return False


def _lives(driver: int) -> Callable[[], bool]:
    """Return a function that says whether the process with this number still runs.

    Its begin tells it from a later process with its number. It is asked of the kernel, because a pipe from
    the driver would be inherited by its other children, which may live on.
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
    parser.add_argument("--run", help="id of the run; default: every run that writes to the folder")
    parser.add_argument("--driver", type=int, help="number of the process to end with")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
