"""Keep prefixes of conversations in a tree, and evict the least recently used, as SGLang's radix cache does.

The tree is one of segments rather than of tokens: a prompt is the path of its segments (the system's text,
the question, each reply, each answer of a tool), for conversations branch nowhere else.
Source: `sglang/srt/mem_cache/radix_cache.py` (match_prefix, insert, evict, inc_lock_ref), page size 1.
"""

import heapq
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple


class Segment(NamedTuple):
    """A piece of a prompt: equal keys below equal prefixes are equal tokens."""

    key: str
    tokens: int


class TreeNode:
    """A segment in the tree; `locks` counts the running requests that need it or one below it."""

    __slots__ = ("children", "key", "locks", "number", "parent", "tokens", "used")

    def __init__(self, key: str, tokens: int, parent: "TreeNode | None", number: int) -> None:
        self.key, self.tokens, self.parent, self.number = key, tokens, parent, number
        self.children: dict[str, TreeNode] = {}
        self.locks, self.used = 0, 0


class RadixTree:
    """The prefixes that a server keeps. No running request needs its `evictable` tokens."""

    def __init__(self, enabled: bool = True) -> None:
        self.enabled, self.evictable, self.locked = enabled, 0, 0
        self._numbers, self._uses = count(1), count(1)
        self.root = TreeNode("", 0, None, 0)

    def match(self, path: Sequence[Segment]) -> tuple[TreeNode, int]:
        """Return the node where the known prefix of a prompt ends, and its tokens."""
        node, tokens, use = self.root, 0, next(self._uses)
        for segment in path if self.enabled else ():
            child = node.children.get(segment.key)
            if child is None:
                break
            node, tokens = child, tokens + child.tokens
            node.used = use
        return node, tokens

    def insert(self, path: Sequence[Segment]) -> tuple[TreeNode, int]:
        """Keep a prompt; return its last node, and how many of its tokens are new in the tree."""
        node, new, use = self.root, 0, next(self._uses)
        for segment in path:
            child = node.children.get(segment.key)
            if child is None:
                child = TreeNode(segment.key, segment.tokens, node, next(self._numbers))
                node.children[segment.key] = child
                new += segment.tokens
                self.evictable += segment.tokens
            node = child
            node.used = use
        return node, new

    def lock(self, node: TreeNode) -> None:
        """Keep a prefix while a request needs it."""
        needed: TreeNode | None = node
        while needed is not None and needed.parent is not None:
            if needed.locks == 0:
                self.evictable -= needed.tokens
                self.locked += needed.tokens
            needed.locks += 1
            needed = needed.parent

    def unlock(self, node: TreeNode) -> None:
        """Say that a request needs a prefix no longer."""
        needed: TreeNode | None = node
        while needed is not None and needed.parent is not None:
            needed.locks -= 1
            if needed.locks == 0:
                self.evictable += needed.tokens
                self.locked -= needed.tokens
            needed = needed.parent

    def evict(self, tokens: int) -> int:
        """Throw leaves away until so many tokens are free; return how many were freed."""
        leaves = [(node.used, node.number, node) for node in self._leaves()]
        heapq.heapify(leaves)
        freed = 0
        while leaves and freed < tokens:
            _, _, node = heapq.heappop(leaves)
            freed += node.tokens
            parent = node.parent
            if parent is None:
                break
            del parent.children[node.key]
            if parent.parent is not None and not parent.children and parent.locks == 0:
                heapq.heappush(leaves, (parent.used, parent.number, parent))
        self.evictable -= freed
        return freed

    def flush(self) -> int:
        """Throw everything away that no request needs; return how many tokens were freed."""
        return self.evict(self.evictable) if self.evictable else 0

    def _leaves(self) -> list[TreeNode]:
        leaves, waiting = [], [self.root]
        while waiting:
            node = waiting.pop()
            if not node.children and node.locks == 0 and node.parent is not None:
                leaves.append(node)
            waiting.extend(node.children.values())
        return leaves
