"""Run a command of ours with a real terminal as its output."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from io import TextIOWrapper

from sglang_instrument.cli.main import main

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def shown(width: int, *arguments: object, code: int = 0) -> str:
    """Return what a command prints on a terminal of that width, with its escape sequences."""
    pieces: list[bytes] = []
    with _terminal(width, pieces) as terminal, contextlib.redirect_stdout(terminal):
        assert main([str(argument) for argument in arguments]) == code
    return b"".join(pieces).decode().replace("\r\n", "\n")


def shown_plain(width: int, *arguments: object, code: int = 0) -> str:
    """Return the same without escape sequences."""
    return _ESCAPES.sub("", shown(width, *arguments, code=code))


@contextlib.contextmanager
def _terminal(width: int, pieces: list[bytes]) -> Iterator[TextIOWrapper]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    reader = threading.Thread(target=_read, args=(ours, pieces), daemon=True)
    reader.start()
    try:
        with os.fdopen(theirs, "w") as terminal:
            yield terminal
            sys.stdout.flush()
        reader.join(10)
    finally:
        os.close(ours)


def _read(ours: int, pieces: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # Linux raises EIO at the end
        while piece := os.read(ours, 65536):
            pieces.append(piece)
