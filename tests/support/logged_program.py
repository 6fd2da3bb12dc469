"""Run a program that may log to the run `folder/run`, in a clean environment, to its end."""

import os
import subprocess
from pathlib import Path

from own_group import run_in_group

ROOT = Path(__file__).parents[2]
KEPT = ("PATH", "HOME", "LANG")


def run_logged(command, folder, *, limit_sec, paths=(), hook=True, **variables):
    """Run a command; return what it printed, as `subprocess.run` does.

    Args:
        command: The program and its arguments. Its process group ends with it.
        folder: Where it runs.
        limit_sec: How long it may take.
        paths: Folders of modules, which stand behind this checkout's.
        hook: Whether the start-up hook switches the package on; else the program may install it itself.
        variables: Further variables of its environment, which has few others.

    Raises:
        AssertionError: It ended with an error; the message has its last lines.
    """
    place = {"SGLANG_INSTRUMENT_LOG_DIR": str(folder), "EXPERIMENT_NAME": "run"}
    done = run_in_group(
        command,
        env={
            **{name: os.environ[name] for name in KEPT if name in os.environ},
            **place,
            **({"SGLANG_INSTRUMENT": "1"} if hook else {}),
            "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *paths])),
            **variables,
        },
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=limit_sec,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done
