"""Start the follower, `python -m sglang_instrument.live`: a process that ends with this one."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

from sglang_instrument.recording.safety.notices import notice
from sglang_instrument.recording.safety.unpatched import RLock, Thread

_MODULE: Final = "sglang_instrument.live"
#: The shell ends at once, so that the follower is no child of the trainer: a trainer may wait for all of its
#: children, and a handler of SIGCHLD would see the follower's end. It prints the follower's process id.
_DETACHED: Final = '"$@" </dev/null >/dev/null 2>&1 & echo $!'
_START_SEC: Final = 60.0  # on a busy machine; nothing waits for it
_INSTALLED: Final = ("site-packages", "dist-packages")


class FollowerProcess:
    """A follower of a run, from `start` until `stop` or the end of this process.

    Args:
        folder: The run's folder.
        run_id: Id of this launch.
        priority: Its priority: the setting `follower_priority`.
    """

    def __init__(self, folder: Path, run_id: str, priority: str = "idle") -> None:
        options = (f"--run={run_id}", f"--driver={os.getpid()}", f"--priority={priority}")
        self._command = [sys.executable, "-m", _MODULE, str(folder), *options]
        self._lock = RLock()
        self._pid: int | None = None
        self._stopped = False

    def start(self) -> None:
        """Start it from a thread of its own: training does not wait for a program to be read from a disk."""
        environment = environment_of_follower()  # read here: another thread may change it later
        starts = Thread(partial(self._start, environment), "sglang_instrument-follower")
        try:
            starts.start()
        except (RuntimeError, MemoryError) as error:
            self._complain(error)

    def stop(self) -> None:
        """End it."""
        with self._lock:
            self._stopped = True
            if self._pid is not None:
                _end(self._pid)

    def _start(self, environment: dict[str, str]) -> None:
        try:
            if not sys.executable:
                raise OSError("this Python does not know its own program")
            shell = ["/bin/sh", "-c", _DETACHED, "sh", *self._command]
            # Elsewhere than on the disk of the logs: entering a folder of a disk that hangs would hang us.
            done = subprocess.run(  # noqa: S603 - our own module
                shell,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                start_new_session=True,
                timeout=_START_SEC,
                check=False,
            )
            with self._lock:
                self._pid = int(done.stdout)
                if self._stopped:
                    _end(self._pid)
        except Exception as error:
            self._complain(error)

    def _complain(self, error: BaseException) -> None:
        notice("scalars: start", f"the follower cannot be started, so the tracker gets no numbers: {error!r}")


def environment_of_follower() -> dict[str, str]:
    """Return this process's environment without our settings, so that the follower records nothing."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SGLANG_INSTRUMENT")
    }
    environment |= {"PYTHONSAFEPATH": "1", "POLARS_MAX_THREADS": "1"}
    home = Path(__file__).parents[2]
    if home.name not in _INSTALLED:  # a checkout or a zip file, which this process found in its own way
        environment["PYTHONPATH"] = os.pathsep.join(
            path for path in (environment.get("PYTHONPATH"), str(home)) if path
        )
    return environment


def _end(pid: int) -> None:
    """End a follower; its number may belong to another process by now."""
    try:
        if _MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGTERM)
    except OSError:  # it has ended
        pass
