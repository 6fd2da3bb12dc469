"""Show spans as NVTX ranges, for nsys; on request only, and without cost otherwise.

Ranges are of the kind that may overlap (`range_start`, `range_end`): ranges of coroutines do.
"""

import sys
from typing import Any, Final

from sglang_instrument.recording.measure.spans import Buffer, Span
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.recording.safety.notices import notice
from sglang_instrument.recording.watch import span_listeners

_MOST_OPEN: Final = 100_000  # ranges; one whose span is never recorded stays open
_open: dict[int, Any] = {}


class Ranges:
    """A buffer that ends the range of each span, and passes the span on to the real buffer."""

    __slots__ = ("_taking",)

    def __init__(self, taking: Buffer) -> None:
        self._taking = taking

    def append(self, span: Span, /) -> None:
        """End the span's range; pass the span on."""
        handle = _open.pop(id(span), None)
        if handle is not None:
            sys.modules["torch"].cuda.nvtx.range_end(handle)
        self._taking.append(span)


def on() -> None:
    """Begin a range with each span from now on."""
    span_listeners.listen(_begin)


def off() -> None:
    """Begin no more ranges."""
    span_listeners.ignore(_begin)
    _open.clear()


def _begin(span: Span) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and len(_open) < _MOST_OPEN:
        try:
            _open[id(span)] = torch.cuda.nvtx.range_start(span.event)
        except BaseException as error:  # a build of torch without CUDA
            reraise_if_programs_own()
            notice("nvtx", f"nvtx=True shows nothing here: {error}")
            off()
