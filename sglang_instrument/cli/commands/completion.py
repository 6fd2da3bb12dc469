"""Print a script with which a shell completes commands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sglang_instrument.cli.main import COMMANDS, GROUPS, parser_of
from sglang_instrument.cli.plain import say

HELP: Final = """\
Print a script with which bash, zsh or fish completes commands, options and their values by Tab. The script
holds them all: no Tab starts Python. Print it again after an upgrade.

    source <(sglang-instrument completion bash)          # in ~/.bashrc
    source <(sglang-instrument completion zsh)           # in ~/.zshrc, below compinit
    sglang-instrument completion fish > ~/.config/fish/completions/sglang-instrument.fish"""

_PROGRAM: Final = "sglang-instrument"
_LINES: Final = {name: line for group in GROUPS.values() for name, line in group.items()}


@dataclass(frozen=True)
class _Option:
    names: Sequence[str]
    help: str
    takes_value: bool
    choices: Sequence[str]


@dataclass(frozen=True)
class _Command:
    options: Sequence[_Option]
    actions: Sequence[str]  # what its first argument may be, if that is one of a few words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `completion`."""
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="the shell that completes")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    for line in _SCRIPTS[args.shell]({name: _described(name) for name in COMMANDS}).splitlines():
        say(line)
    return 0


def _described(name: str) -> _Command:
    """Return what argparse knows of a command; it has no public way to ask."""
    parser = parser_of(name)
    formatter = parser._get_formatter()
    options = [
        _Option(
            one.option_strings,
            formatter._expand_help(one) if one.help else "",
            one.nargs != 0,
            _words(one.choices),
        )
        for one in parser._actions
        if one.option_strings and one.help != argparse.SUPPRESS
    ]
    first = next((one for one in parser._actions if not one.option_strings), None)
    return _Command(options, _words(first.choices) if first else ())


def _words(choices: object) -> tuple[str, ...]:
    return tuple(map(str, choices)) if isinstance(choices, (tuple, list, dict)) else ()


def _bash(commands: Mapping[str, _Command]) -> str:
    def cases() -> Iterator[str]:
        for name, command in commands.items():
            names = " ".join(one for option in command.options for one in option.names)
            yield f"        {name}) options={_quoted(names)} words={_quoted(' '.join(command.actions))} ;;"

    def of_options() -> Iterator[str]:
        for name, command in commands.items():
            for option in command.options:
                if option.choices:
                    patterns = "|".join(f"{name}:{one}" for one in option.names)
                    yield f"        {patterns}) values={_quoted(' '.join(option.choices))} ;;"

    return "\n".join(
        [
            "_sglang_instrument() {",
            "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
            f"    local options= words= values= offered={_quoted(' '.join(commands))}",
            "    if ((COMP_CWORD > 1)); then",
            "        case ${COMP_WORDS[1]} in",
            *cases(),
            "        esac",
            "        case ${COMP_WORDS[1]}:$before in",
            *of_options(),
            "        esac",
            "        offered=$values",
            "        if [[ -z $values && $word == -* ]]; then offered=$options; fi",
            "        if [[ -z $offered ]] && ((COMP_CWORD == 2)); then offered=$words; fi",
            "    fi",
            '    COMPREPLY=($(compgen -W "$offered" -- "$word"))',
            "}",
            f"complete -o bashdefault -o default -F _sglang_instrument {_PROGRAM}",
        ]
    )


def _zsh(commands: Mapping[str, _Command]) -> str:
    def cases() -> Iterator[str]:
        for name, command in commands.items():
            told = (_quoted(f"{one}:{option.help}") for option in command.options for one in option.names)
            yield f"        {name}) options=({' '.join(told)}); offered=({' '.join(command.actions)}) ;;"

    def of_options() -> Iterator[str]:
        for name, command in commands.items():
            for option in command.options:
                if option.choices:
                    patterns = "|".join(f"{name}:{one}" for one in option.names)
                    yield f"        {patterns}) compadd -- {' '.join(option.choices)}; return ;;"

    listed = " ".join(_quoted(f"{name}:{_LINES[name]}") for name in commands)
    return "\n".join(
        [
            f"#compdef {_PROGRAM}",
            "_sglang_instrument() {",
            f"    local -a commands=({listed}) options offered",
            "    if ((CURRENT == 2)); then _describe command commands; return; fi",
            "    case $words[2]:$words[CURRENT-1] in",
            *of_options(),
            "    esac",
            "    case $words[2] in",
            *cases(),
            "    esac",
            "    if [[ $PREFIX == -* ]]; then _describe -o option options",
            "    elif ((CURRENT == 3 && $#offered)); then compadd -- $offered; _files",
            "    else _files; fi",
            "}",
            f"compdef _sglang_instrument {_PROGRAM}",
        ]
    )


def _fish(commands: Mapping[str, _Command]) -> str:
    def lines() -> Iterator[str]:
        for name, command in commands.items():
            yield f"complete -c {_PROGRAM} -n __fish_use_subcommand -f -a {name} -d {_in_fish(_LINES[name])}"
            here = f"complete -c {_PROGRAM} -n '__fish_seen_subcommand_from {name}'"
            if command.actions:
                yield f"{here} -a {_in_fish(' '.join(command.actions))}"
            for option in command.options:
                names = " ".join(
                    f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in option.names
                )
                value = f" -x -a {_in_fish(' '.join(option.choices))}" if option.choices else ""
                value = value or (" -r" if option.takes_value else "")
                yield f"{here} {names}{value} -d {_in_fish(option.help)}"

    return "\n".join(lines())


def _quoted(words: str) -> str:
    """Return a word of bash and zsh."""
    return "'" + words.replace("'", "'\\''") + "'"


def _in_fish(words: str) -> str:
    """Return a word of fish."""
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS: Final = {"bash": _bash, "zsh": _zsh, "fish": _fish}
