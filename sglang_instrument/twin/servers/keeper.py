"""Run a server for as long as the twin lives: `python keeper.py COMMAND ...`, with a pipe as stdin.

The twin holds the other end. When it closes, which it does after SIGKILL of the twin, too, all processes of
the server are ended, also those that left its process group. It imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER of linux/prctl.h
_LOOK_EVERY_SEC = 0.2
_GRACE_SEC = 10.0  # after SIGTERM


def main(command: list[str]) -> int:
    """Run a command until it ends or the pipe closes; return its exit status."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0)  # orphans of the server become children of this process
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    process = subprocess.Popen(  # noqa: S603 - the command that a person gave to the twin
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        # If this process is killed itself, the server's first process dies with it, and SGLang's others too.
        preexec_fn=lambda: libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509 - no thread yet
    )

    def wait_for_end() -> None:
        while os.read(0, 4096):
            pass
        is_over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    while process.poll() is None and not is_over.wait(_LOOK_EVERY_SEC):
        pass
    end(process)
    return process.returncode or 0


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: by SIGTERM, then by SIGKILL."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SEC)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while children := descendants(os.getpid()):
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)


def descendants(process: int) -> list[int]:
    """Return the ids of all processes below one, without those that ended."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    below, waiting = [], [process]
    while waiting:
        started = children.get(waiting.pop(), [])
        below += started
        waiting += started
    return below


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
