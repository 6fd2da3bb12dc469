"""Turn the fields of an event into values that a Perfetto trace shows beside it."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

from sglang_instrument.analysis.answers.as_json import as_json
from sglang_instrument.analysis.reading.all_fields import fields_of
from sglang_instrument.report.perfetto.packets import Value

_ELSEWHERE: Final = frozenset({"request_id", "turn"})  # the track's name, and a value of its own
_LONGEST: Final = 1000  # characters: Perfetto shows a value in one line
_MOST: Final = 2**63


def annotated(extra: str | None, other_keys: str | None, known: Container[str]) -> dict[str, Value]:
    """Return the fields of an event that have a value, without the `known` ones; see `TEXT_COLUMNS`."""
    return {
        name: _annotation(value)
        for name, value in fields_of(extra, other_keys).items()
        if value is not None and name not in known and name not in _ELSEWHERE
    }


def _annotation(value: Any) -> Value:
    if isinstance(value, float) or (isinstance(value, int) and -_MOST <= value < _MOST):
        return value
    text = value if isinstance(value, str) else as_json(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
