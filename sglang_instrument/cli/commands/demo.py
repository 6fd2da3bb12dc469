"""Run the demo: a small real rollout, or write a made-up run to look at."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import shlex
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sglang_instrument.cli.plain import say
from sglang_instrument.config import component
from sglang_instrument.demo.faults import FAULTS
from sglang_instrument.demo.options import DemoOptions
from sglang_instrument.errors import InstrumentError
from sglang_instrument.testing.kinds import KINDS

if TYPE_CHECKING:
    from rich.console import Console

SCENARIOS: Final = ("step-67",)  # the made-up runs
_NEEDED: Final = ("torch", "transformers", "tokenizers", "sglang", "rich", "polars")
#: Options that a made-up run has no part for.
_OF_REAL_DEMO: Final = (
    *("steps", "workers", "requests", "max_tokens", "validate", "inject", "model_dir", "results"),
    *("no_install", "give_up_after"),
)
_OF_REPORT: Final = ("jinja2", "plotly")

HELP: Final = (
    """\
Run a small multi-turn rollout on the real SGLang engine (on the CPU without a GPU): a tiny model, trained
at the first run, with tools, rewards and a barrier. Then show where its time went.

    sglang-instrument demo
    sglang-instrument demo --inject slow-tool
    sglang-instrument demo --synthetic                      # a made-up run, in seconds, without an engine
    sglang-instrument demo --synthetic --cause reward-all   # one with this cause

Causes for --cause; "one" concerns one worker, "all" concerns all:

"""
    + textwrap.indent(textwrap.fill(", ".join(KINDS), 100, break_on_hyphens=False), "    ")
    + """

Faults for --inject, and the place of each (a run of one step has it in that step):

"""
    + "\n".join(f"    {name:<12} {where}" for name, where in FAULTS.items())
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demo's options to the parser of its command."""
    default = DemoOptions()
    parser.add_argument("--steps", type=_at_least_one, help=f"training steps ({default.steps})")
    parser.add_argument("--workers", type=_at_least_one, help=f"processes ({default.workers})")
    parser.add_argument(
        "--requests",
        type=_at_least_one,
        help=f"requests of each worker in each step ({default.requests})",
    )
    parser.add_argument(
        "--max-tokens", type=_at_least_one, help=f"maximum tokens of a reply ({default.max_tokens})"
    )
    parser.add_argument(
        "--seed",
        type=int,
        help=f"seed that chooses the problems, or with --cause the made-up run ({default.seed})",
    )
    parser.add_argument("--validate", action="store_true", help="add a validation after the last step")
    parser.add_argument(
        "--inject",
        action="append",
        choices=FAULTS,
        metavar="FAULT",
        help="plant a fault, see above; repeatable",
    )
    parser.add_argument(
        "--synthetic",
        nargs="?",
        const=SCENARIOS[0],
        choices=SCENARIOS,
        metavar="SCENARIO",
        help="write a made-up run instead: step-67, the default, or one with --cause",
    )
    parser.add_argument(
        "--cause", choices=KINDS, metavar="CAUSE", help="plant this in a made-up run, see above"
    )
    parser.add_argument("--experiment", help="name of the run's folder (EXPERIMENT_NAME, else demo)")
    parser.add_argument(
        "--log-dir", type=Path, help="folder of all runs (SGLANG_INSTRUMENT_LOG_DIR, else logs)"
    )
    parser.add_argument(
        "--model-dir", type=Path, help="folder that keeps the tiny model (default: the user's cache)"
    )
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="write each request's tokens and rewards as JSON"
    )
    parser.add_argument("--no-install", action="store_true", help="run without install(), to compare results")
    parser.add_argument(
        "--give-up-after",
        type=float,
        metavar="SECONDS",
        help=f"end the run when nothing happens for this long ({default.give_up_sec:g})",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; return 1 if it did not reach its end.

    Raises:
        InstrumentError: A package that the demo needs is missing, or two options contradict each other.
    """
    usual = args.cause or args.synthetic or "demo"
    os.environ["EXPERIMENT_NAME"] = args.experiment or os.environ.get("EXPERIMENT_NAME") or usual
    if args.log_dir:
        os.environ["SGLANG_INSTRUMENT_LOG_DIR"] = str(args.log_dir.absolute())
    folder = Path(
        os.environ.get("SGLANG_INSTRUMENT_LOG_DIR", "logs"), component(os.environ["EXPERIMENT_NAME"])
    )
    if args.synthetic or args.cause:
        _check_synthetic(args)
        return _run_synthetic(folder, args)
    _check(args)
    return _run_real(args, folder.absolute())


def _run_synthetic(folder: Path, args: argparse.Namespace) -> int:
    importlib.import_module("sglang_instrument.analysis.run.opening")  # fails before anything is written
    from sglang_instrument.demo import synthetic

    planned = synthetic.with_cause(args.cause, args.seed or 0) if args.cause else synthetic.step_67()
    shape, cause = planned
    say(f"made up: {shape.steps} steps of {shape.workers} workers with {shape.requests} requests each")
    say(f"planted: {cause.in_words}")
    with synthetic.progress(shape.steps) as wrote:
        synthetic.write(folder, planned, wrote)
    _show_tables(folder, cause.place[0])
    _show_next(folder)
    return 0


def _run_real(args: argparse.Namespace, folder: Path) -> int:
    from sglang_instrument.cli.console import PipeConsole
    from sglang_instrument.demo.launch import DemoError, run_workers
    from sglang_instrument.demo.show import follow, train_model

    options, console = _options(args), PipeConsole()
    model = train_model(args.model_dir or _cache(), console)
    _announce(options, console)
    with tempfile.TemporaryDirectory(prefix="sglang-instrument-demo-") as scratch:
        workers = run_workers(options, model=model, scratch=Path(scratch), outputs=folder / "output")
        try:
            with contextlib.closing(workers):
                follow(workers, options, console)
        except DemoError as error:
            for line in f"sglang-instrument: {error}".splitlines():
                say(line, sys.stderr)
            _show_next(folder, failed=True)
            return 1
        if args.results:
            _write_results(args.results, Path(scratch), options)
    if options.install:
        _show_installed(folder / "output" / "worker_0.txt")
        _show_tables(folder)
        _show_next(folder)
    return 0


def _options(args: argparse.Namespace) -> DemoOptions:
    given = {
        "steps": args.steps,
        "workers": args.workers,
        "requests": args.requests,
        "seed": args.seed,
        "max_tokens": args.max_tokens,
        "give_up_sec": args.give_up_after,
    }
    return DemoOptions(
        inject=tuple(args.inject or ()),
        validate=args.validate,
        install=not args.no_install,
        **{name: value for name, value in given.items() if value is not None},
    )


def _check(args: argparse.Namespace) -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InstrumentError(
            f"the demo needs {', '.join(missing)}: use `make demo` in a checkout, or try "
            f"--synthetic, or run {_installation()}"
        )
    if "straggler" in (args.inject or ()) and _options(args).workers < 2:
        raise InstrumentError(
            "--inject straggler needs --workers 2 or more: without a second worker nobody waits"
        )


def _check_synthetic(args: argparse.Namespace) -> None:
    """Refuse options that a made-up run would ignore: its shape belongs to its story."""
    ignored = [*_OF_REAL_DEMO, *(() if args.cause else ("seed",))]
    given = [name for name in ignored if getattr(args, name) is not None and getattr(args, name) is not False]
    if given:
        run = f"--cause {args.cause}" if args.cause else f"--synthetic {args.synthetic}"
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InstrumentError(
            f"{run} makes up a run of a fixed shape, without an engine: leave out {options}"
        )


def _installation() -> str:
    """Return a shell command that installs what the demo needs; without a GPU, PyTorch's CPU build."""
    python, folder = shlex.quote(sys.executable), Path(__file__).parents[2] / "demo"
    uv = f"{python} -m uv pip install --python {python}"
    first, second = (shlex.quote(str(folder / f"requirements{kind}.txt")) for kind in ("", "-nodeps"))
    return f"{python} -m pip install uv && {uv} --torch-backend auto -r {first} && {uv} --no-deps -r {second}"


def _announce(options: DemoOptions, console: Console) -> None:
    console.print(
        f"workers: {options.workers}, each with an SGLang engine; steps: {options.steps}; "
        f"requests a worker and step: {options.requests}",
        highlight=False,
    )
    for name in options.inject:
        console.print(f"planted: {name}: {FAULTS[name]}", highlight=False, soft_wrap=True)


def _write_results(target: Path, scratch: Path, options: DemoOptions) -> None:
    """Gather the workers' results: a list of steps for each rank."""
    results = [
        json.loads((scratch / f"worker_{rank}" / "results.json").read_text())
        for rank in range(options.workers)
    ]
    target.write_text(json.dumps(results, indent=1) + "\n")


def _show_installed(printed: Path) -> None:
    """Show the line that `install()` printed in a worker; in training it is in the trainer's output."""
    for line in printed.read_text(errors="replace").splitlines():
        if line.startswith("sglang_instrument"):
            say()
            say(line)


def _show_tables(folder: Path, step: int | None = None) -> None:
    """Print the summary of a run, and its events, or those of one step."""
    of_step = () if step is None else ("--step", str(step))
    for name, more in (("summary", ()), ("events", of_step)):
        command = importlib.import_module(f"sglang_instrument.cli.commands.{name}")
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        say()
        command.run(parser.parse_args([str(folder), *more]))


def _show_next(folder: Path, *, failed: bool = False) -> None:
    """Print the next commands, for the step of the verdict, else the slowest one, else (failed) the last."""
    if any(folder.glob("step_*")):
        step, worker = _worth_a_look(folder, "step" if failed else "duration_sec")
        command, run = _this_command(), shlex.quote(str(folder))
        say()
        say(f"logs: {folder}")
        say(f"next: {command} summary {run}{step}")
        say(f"      {command} events {run}{step}{worker}")
        if all(map(importlib.util.find_spec, _OF_REPORT)):
            say(f"      {command} report {run} -o {shlex.quote(folder.name)}.html")


def _this_command() -> str:
    """Return how a shell in this folder calls this program: by its name only where PATH leads to this one."""
    name = "sglang-instrument"
    program = Path(sys.executable).with_name(name)
    if shutil.which(name) == str(program):
        return name
    if not program.exists():
        return f"{shlex.quote(sys.executable)} -m sglang_instrument.cli.main"
    here = Path.cwd()
    return shlex.quote(str(program.relative_to(here) if program.is_relative_to(here) else program))


def _worth_a_look(folder: Path, most: str) -> tuple[str, str]:
    """Return the options for a training step and for its worker; empty where there is none.

    Args:
        folder: Of the run.
        most: Column of `step_table`; without a finding, the step with its largest value is taken.
    """
    from sglang_instrument.analysis.answers.steps import step_table
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.analysis.verdict.verdict import findings_of

    run = Run.open(folder)
    for finding in findings_of(run, over=True):
        if finding.step is not None and not finding.validate:
            return f" --step {finding.step}", "" if finding.worker is None else f" --worker {finding.worker}"
    steps = step_table(run.digest).filter(validate=False).drop_nulls("slowest_worker").sort(most)
    for step in steps.tail(1).to_dicts():
        return f" --step {step['step']}", f" --worker {step['slowest_worker']}"
    return "", ""


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sglang-instrument"


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value
