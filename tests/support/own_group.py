"""Start commands in their own process groups, and end all of their processes: orphaned engines never end."""

import os
import signal
import subprocess
from contextlib import suppress


def end_group(process):
    """Kill the leader of a process group, and its whole group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run_in_group(command, *, timeout, **options):
    """Run a command to its end, as `subprocess.run` does; end its children with it in any case."""
    with subprocess.Popen(list(map(str, command)), start_new_session=True, **options) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.send_signal(signal.SIGINT)  # the demo and Ray have children in other groups, and end them
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            raise
        finally:
            end_group(process)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)
