"""Say what finished spans are appended to, and be that while nothing is installed."""

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from sglang_instrument.recording.measure.spans import Span


class Buffer(Protocol):
    """Where finished spans go: a list, or something that looks like one to the hot path."""

    def append(self, span: "Span", /) -> object:
        """Take one finished span."""


class Off:
    """The buffer while nothing is installed: what is off is not there."""

    __slots__ = ()

    def append(self, span: "Span", /) -> None:
        """Let the span go."""


OFF: Final = Off()
