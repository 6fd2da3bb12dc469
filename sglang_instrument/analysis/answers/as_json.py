"""Encode an answer as JSON, even where its strings and numbers are not valid JSON."""

from collections.abc import Callable
from typing import Any, Final

import orjson

_DEEPEST: Final = 100


def as_json(answer: Any, option: int = 0, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return `answer` as JSON bytes, encoded by orjson.

    What JSON cannot hold is replaced: bytes of a file name that are not UTF-8 by escapes as in Python's
    source, integers over 64 bits by strings, anything below 100 levels by "...".

    Args:
        answer: The answer.
        option: As of `orjson.dumps`.
        default: As of `orjson.dumps`: what to write in place of an object that it does not know.
    """
    try:
        return orjson.dumps(answer, default, option)
    except TypeError:
        return orjson.dumps(_writable(answer, 0), default, option)


def _writable(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    if isinstance(value, (dict, list, tuple)) and depth > _DEEPEST:
        return "..."
    if isinstance(value, dict):
        return {_writable(key, 0): _writable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_writable(item, depth + 1) for item in value]
    return value
