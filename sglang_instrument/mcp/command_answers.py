"""Get what a command answers with --json, in this process: an agent reads the same as a person."""

import io
import threading
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from shlex import join
from typing import Any, Final

import orjson

from sglang_instrument.errors import InstrumentError

# One at a time: commands print on the process's streams, which are redirected meanwhile.
_one_at_a_time: Final = threading.Lock()
_NAME: Final = "sglang-instrument"
_WITH_ANSWER: Final = (0, 1, 3)  # exit codes; 1 and 3 say that the answer is bad news, which stands in it


def answer_of(command: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return what a command prints with --json.

    Args:
        command: Its name.
        arguments: What follows; a path first.

    Raises:
        InstrumentError: The command has no answer; the message is what it tells a person.
    """
    from sglang_instrument.cli.main import main

    printed, messages = io.StringIO(), io.StringIO()
    with _one_at_a_time, redirect_stdout(printed), redirect_stderr(messages):
        code = main([command, *arguments, "--json"])
    if code not in _WITH_ANSWER or not printed.getvalue().startswith("{"):
        words = messages.getvalue().strip().splitlines() or [f"{command} ended with {code}"]
        raise InstrumentError(words[-1].removeprefix(f"{_NAME}: "))
    answer: dict[str, Any] = orjson.loads(printed.getvalue())
    return answer


def as_typed(command: str, arguments: Sequence[str]) -> str:
    """Return the command that shows the same to a person, to paste into a shell."""
    return join([_NAME, command, *arguments])
