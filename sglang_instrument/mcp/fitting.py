"""Cut an answer so that it fits: an agent reads each byte of it, and asks for the rest if it wants more."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from sglang_instrument.analysis.answers.as_json import as_json

#: An answer has fewer bytes than this.
MOST_BYTES: Final = 4096
_LONGEST_TEXT: Final = 400  # characters
_DIGITS: Final = 5
_STAYS: Final = frozenset({"command", "not_observed"})
_MOST_ROWS: Final = MOST_BYTES // 3  # a row has a comma and two brackets


def fitted(answer: Mapping[str, Any], rest: Mapping[str, Any] | None = None, has_more: bool = False) -> str:
    """Return an answer as JSON of fewer than `MOST_BYTES` bytes.

    Values that are not known are left out, numbers have five digits, long texts are cut. Then rows at the end
    of the longest list go, one after the other: `left_out` counts them by key.

    Args:
        answer: The answer.
        rest: What to call for rows that were left out, such as {"tool": "table", "name": "findings"}; with
            `offset`, the number of rows that are in the answer is added to it.
        has_more: Whether there are rows beyond those of the answer.
    """
    left_out = {
        key: len(rows) - _MOST_ROWS
        for key, rows in answer.items()
        if isinstance(rows, (list, tuple)) and key not in _STAYS and len(rows) > _MOST_ROWS
    }
    cut = _plain({key: value[:_MOST_ROWS] if key in left_out else value for key, value in answer.items()})
    while len(text := _text(cut, left_out, rest, has_more)) >= MOST_BYTES:
        lists = {
            key: rows for key, rows in cut.items() if isinstance(rows, list) and rows and key not in _STAYS
        }
        if not lists:
            key = max(cut.keys() - _STAYS, key=lambda name: len(orjson.dumps(cut[name])))
            left_out[key] = 1
            del cut[key]
            continue
        key = max(lists, key=lambda name: len(orjson.dumps(lists[name])))
        gone = max(1, len(lists[key]) // 8)
        left_out[key] = left_out.get(key, 0) + gone
        del lists[key][-gone:]
    return text


def _text(
    cut: dict[str, Any], left_out: Mapping[str, int], rest: Mapping[str, Any] | None, has_more: bool
) -> str:
    more: dict[str, Any] = {"left_out": left_out} if left_out else {}
    if (left_out or has_more) and rest is not None:
        more["next"] = dict(rest)
        if "offset" in rest:
            lists = (rows for key, rows in cut.items() if isinstance(rows, list) and key not in _STAYS)
            more["next"]["offset"] = rest["offset"] + len(next(lists, []))
    return as_json({**cut, **more}).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): plain for key, item in value.items() if (plain := _plain(item)) is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]} ..."
    return value
