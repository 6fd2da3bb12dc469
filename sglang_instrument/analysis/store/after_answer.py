"""Write to the store after a command has printed its answer; elsewhere, as in a notebook, at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_Write = Callable[[], object]

_WAITING: Final[ContextVar[list[_Write] | None]] = ContextVar("waiting", default=None)


def write_after_answer(write: _Write) -> None:
    """Call a function that writes: after the block of `answering`, or at once where there is none."""
    waiting = _WAITING.get()
    if waiting is None:
        write()
    else:
        waiting.append(write)


@contextmanager
def answering() -> Iterator[None]:
    """Let what is to be written wait until the end of the block; after an error, nothing is written."""
    waiting: list[_Write] = []
    token = _WAITING.set(waiting)
    try:
        yield
    finally:
        _WAITING.reset(token)
    for write in waiting:
        write()


def write_now() -> None:
    """Write at once what waits: for an answer that needs it in the store."""
    waiting = _WAITING.get()
    while waiting:
        waiting.pop(0)()
