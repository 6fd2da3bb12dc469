"""Turn fields of `extra` into typed columns; most fields are in few lines only."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.reading.records.fields import ColumnFields
from sglang_instrument.analysis.reading.sample_facts import label_of, version_of

#: Columns of fields that most logs lack: the field, and how to read it.
_SELDOM: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "weight_version": ("weight_version", version_of),
    "first_weight_version": ("first_weight_version", version_of),
    "sample": ("sample", label_of),
    "resumed_tokens": ("resumed_tokens", version_of),
    "verifications": ("spec_verify_ct", version_of),
    "agent": ("agent", label_of),
    "parent_request": ("parent_request", label_of),
}
#: The names of the columns.
FIELD_COLUMNS: Final = (
    *("request_id", "turn", "turns", "finish_reason", "reward", "response_tokens", "tool", "group"),
    *_SELDOM,
)


class FieldColumns:
    """The columns of fields while lines are added, and which lines have been looked at for them.

    Args:
        kinds: The types of columns by name: of `FIELD_COLUMNS`, or of all but "tool".
    """

    def __init__(self, kinds: Mapping[str, Any]) -> None:
        self._kinds = kinds
        self._lists: dict[str, list[Any]] = {name: [] for name in kinds}
        self._has: list[bool] = []

    def add(self, looked_at: list[bool], fields: Sequence[ColumnFields]) -> None:
        """Add lines: which of them have fields, and these fields."""
        self._has += looked_at
        lists = self._lists
        lists["request_id"] += [logged.request_id for logged in fields]
        lists["turn"] += [logged.turn for logged in fields]
        lists["turns"] += [logged.turns for logged in fields]
        lists["finish_reason"] += [logged.finish_reason for logged in fields]
        lists["reward"] += [logged.reward for logged in fields]
        lists["response_tokens"] += _all_response_tokens(fields)
        if "tool" in lists:
            lists["tool"] += [logged.tool for logged in fields]
        self._add_seldom(fields)

    def _add_seldom(self, fields: Sequence[ColumnFields]) -> None:
        lists = self._lists
        if not _have_seldom(fields):  # as in most logs
            for name in (*_SELDOM, "group"):
                lists[name] += [None] * len(fields)
            return
        for name, (field, read) in _SELDOM.items():
            lists[name] += _read(fields, field, read)
        groups, indices = _read(fields, "group", label_of), _read(fields, "group_index", label_of)
        lists["group"] += map(_first_of, groups, indices) if any(indices) else groups

    def filled(self) -> list[pl.Series]:
        """Return the columns over all lines, with nulls for the other lines."""
        ids = self._lists["request_id"]
        if int in set(map(type, ids)):
            self._lists["request_id"] = [value if value is None else str(value) for value in ids]
        columns = [column_of(name, values, self._kinds[name]) for name, values in self._lists.items()]
        if all(self._has):
            return columns
        rows = pl.Series(self._has, dtype=pl.Boolean).arg_true()
        number = pl.int_range(len(rows), dtype=pl.UInt32, eager=True)
        index = pl.repeat(None, len(self._has), dtype=pl.UInt32, eager=True).scatter(rows, number)
        return [
            _nulls(column, len(index)) if column.null_count() == len(column) else column.gather(index)
            for column in columns
        ]


def column_of(name: str, values: list[Any], kind: Any) -> pl.Series:
    """Return a column; one whose values are all the same, as many are, is made at almost no cost."""
    if values and values[0] == values[-1] and values.count(values[0]) == len(values):
        same: pl.Series = pl.Series(name, values[:1], dtype=kind).new_from_index(0, len(values))
        return same
    return pl.Series(name, values, dtype=kind)


def _nulls(column: pl.Series, length: int) -> pl.Series:
    nulls: pl.Series = pl.Series(column.name, [None], dtype=column.dtype).new_from_index(0, length)
    return nulls


def _have_seldom(fields: Sequence[ColumnFields]) -> bool:
    """Return whether any has a field that `FieldColumns._add_seldom` reads."""
    return bool(
        [
            True
            for logged in fields
            if logged.weight_version is not None
            or logged.first_weight_version is not None
            or logged.group is not None
            or logged.group_index is not None
            or logged.sample is not None
            or logged.resumed_tokens is not None
            or logged.spec_verify_ct is not None
            or logged.agent is not None
            or logged.parent_request is not None
        ]
    )


def _read(fields: Sequence[Any], name: str, read: Callable[[Any], Any]) -> list[Any]:
    """Return a field that most lines lack, read where it is there."""
    values = list(map(attrgetter(name), fields))
    has_any = values.count(None) < len(values)
    return [None if value is None else read(value) for value in values] if has_any else values


def _first_of(first: str | None, other: str | None) -> str | None:
    return other if first is None else first


def _all_response_tokens(fields: Sequence[ColumnFields]) -> list[int | None]:
    """Return `response_tokens` of each, with one call for those only that hold any."""
    return [
        None
        if logged.response_length is None
        and logged.generated_tokens is None
        and logged.completion_tokens is None
        and logged.actual_response_tokens is None
        else response_tokens(logged)
        for logged in fields
    ]


def response_tokens(fields: ColumnFields) -> int | None:
    """Return the tokens that the model wrote; `response_length` also counts the replies of tools."""
    tokens = fields.actual_response_tokens
    if type(tokens) is not int:
        tokens = fields.generated_tokens if fields.completion_tokens is None else fields.completion_tokens
    return fields.response_length if tokens is None else tokens
