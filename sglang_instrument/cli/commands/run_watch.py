"""Watch a command that `run` starts, from beside it: if nothing is recorded, say which Python ran and why.

The command replaces the process of `run`, so that signals and the exit code are its own. The watch is no
child of it, and ends as soon as the first process of the run has described itself.
"""

import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from sglang_instrument.cli.plain import say
from sglang_instrument.plain_text import listed

_EARLY_SEC: Final = 20.0  # a runner, such as conda's own Python, has started the program's by then
_LOOK_SEC: Final = 120
_MOST_PYTHONS: Final = 16
_PYTHON: Final = re.compile(r"python[\d.]*")
#: What a Python answers by its exit code: does it load the start-up hook, does it have pip.
_HAS_HOOK: Final = "import sys; sys.exit('sglang_instrument.startup.python_startup' not in sys.modules)"
_HAS_PIP: Final = "import importlib.util as u, sys; sys.exit(u.find_spec('pip') is None)"


def has_hook(python: str, environment: Mapping[str, str]) -> bool:
    """Return whether a Python loads the start-up hook.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It does not answer.
    """
    return _exits_with_0(python, _HAS_HOOK, environment)


def install_command(python: str, environment: Mapping[str, str]) -> str:
    """Return the command that installs a checkout into a Python, which may have no pip, as those of uv."""
    has_pip = _exits_with_0(python, _HAS_PIP, environment)
    return f"{python} -m pip install ." if has_pip else f"uv pip install --python {python} ."


def _exits_with_0(python: str, code: str, environment: Mapping[str, str]) -> bool:
    done = subprocess.run(  # noqa: S603 - the Python that the user's own command runs
        [python, "-c", code], check=False, env=environment, capture_output=True, timeout=_LOOK_SEC
    )
    return done.returncode == 0


def watch_from_beside(folder: Path, name: str) -> None:
    """Start to watch this process, which becomes the command `name`, and whatever it starts.

    Args:
        folder: The run's folder.
        name: What to call the command.
    """
    watched = os.getpid()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()  # not interrupted with the command: Ctrl-C reaches all of its process group
        if os.fork() == 0:  # a grandchild: the command has no child that it does not know
            _be_silent_but_for_errors()
            Watch(watched, folder, name).run()
    except BaseException:  # the command must not notice
        pass
    finally:
        os._exit(0)


def _be_silent_but_for_errors() -> None:
    """Hold neither the command's input nor its output: their other ends wait for the last holder."""
    with Path(os.devnull).open() as nothing:  # nothing is read or written there
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)


class Watch:
    """Looks at the Pythons that a command runs, until the run has a record or the command ends.

    Args:
        pid: The command's process.
        folder: The run's folder.
        name: What to call the command.
    """

    def __init__(self, pid: int, folder: Path, name: str) -> None:
        self._pid, self._folder, self._name = pid, folder, name
        self._described = self._descriptions()
        self._running: dict[str, dict[str, str]] = {}  # the newest Pythons, with their environments
        self._began = time.monotonic()

    def run(self) -> None:
        """Watch until the command ends; say at the end, and once before, that nothing is recorded."""
        has_said = False
        with suppress(ProcessLookupError):
            process = os.pidfd_open(self._pid)
            while not select.select([process], [], [], self._pause_sec())[0]:
                if self._descriptions() != self._described:
                    return
                self._running = dict(pythons_of(self._pid)) or self._running
                if not has_said and time.monotonic() - self._began > _EARLY_SEC:
                    has_said = True
                    hooks = self._hooks()
                    if hooks and not any(hooks.values()):
                        self._say("nothing is being recorded", hooks)
        if self._descriptions() == self._described:
            self._say("nothing was recorded", self._hooks())

    def _say(self, what: str, hooks: Mapping[str, bool]) -> None:
        say(f"sglang-instrument: {what}: {self._reason(hooks)}", sys.stderr)

    def _pause_sec(self) -> float:
        age = time.monotonic() - self._began
        return 0.01 if age < 1 else 0.1 if age < _EARLY_SEC else 1.0 if age < 120 else 10.0

    def _descriptions(self) -> dict[str, int]:
        """Return when each process of the folder's runs has described itself last."""
        written = {}
        for path in self._folder.glob("processes/**/*.json"):
            with suppress(OSError):
                written[path.name] = path.stat().st_mtime_ns
        return written

    def _hooks(self) -> dict[str, bool]:
        """Return which of the newest Pythons load the start-up hook."""
        hooks = {}
        for python, environment in list(self._running.items())[:_MOST_PYTHONS]:
            try:
                hooks[python] = has_hook(python, environment)
            except (OSError, subprocess.SubprocessError):  # such as one that uv has made for this command
                hooks[python] = False
        return hooks

    def _reason(self, hooks: Mapping[str, bool]) -> str:
        loaded = [python for python, has in hooks.items() if has]
        lacking = [python for python in hooks if python not in loaded]
        if loaded:
            return (
                f"{listed(loaded, 3)} loaded sglang-instrument, and neither imported a trainer that a table "
                "knows nor called this package; `sglang-instrument doctor` says which trainers are known"
            )
        if not lacking:
            return (
                f"no Python of {self._name} was seen here; run `sglang-instrument doctor` where the rollout "
                "runs, with its Python"
            )
        todo = listed([self._todo(python) for python in lacking], 3)
        return f"{self._name} ran {listed(lacking, 3)}, without sglang-instrument: {todo}"

    def _todo(self, python: str) -> str:
        with suppress(OSError, subprocess.SubprocessError):  # it may be gone
            # An environment that uv makes for one command has such a name.
            if not any(part.startswith(".tmp") for part in Path(python).parts):
                return f"run `{install_command(python, self._running[python])}` in a checkout"
        return "name a checkout, as in `uv run --with ./sglang-instrument`"


def pythons_of(pid: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the path of each Python among a process and its descendants, with its environment."""
    waiting = [pid]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        with suppress(OSError, ValueError):
            waiting += [
                int(child) for path in process.glob("task/*/children") for child in path.read_text().split()
            ]
            program = process.joinpath("cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
            if _PYTHON.fullmatch(os.path.basename(program)):  # noqa: PTH119 - no path: a word of a command
                variables = process.joinpath("environ").read_bytes().decode(errors="replace").split("\0")
                environment = dict(variable.split("=", 1) for variable in variables if "=" in variable)
                # A word with a slash counts from the process's folder, any other from its PATH.
                place = process.joinpath("cwd").readlink() / program
                path = str(place) if "/" in program else shutil.which(program, path=environment.get("PATH"))
                if path is not None:
                    yield path, environment
