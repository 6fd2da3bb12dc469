"""Find the command that a person asked for, run it, and say errors in one line."""

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from sglang_instrument import __version__
from sglang_instrument.cli.plain import plain, say
from sglang_instrument.errors import InstrumentError

#: Each command: its module, which has HELP, add_arguments(parser) and run(args) -> int, and a line of help.
#: The lines stand here so that `--help` imports none of them.
COMMANDS: Final = {
    "demo": ("sglang_instrument.cli.demo", "run a small real rollout, or make up a run to look at"),
    "run": ("sglang_instrument.cli.run", "run a command, and all that it starts, with instrumentation on"),
    "status": ("sglang_instrument.cli.status", "processes of a run: versions, patches, what was dropped"),
    "doctor": ("sglang_instrument.cli.doctor", "say why no file appears, and what to do"),
    "summary": (
        "sglang_instrument.cli.summary",
        "steps of a run: how long, how many requests, where the time went",
    ),
    "events": (
        "sglang_instrument.cli.events",
        "events of a run: how often, how long, what share of the time",
    ),
    "requests": ("sglang_instrument.cli.requests", "the slowest requests, or one with all its events"),
    "workers": ("sglang_instrument.cli.workers", "who waited for whom, and why the last one came last"),
    "turns": ("sglang_instrument.cli.turns", "turns and tools: how many, how long"),
    "lengths": ("sglang_instrument.cli.lengths", "lengths of responses, and their rewards"),
    "gaps": ("sglang_instrument.cli.gaps", "when requests stood still, who held the event loop"),
    "whatif": ("sglang_instrument.cli.whatif", "what a step would take under caps or over-sampling"),
    "compare": ("sglang_instrument.cli.compare", "two runs: what differs, and what is noise"),
    "check": ("sglang_instrument.cli.check", "whether the log is whole, what was running when it ended"),
    "plot": ("sglang_instrument.cli.plot", "draw the run as figures: PNG, SVG or PDF"),
    "report": (
        "sglang_instrument.cli.report",
        "write the run as one HTML file, from the verdict to the event",
    ),
    "export": ("sglang_instrument.cli.export", "write the run as Parquet"),
    "profile": ("sglang_instrument.cli.profile", "switch the engines' profilers, gather their traces"),
    "trace": ("sglang_instrument.cli.trace", "what the engines' profilers saw: kernels, gaps, slow ranks"),
    "patches": ("sglang_instrument.cli.patches", "list the patch tables, check them against a trainer"),
}

#: What `pip install sglang-instrument` leaves out, for training has no need of it.
_OF_ANALYSIS: Final = frozenset({"polars", "rich", "zstandard"})

_EPILOG: Final = """\
examples:
    sglang-instrument demo
    sglang-instrument summary logs/gsm8k_600
    sglang-instrument events logs/gsm8k_600 --step 12

`sglang-instrument COMMAND --help` explains a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments after the program's name; `sys.argv[1:]` by default.

    Returns:
        0 if it went well, 1 if what was asked for was found wanting, 2 if it could not be done, 130 if it was
        interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except InstrumentError as error:
        say(f"sglang-instrument: {error}", sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output is gone, as after `| head`; Python's own flush at exit would say so again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name.startswith("-"):
        return _finish(_top_parser(), arguments or ["--help"])
    if name not in COMMANDS:
        raise InstrumentError(_unknown(name))
    try:
        return _run_command(name, arguments[1:])
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in _OF_ANALYSIS:
            raise
        raise InstrumentError(
            f"{name} needs {package}: pip install 'sglang-instrument[analysis]'"
        ) from missing


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command's arguments."""
    command = importlib.import_module(COMMANDS[name][0])
    parser = _Parser(
        prog=f"sglang-instrument {name}",
        description=command.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    return parser


def _run_command(name: str, arguments: list[str]) -> int:
    command = importlib.import_module(COMMANDS[name][0])
    try:
        parsed = parser_of(name).parse_args(arguments)
    except SystemExit as stop:  # argparse has said what it had to say
        return int(stop.code or 0)
    code = int(command.run(parsed))
    sys.stdout.flush()
    return code


class _Parser(argparse.ArgumentParser):
    """A parser whose errors, which repeat names of files that a shell's `*` found, are safe to print."""

    def error(self, message: str) -> NoReturn:
        """Say how the command is used, and what is wrong."""
        super().error(plain(message))


def _top_parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"    {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items())
    parser = _Parser(
        prog="sglang-instrument",
        usage="sglang-instrument COMMAND ...",
        description=f"See where every second of an RL rollout on SGLang goes.\n\ncommands:\n{commands}",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sglang-instrument {__version__}")
    return parser


def _finish(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    try:
        parser.parse_args(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    parser.print_help()
    return 0


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(COMMANDS)}"
    return f"no command {name!r}; {hint}"


if __name__ == "__main__":
    sys.exit(main())
