"""Say what a buffer of spans is, and discard spans while nothing is installed."""

from typing import Any, Final, Protocol


class Buffer(Protocol):
    """Takes finished spans: a list, or any object with `append`."""

    def append(self, span: Any, /) -> object:
        """Take one finished span."""


class Off:
    """The buffer while nothing is installed: it discards spans."""

    __slots__ = ()

    def append(self, span: Any, /) -> None:
        """Discard the span."""


OFF: Final = Off()
