"""Find the command that a person typed, run it, and print its errors as one line."""

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final, NoReturn

from sglang_instrument import __version__
from sglang_instrument.analysis.store.after_answer import answering
from sglang_instrument.analysis.tables.table import Table
from sglang_instrument.cli.answer import PrintSchema
from sglang_instrument.cli.explain import Explain
from sglang_instrument.cli.plain import say
from sglang_instrument.cli.polars_start import start_polars
from sglang_instrument.cli.select import losses
from sglang_instrument.errors import InstrumentError
from sglang_instrument.plain_text import plain

#: The commands, grouped by purpose, with their lines of help: `--help` imports no command.
GROUPS: Final[dict[str, dict[str, str]]] = {
    "try it, switch it on": {
        "demo": "run a small real rollout, or write a made-up run to look at",
        "run": "run a command, and all processes that it starts, with instrumentation on",
        "completion": "print a script with which bash, zsh or fish completes commands by Tab",
    },
    "what does it do right now?": {
        "watch": "during a run: its step, its workers, the oldest requests, what hangs",
    },
    "is it on?": {
        "doctor": "before a run, or when no file appears: what recording needs on this machine",
        "status": "during or after a run: its processes, their patches, what was dropped",
        "check": "after a run: is the log whole, and what was running when it ended",
        "patches": "`patches check`, before a new trainer version: what the tables find in its source",
    },
    "what happened?": {
        "runs": "experiments below a folder, or the runs of one: steps, trend, size, verdict",
        "summary": "steps of a run: how long, how many requests, where the time went; the verdict",
        "events": "events of a run: how often, how long, what share of the time",
        "requests": "the slowest requests, or one request with all its events",
        "workers": "which worker the others waited for at the barriers, and why it came last",
        "loop": "the training loop: does the trainer wait for the rollout, or the rollout for it",
        "turns": "turns and tools: how many, how long",
        "servers": "servers: is the router balanced, and do conversations stay where their cache is",
        "lengths": "lengths of responses, and their rewards",
        "weights": "weight updates by part and server; which weights made replies and cached prefixes",
        "sql": "ask in SQL: spans, requests, turns, steps, workers and more as tables",
        "staleness": "samples of asynchronous training: how many versions old, what waits for the trainer",
        "waste": "tokens that were generated and thrown away: aborted, filtered, stale",
        "gaps": "plateaus, in which no request ended, and code that blocked the event loop",
    },
    "what if, what changed?": {
        "advise": "which setting to change: from what to what, what it saves, what it costs",
        "twin": "replay the rollout on a real engine; measure other settings there",
        "whatif": "estimate the steps under token caps, over-sampling or a faster event",
        "compare": "two runs: what differs by more than noise, and why",
        "forecast": "when the whole training ends: hours, GPU hours, and what a cap from now on changes",
    },
    "keep a long run small": {
        "prune": "delete the logs of most steps; all that they hold stays, in a ninth of the bytes",
    },
    "share it": {
        "collect": "bring a run's files from the disks of many nodes, or object storage, into one folder",
        "mcp": "let a coding agent ask: a server of the Model Context Protocol",
        "report": "write the run as one HTML file, from the verdict to the single event",
        "plot": "draw the run as figures: PNG, SVG or PDF",
        "export": "write the run as Parquet files, a Perfetto trace or spans of OpenTelemetry",
    },
    "look into the engines": {
        "profile": "switch the engines' profilers, gather traces; `profile check` tests the servers first",
        "trace": "analyse these traces: kernels, idle gaps, slow ranks",
    },
}
#: Each command's module: HELP, add_arguments(parser), run(args) -> int; of tables, TABLES for --explain, and
#: ANSWER for --json-schema.
COMMANDS: Final = {
    name: f"sglang_instrument.cli.commands.{name}" for group in GROUPS.values() for name in group
}

#: Packages of extras: training does not need them, so that a plain install leaves them out.
_EXTRAS: Final = {
    "analysis": frozenset({"polars", "rich", "scipy", "numpy", "shtab", "zstandard"}),
    "live": frozenset({"textual", "prometheus_client"}),
    "report": frozenset({"perfetto"}),
    "mcp": frozenset({"mcp", "mcp_types", "anyio"}),
    "twin": frozenset({"aiohttp"}),
}

_UNRECOGNIZED: Final = "unrecognized arguments: "  # argparse's message
_EPILOG: Final = """\
examples:
    sglang-instrument demo
    sglang-instrument summary logs/gsm8k_600
    sglang-instrument events logs/gsm8k_600 --step 12

`sglang-instrument help COMMAND` explains a command and shows examples, `help logs` what LOGS can be."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments after the program's name; `sys.argv[1:]` by default.

    Returns:
        0 if it went well, 1 if the answer is bad (a broken log, a missing patch), 2 if there is none, 3 if
        there is too little to tell or, for `watch`, if something hangs, 130 if it was interrupted. 0, too, if
        whoever reads the output stops before its end.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _code_of(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output is gone, as after `| head`; Python's flush at exit would report it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _code_of(arguments: list[str]) -> int:
    """Run a command, and print its errors; return the exit code."""
    try:
        return _run(arguments)
    except InstrumentError as error:
        say(f"sglang-instrument: {error}", sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _run(arguments: list[str]) -> int:
    if arguments == ["help", "logs"]:
        return int(importlib.import_module("sglang_instrument.cli.commands.help_logs").show())
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    name = arguments[0] if arguments else "--help"
    if name.startswith("-"):
        return _finish(_top_parser(), arguments or ["--help"])
    if name not in COMMANDS:
        raise InstrumentError(_unknown(name))
    try:
        return _run_command(name, arguments[1:])
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        extra = next((extra for extra, packages in _EXTRAS.items() if package in packages), None)
        if extra is None:
            raise
        from sglang_instrument.extras import install_extra

        raise InstrumentError(f"{name} needs {package}: {install_extra(extra)}") from missing


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command's arguments."""
    command = importlib.import_module(COMMANDS[name])
    parser = _Parser(
        prog=f"sglang-instrument {name}",
        description=command.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_arguments(parser, command)
    return parser


def parser_of_all() -> argparse.ArgumentParser:
    """Return one parser with all commands below it: it imports all of them."""
    parser = _Parser(prog="sglang-instrument")
    below = parser.add_subparsers()
    for lines in GROUPS.values():
        for name, line in lines.items():
            _add_arguments(below.add_parser(name, help=line), importlib.import_module(COMMANDS[name]))
    return parser


def _add_arguments(parser: argparse.ArgumentParser, command: ModuleType) -> None:
    command.add_arguments(parser)
    if tables := tables_of(command):
        parser.add_argument("--explain", action=Explain, tables=tables)
    if answer := getattr(command, "ANSWER", None):
        parser.add_argument("--json-schema", action=PrintSchema, answer=answer)


def tables_of(command: ModuleType) -> list[Table]:
    """Return the tables that a command prints."""
    return list(getattr(command, "TABLES", ()))


def _run_command(name: str, arguments: list[str]) -> int:
    command = importlib.import_module(COMMANDS[name])
    try:
        parsed = parser_of(name).parse_args(arguments)
    except SystemExit as stop:  # argparse has printed its message
        return int(stop.code or 0)
    if {"logs", "a"} & vars(parsed).keys():  # it reads a run, or compares two
        start_polars()
    with answering():
        code = int(command.run(parsed))
        tells_health = "health" in getattr(command, "ANSWER", ())
        for sentence, is_loss in losses(parsed, tells_health=tells_health):
            say(f"sglang-instrument: {sentence}", sys.stderr)
            code = code or int(is_loss)
        sys.stdout.flush()
    return code


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are safe to print: they repeat file names, which may hold control characters."""

    def error(self, message: str) -> NoReturn:
        """Print how the command is used and what is wrong, and exit with 2."""
        super().error(plain(message + self._near(message)))

    def _near(self, message: str) -> str:
        """Return which options look like those that are unknown; "" if none does."""
        words = message.removeprefix(_UNRECOGNIZED).split() if message.startswith(_UNRECOGNIZED) else []
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        known = [option for option in self._option_string_actions if option.startswith("--")]
        near = [match for option in options for match in difflib.get_close_matches(option, known, n=1)]
        return f"; did you mean {', '.join(near)}?" if near else ""


def _top_parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    groups = (
        "\n".join([question, *(f"    {name:<{width}}  {line}" for name, line in commands.items())])
        for question, commands in GROUPS.items()
    )
    parser = _Parser(
        prog="sglang-instrument",
        usage="sglang-instrument COMMAND ...",
        description="\n\n".join(["See where every second of an RL rollout on SGLang goes.", *groups]),
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
    hint = f"did you mean {near[0]!r}?" if near else f"the commands are: {', '.join(COMMANDS)}"
    return f"no command {name!r}; {hint}"


if __name__ == "__main__":
    sys.exit(main())
