"""Make the commands in advice whole, so that people can paste them: with the program and the run's folder."""

import re
from shlex import quote
from typing import Final

_COMMAND: Final = re.compile(r"`([a-z]+ [^`]*?\bLOGS\b[^`]*)`")
_PROGRAM: Final = "sglang-instrument"
_FOLDER: Final = re.compile(r"\bLOGS\b")
_WORD: Final = re.compile(r"\s*(?:[^\s`]|`[^`]*`|`)+")  # and the spaces before it


def whole_commands(advice: str, logs: str) -> str:
    """Return advice whose commands name this program and the run's folder.

    Args:
        advice: Words with commands between backticks; LOGS stands for the run's folder.
        logs: What the commands open; it is quoted for a shell where it needs to be.
    """

    def whole(match: re.Match[str]) -> str:
        command = _FOLDER.sub(lambda _: quote(logs), match[1], count=1)
        return f"`{_PROGRAM} {command}`"

    return _COMMAND.sub(whole, advice)


def words_and_commands(text: str) -> list[str]:
    """Return words and commands in turn: a command is what stands between backticks."""
    return (text[:1].upper() + text[1:]).split("`") if text else []


def wrapped(text: str, width: int, first: int = 0) -> list[str]:
    """Return text in lines that break between words, and never inside a command between backticks.

    Args:
        text: The text, one line.
        width: Of the terminal. A longer command has a line of its own, which the terminal breaks.
        first: How much of the first line is taken already.
    """
    lines, line, room = [], "", width - first
    for word in _WORD.findall(text):
        if line and len(line) + len(word) > room:
            lines.append(line)
            line, room = word.lstrip(), width
        else:
            line += word
    return [*lines, line]
