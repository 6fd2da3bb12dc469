"""Call functions with each span that begins, while somebody asks for that; at no cost to anybody else."""

from collections.abc import Callable

from sglang_instrument import native
from sglang_instrument.recording import spans
from sglang_instrument.recording.spans import Span

_compiled = native.take_over(globals(), "spans")
_Began = Callable[[Span], object]

_enter_task = spans.enter_task
_listening: tuple[_Began, ...] = ()


def listen(began: _Began) -> None:
    """Call `began(span)` with each span from now on, on its thread, right after its start was taken."""
    global _listening
    _listening = (*(one for one in _listening if one != began), began)
    spans.running_tasks, spans.enter_task = True, _enter  # as if a task ran all the time: all come by here
    if _compiled is not None:
        _compiled.call_at_entry(_begin)


def ignore(began: _Began) -> None:
    """Do not call `began` any more."""
    global _listening
    _listening = tuple(one for one in _listening if one != began)
    if not _listening:
        spans.running_tasks, spans.enter_task = spans.asyncios_tasks, _enter_task
        if _compiled is not None:
            _compiled.call_at_entry(None)


def _enter(entering: Span) -> None:
    _begin(entering)
    _enter_task(entering)


def _begin(entering: Span) -> None:
    for began in _listening:
        began(entering)
