"""Call functions with each span that begins, while somebody asks for that; at no cost to anybody else."""

from collections.abc import Callable
from typing import Final

from sglang_instrument.recording import spans, tasks
from sglang_instrument.recording.spans import Span

_Began = Callable[[Span], object]

_enter_task: Final = spans.enter_task
_listening: tuple[_Began, ...] = ()


def listen(began: _Began) -> None:
    """Call `began(span)` with each span from now on, on its thread, right after its start was taken."""
    global _listening
    _listening = (*(one for one in _listening if one != began), began)
    spans.running_tasks = True  # as if a task ran all the time: spans that ask for theirs come by here
    spans.enter_task = _enter


def ignore(began: _Began) -> None:
    """Do not call `began` any more."""
    global _listening
    _listening = tuple(one for one in _listening if one != began)
    if not _listening:
        spans.running_tasks = tasks.running
        spans.enter_task = _enter_task


def _enter(entering: Span) -> None:
    for began in _listening:
        began(entering)
    _enter_task(entering)
