"""Print a script with which a shell completes commands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sglang_instrument.cli.main import parser_of_all
from sglang_instrument.cli.plain import say

HELP: Final = """\
Print a script with which bash, zsh or fish completes commands, options and their values by Tab. The script
holds them all: no Tab starts Python. Print it again after an upgrade.

    source <(sglang-instrument completion bash)          # in ~/.bashrc
    source <(sglang-instrument completion zsh)           # in ~/.zshrc, below compinit
    sglang-instrument completion fish > ~/.config/fish/completions/sglang-instrument.fish"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that completes")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    parser = parser_of_all()
    for action in _actions(parser):
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    for line in shtab.complete(parser, args.shell).splitlines():
        say(line)
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of the parsers below it; argparse has no public way to ask."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
