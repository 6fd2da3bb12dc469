"""Stop and continue the processes that watch a run: `watch` in a terminal, the follower of its tracker."""

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROUNDS_SEC = 2.0  # a follower that looks at the run has begun


def start(logs):
    """Show a run in a terminal of its own; return once it and the follower of the tracker look at it."""
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-c",
        "from sglang_instrument.cli.main import main; main()",
        "watch",
        str(logs),
    ]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    threading.Thread(target=_read_all, args=(ours,), daemon=True).start()
    until = time.monotonic() + 60
    while len(names := [name for name, _ in _watching(logs)]) < 3:  # with the process that analyses steps
        assert time.monotonic() < until, f"only these watch: {names}"
        time.sleep(0.1)
    time.sleep(ROUNDS_SEC)


def let_run(logs, on):
    """Let everything that watches a run go on, or stop it."""
    watchers = _watching(logs)
    assert len(watchers) >= 3, watchers
    for _, pid in watchers:
        os.kill(pid, signal.SIGCONT if on else signal.SIGSTOP)


def end(logs):
    """End everything that watches a run."""
    for _, pid in _watching(logs):
        os.kill(pid, signal.SIGKILL)


def cpu_sec(logs):
    """Return the processor time of everything that watches a run, in seconds."""
    ticks = 0
    for _, pid in _watching(logs):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _watching(logs):
    """Return (command, process) of those that name the run's folder."""
    watchers = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if str(logs) in words and int(path.parent.name) != os.getpid():
            watchers.append((" ".join(words)[:80], int(path.parent.name)))
    return watchers


def _read_all(descriptor):
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:
        pass
