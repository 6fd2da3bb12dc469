"""Call listeners with each span that begins; without listeners this costs nothing."""

from collections.abc import Callable

from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.measure.spans import Span

_Began = Callable[[Span], object]

_listening: tuple[_Began, ...] = ()


def listen(began: _Began) -> None:
    """Call `began(span)` with each span from now on, on its thread, right after its start time is read."""
    global _listening
    _listening = (*(listener for listener in _listening if listener != began), began)
    spans.call_at_entry(_tell)


def ignore(began: _Began) -> None:
    """Do not call `began` any more."""
    global _listening
    _listening = tuple(listener for listener in _listening if listener != began)
    if not _listening:
        spans.call_at_entry(None)


def _tell(entering: Span) -> None:
    for began in _listening:
        began(entering)
