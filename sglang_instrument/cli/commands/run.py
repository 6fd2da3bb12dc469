"""Run a command with instrumentation on, in its process and in every process that it starts."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from sglang_instrument import config as settings
from sglang_instrument.cli.commands.run_watch import has_hook, install_command, watch_from_beside
from sglang_instrument.cli.plain import say
from sglang_instrument.config import PREFIX, Config
from sglang_instrument.errors import InstrumentError
from sglang_instrument.regular_files import open_regular
from sglang_instrument.startup import run_ids
from sglang_instrument.startup.known_trainers import with_known_trainers

HELP: Final = """\
Run a command with instrumentation on: in its process, in those that it starts, and in Ray's workers.

    sglang-instrument run -- python -m verl.trainer.main_ppo trainer.nnodes=1
    sglang-instrument run --experiment gsm8k_600 --log-dir /shared/logs -- torchrun --nproc-per-node 8 a.py
    sglang-instrument run --set detail=turn --set sample_requests=0.1 -- ./train.sh

The command replaces this process, so that signals and the exit code are the command's. `run` sets
SGLANG_INSTRUMENT=1 and SGLANG_INSTRUMENT_<SETTING>, and first checks that the command's Python has the
start-up hook. Programs such as `uv run`, `conda run` or a script start a Python of their own: if nothing is
recorded, a last line on stderr says which Python ran, and how to install this package there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `run`."""
    parser.add_argument("--experiment", metavar="NAME", help="name of the run's folder")
    parser.add_argument("--log-dir", metavar="DIR", help="folder of all runs (logs)")
    parser.add_argument(
        "--set", action="append", metavar="NAME=VALUE", default=[], help="a keyword of install(); repeatable"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="what to run")


def run(args: argparse.Namespace) -> int:
    """Replace this process by the command."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise InstrumentError("run needs a command, as in: sglang-instrument run -- python train.py")
    program = shutil.which(command[0])
    if program is None:
        raise InstrumentError(f"no program {command[0]!r} is on the PATH")
    config = _config(args)
    environment = environment_of(config)
    _look(program, environment)
    say(f"sglang-instrument: {command[0]} records to {config.folder}", sys.stderr)
    sys.stdout.flush()
    watch_from_beside(config.folder, command[0])
    os.execve(program, command, environment)  # noqa: S606 - the user's own command, with no shell around it


def environment_of(config: Config) -> dict[str, str]:
    """Return the environment in which a command and its children are instrumented."""
    ours = {name: value for name, value in config.environment().items() if value}
    launch_id = run_ids.new_run_id(os.environ)
    return {**os.environ, **ours, run_ids.SWITCH: "1", run_ids.LAUNCH: launch_id}


def _config(args: argparse.Namespace) -> Config:
    given: dict[str, object] = {"experiment": args.experiment, "log_dir": args.log_dir}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise InstrumentError(f"--set {text!r}: expected NAME=VALUE, as in --set detail=turn")
        given[name.strip().removeprefix(PREFIX).lower()] = value
    complaints: list[str] = []
    config = settings.load(given, os.environ, complaints.append, written="--set {}=...")
    config = with_known_trainers(config, "trainers" in given, complaints.append, "--set trainers=...")
    for complaint in complaints:
        say(f"sglang-instrument: {complaint}", sys.stderr)
    return config


def _look(program: str, environment: dict[str, str]) -> None:
    """Check that the Python which the command runs loads the start-up hook.

    Raises:
        InstrumentError: It does not, so that nothing would be recorded.
    """
    python = interpreter_of(program)
    if python is None:  # a shell or a binary: which Python it will start is unknown
        return
    try:
        if has_hook(python, environment):
            return
        todo = f"run `{install_command(python, environment)}` in a checkout"
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstrumentError(f"{python} cannot be started: {error}") from None
    lacks = f"{python} has no start-up hook of sglang-instrument"
    if python == program:
        raise InstrumentError(f"{lacks}, so that nothing would be recorded: {todo}")
    # Conda is such a script, and starts the Python of an environment; torchrun starts its own.
    say(f"sglang-instrument: {lacks}; unless {program} starts another Python, {todo}", sys.stderr)


def interpreter_of(program: str) -> str | None:
    """Return the Python that runs `program`: the program itself, the one in its `#!` line, or None."""
    path = Path(program)
    if path.name.startswith("python"):
        return program
    try:
        with open_regular(path) as file:
            first = file.readline(1024)
    except OSError:
        return None
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    if not words or not Path(words[0]).name.startswith("python"):
        return None
    return shutil.which(words[0])
