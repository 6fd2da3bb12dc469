"""Define the buffer that finished spans are appended to, and the one used while nothing is installed."""

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from sglang_instrument.recording.measure.spans import Span


class Buffer(Protocol):
    """Takes finished spans: a list, or any object with `append`."""

    def append(self, span: "Span", /) -> object:
        """Take one finished span."""


class Off:
    """The buffer while nothing is installed: it discards spans."""

    __slots__ = ()

    def append(self, span: "Span", /) -> None:
        """Discard the span."""


OFF: Final = Off()
