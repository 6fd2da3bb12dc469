"""Run commands on the logs in its arguments within limits; print a line of JSON for each broken one.

The limits: memory (the address space), open files, processor time of a command, and what it may leave behind.
`python limited_commands.py SCRATCH LOG ...`
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

#: Above what the imports take.
MEMORY_BYTES = 2**30
DESCRIPTORS = 64
#: No command on such small logs takes a tenth of this; a hang takes it all.
CPU_SEC = 60.0
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
#: LOG stands for the log, OUT for a folder to write to.
COMMANDS = [
    *(
        "summary LOG",
        "summary LOG --json",
        "summary LOG --step 1",
        "summary LOG --by day",
        "events LOG",
        "check LOG",
    ),
    *(
        "requests LOG",
        "requests LOG --engine",
        "workers LOG",
        "turns LOG --tools",
        "lengths LOG --speculation",
    ),
    *(
        "gaps LOG --curve --step 1",
        "servers LOG --over-time",
        "weights LOG",
        "staleness LOG --groups",
        "waste LOG",
    ),
    *(
        "loop LOG",
        "whatif LOG --max-tokens 100",
        "advise LOG",
        "status LOG",
        "runs LOG",
        "compare LOG LOG",
        "events LOG --json",
    ),
    *(
        "report LOG -o OUT/a.html --force",
        "export LOG --perfetto OUT/a.pftrace",
        "export LOG --otlp OUT/a.json --force",
    ),
    *(
        "export LOG --parquet OUT/parquet",
        "watch LOG --once",
        "watch LOG --once --json",
        "prune LOG --keep 2",
    ),
]
QUERIES = ["from spans limit 3", "from requests", "from control", "from findings", "from settings"]
TRACES = ["trace LOG", "trace LOG --json", "export --perfetto OUT/b.pftrace --traces LOG"]


class TooLongError(BaseException):
    """A command used its processor time."""


def main(scratch: str, *logs: str) -> None:
    """Run every command on every log."""
    from sglang_instrument.cli import main as cli

    _import_all()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    signal.signal(signal.SIGVTALRM, _too_long)
    count = 0
    for number, log in enumerate(logs):
        out = Path(scratch) / str(number)
        out.mkdir(parents=True)
        for command in _commands_for(Path(log)):
            words = [word.replace("LOG", log).replace("OUT", str(out)) for word in command]
            count += 1
            for fault in _faults(cli.main, words):
                print(json.dumps({"log": log, "command": " ".join(command), "fault": fault}), flush=True)
    print(json.dumps({"commands": count}), flush=True)


def _commands_for(log: Path) -> list[list[str]]:
    if "trace" in log.name and "traces" not in log.name:
        return [command.split() for command in TRACES]
    return [command.split() for command in COMMANDS] + [["sql", "LOG", query] for query in QUERIES]


def _faults(run, words: Sequence[str]) -> list[str]:
    """Run a command; return what is wrong with how it ended."""
    out, error = io.StringIO(), io.StringIO()
    before = _descriptors()
    code: object = None
    trouble = ""
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SEC)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), warnings.catch_warnings():
            warnings.simplefilter("error")
            code = run(list(words))
    except BaseException:
        trouble = traceback.format_exc(limit=-5)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    printed = out.getvalue() + error.getvalue()
    faults = [trouble] if trouble else []
    if not trouble and code not in (0, 1, 2, 3):
        faults.append(f"exit code {code}")
    if "Traceback" in printed:
        faults.append(printed[-2000:])
    if code == 2 and not error.getvalue().strip():
        faults.append("no answer, and no word why")
    if controls := CONTROLS.findall(printed):
        faults.append(f"control characters: {controls[:5]}")
    left = _descriptors() - before
    if len(left) > 1:  # listing them needs one
        faults.append(f"{len(left)} descriptors are still open")
    return faults


def _descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def _import_all() -> None:
    """Import what commands import when they run, so that the limit is on what they make of a log."""
    import importlib
    import pkgutil

    import duckdb
    import numpy as np
    import polars as pl
    import scipy.stats

    import sglang_instrument

    assert duckdb.sql("select 1").fetchall()
    assert pl.DataFrame({"a": np.arange(9)}).lazy().filter(pl.col("a") > 1).collect().height
    assert scipy.stats.t.ppf(0.5, 3) == 0
    for name in ("analysis", "cli", "report", "live", "traces"):
        path = [str(Path(sglang_instrument.__file__).parent / name)]
        for module in pkgutil.walk_packages(path, f"sglang_instrument.{name}."):
            if not module.name.endswith(("__main__", ".main")):
                importlib.import_module(module.name)


def _too_long(*_: object) -> None:
    raise TooLongError


if __name__ == "__main__":
    main(*sys.argv[1:])
