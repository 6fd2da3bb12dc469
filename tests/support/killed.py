"""Run commands in processes of their own, and kill them before their n-th change of a file.

A program that has imported what the commands need forks one process a command: that takes a tenth of the time
of a new interpreter. A change is what Python's audit events report: a file is opened for writing, renamed,
linked or deleted, a folder is made or deleted.
"""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import sglang_instrument

_CHANGES = ("rename", "remove", "rmdir", "mkdir", "link", "utime", "truncate", "chmod")  # of os
_IMPORTED = (
    "sglang_instrument.cli.main",
    "sglang_instrument.analysis.dataset.export",
    "sglang_instrument.analysis.dataset.query",
    "sglang_instrument.analysis.long_runs.plan",
    "sglang_instrument.analysis.long_runs.prune",
    "sglang_instrument.analysis.long_runs.summary",
    "sglang_instrument.cli.summaries.large_run",
    "sglang_instrument.collect.by_bucket",
    "sglang_instrument.collect.gather",
    "sglang_instrument.live.serving.counters",
    "sglang_instrument.report.html.build",
    "sglang_instrument.report.otlp.export",
    "sglang_instrument.report.perfetto.trace",
    "rich.console",
    "scipy.optimize",
    "scipy.stats",
    "fsspec.implementations.local",
)


class Ended(NamedTuple):
    """How a command ended: its exit code, or minus the signal that killed it; stdout, stderr; its changes."""

    code: int
    printed: str
    said: str
    changes: int


class Commands:
    """A program that runs commands; a context.

    Args:
        patched: Values of `MODULE:NAME` for all commands: limits that make a run of a test a large one.
        environment: Variables of the program.
    """

    def __init__(self, patched: dict[str, Any], environment: dict[str, str]) -> None:
        tested = str(Path(sglang_instrument.__file__).parents[1])
        paths = os.pathsep.join([tested, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._program = subprocess.Popen(
            [sys.executable, "-B", __file__, json.dumps(patched)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths, **environment},
            text=True,
        )

    def __enter__(self) -> "Commands":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._program.stdin
        assert self._program.stdout
        self._program.stdin.close()
        self._program.stdout.close()
        self._program.wait()

    def run(self, *words: object, kill_at: int = 0) -> Ended:
        """Run a command; kill it before this change, counted from 1, if it makes so many."""
        assert self._program.stdin
        assert self._program.stdout
        self._program.stdin.write(json.dumps([list(map(str, words)), kill_at]) + "\n")
        self._program.stdin.flush()
        return Ended(*json.loads(self._program.stdout.readline()))


def _is_change(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "open":
        path, _, flags = arguments
        return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) and path != os.devnull
    return event.removeprefix("os.") in _CHANGES


def _run(words: list[str], kill_at: int, result: Path) -> None:
    """Run a command in this process, which ends with it."""
    from sglang_instrument.cli.main import main

    changes = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal changes
        if counting and _is_change(event, arguments):
            changes += 1
            if changes == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    printed, said = io.StringIO(), io.StringIO()
    counting = True
    sys.addaudithook(count)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            code = main(words)
    except BaseException:
        code = 99
        said.write(traceback.format_exc())
    counting = False
    result.write_text(json.dumps([code, printed.getvalue(), said.getvalue(), changes]))


def _serve(patched: dict[str, Any]) -> None:
    import importlib

    for name in _IMPORTED:
        importlib.import_module(name)
    for name, value in patched.items():
        module, _, attribute = name.partition(":")
        setattr(importlib.import_module(module), attribute, value)
    result = Path(f"/tmp/killed-{os.getpid()}")
    for line in sys.stdin:
        words, kill_at = json.loads(line)
        child = os.fork()
        if not child:
            _run(words, kill_at, result)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            answer = json.dumps([-os.WTERMSIG(status), "", "", kill_at])
        else:
            answer = result.read_text()
            result.unlink()
        print(answer, flush=True)


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
