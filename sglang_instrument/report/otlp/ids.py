"""Ids of traces and spans: of the same log they are always the same."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, Final, NamedTuple

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


class Parent(NamedTuple):
    """The span of another program that caused a request."""

    trace_id: bytes
    span_id: bytes


def parent_of(traceparent: Any) -> Parent | None:
    """Return what a header of W3C Trace Context names; None if it is not one, or names nothing."""
    match = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if match is None or traceparent.startswith("ff"):
        return None
    parent = Parent(bytes.fromhex(match[1]), bytes.fromhex(match[2]))
    return parent if any(parent.trace_id) and any(parent.span_id) else None


def trace_id(*key: object) -> bytes:
    """Return the 16 bytes that stand for a key."""
    return _digest(key, 16)


def span_id(*key: object) -> bytes:
    """Return the 8 bytes that stand for a key."""
    return _digest(key, 8)


def _digest(key: tuple[object, ...], size: int) -> bytes:
    words = "\0".join(map(str, key)).encode("utf-8", "replace")
    return blake2b(words, digest_size=size, person=b"sglang-otlp").digest()
