"""What a way to reach nodes has to offer: the nodes that are alive, and calls of `on_node` on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

Function = Callable[..., Any]


class Node(Protocol):
    """A node that holds files of the run. Whatever its calls raise, the node has failed."""

    name: str
    #: Whether the bytes travel, and are compressed for it.
    is_far: bool

    def calls(self, function: Function, arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Call a function of `on_node` there, once for each of `arguments`; yield the answers in order."""
        ...


class NodeSource(Protocol):
    """A way to reach nodes."""

    def nodes(self) -> Mapping[str, Node]:
        """Return by id the nodes that can be reached now; nodes may join and leave."""
        ...

    def lost(self) -> dict[str, str]:
        """Return by name the nodes that are known and cannot be reached, with the reason."""
        ...
