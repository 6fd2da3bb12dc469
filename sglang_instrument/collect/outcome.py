"""What a collection brought: what each node gave, and what is not whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_instrument.collect.collected import Collected


@dataclass
class NodeReport:
    """What one node gave.

    Attributes:
        name: The node.
        error: Why it could not be reached, or failed in the middle; None if it answered to the end.
        files: How many files of the run it holds.
        new_bytes: How many bytes it gave now.
        sent_bytes: How many bytes travelled for it, compressed.
        unfinished_bytes: Bytes after the last whole line of its logs: they come next time.
    """

    name: str
    error: str | None = None
    files: int = 0
    new_bytes: int = 0
    sent_bytes: int = 0
    unfinished_bytes: int = 0


@dataclass
class Missing:
    """A file that is here in part or not at all; `bytes` is None if no node could say how long it is."""

    path: str
    node: str
    held_bytes: int
    bytes: int | None


@dataclass
class CollectOutcome:
    """What a collection brought.

    Attributes:
        nodes: By name, what each gave.
        missing: Files that are not whole here, by their path here.
        files: All files that are here.
        pruned: How many of these `prune` deleted here: they are not brought again.
    """

    nodes: dict[str, NodeReport] = field(default_factory=dict)
    missing: dict[str, Missing] = field(default_factory=dict)
    files: list[Collected] = field(default_factory=list)
    pruned: int = 0
