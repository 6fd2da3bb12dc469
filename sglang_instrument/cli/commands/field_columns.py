"""Show fields of the log: as columns (--fields tool_calls,tokens:max), or all those of an event."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.answers.as_json import as_json
from sglang_instrument.analysis.tables.column import Cell, Column
from sglang_instrument.cli.plain import say
from sglang_instrument.cli.tables import print_line
from sglang_instrument.plain_text import plain

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.executors.executor import Progress
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.analysis.tables.asked_fields import Field

_LONGEST: Final = 40  # characters of a text in a table; --json has all
_IN_COLUMNS: Final = frozenset({"request_id", "turn"})  # fields of events that have columns
_MEANING: Final = "a field of the log: the sum of its numbers, or its last text"


def add_fields(parser: argparse.ArgumentParser) -> None:
    """Add --fields."""
    words = "these fields of the log: NAME,NAME:max,NAME:mean"
    parser.add_argument("--fields", action="append", metavar="F", help=words)


def read_fields(
    run: Run, args: argparse.Namespace, steps: Sequence[int] | None, progress: Progress
) -> tuple[list[Field], pl.DataFrame]:
    """Return the fields that --fields asks for, none without it, and their sums by request and event.

    Raises:
        LogError: No record of the chosen steps has such a field. The message names the nearest.
        InstrumentError: --fields cannot be read.
    """
    import polars as pl

    from sglang_instrument.analysis.tables.asked_fields import (
        asked_fields,
        names_in,
        no_such_field,
    )

    if not args.fields:
        return [], pl.DataFrame()
    fields = asked_fields(args.fields)
    names = [field.name for field in fields]
    sums = run.read_tables("fields", tuple(names), steps, args.worker, args.validate, progress)
    for name in names:
        if name not in names_in(sums):
            known = names_in(run.read_tables("fields", (), steps, args.worker, args.validate, progress))
            raise no_such_field(run.name, quote(run.logs), name, known)
    return fields, sums


def add_values(
    rows: Sequence[dict[str, Any]], fields: Sequence[Field], sums: pl.DataFrame, key: Sequence[str]
) -> None:
    """Add `fields` to rows, where fields were asked for: their values by what the user wrote."""
    from sglang_instrument.analysis.tables.asked_fields import field_values, not_summed

    if fields:
        values = field_values(sums, fields, key)
        nothing = {field.label: None for field in fields}
        for row in rows:
            row["fields"] = values.get(tuple(row[name] for name in key), nothing)
        groups = {tuple(row[name] for name in key) for row in rows}
        for sentence in not_summed(sums, fields, key, groups):
            say(sentence, sys.stderr)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return a column for each field that rows have; of numbers, if no value is a text."""
    labels = rows[0].get("fields", {}) if rows else {}
    return [_column(label, _kind([row["fields"][label] for row in rows])) for label in labels]


def _column(label: str, kind: Any) -> Column:
    return Column(label, _MEANING, kind, title=plain(label), cell=lambda row: _cell(row["fields"][label]))


def _kind(values: Sequence[Any]) -> Any:
    kinds = {type(value) for value in values if value is not None}
    if str in kinds or not kinds:
        return "words"
    return "count" if kinds == {int} else "number"


def _cell(value: Any) -> Cell:
    """Return a value of a field as a cell: a long text is cut."""
    if isinstance(value, str) and len(value) > _LONGEST:
        return value[:_LONGEST] + "..."
    cell: Cell = value
    return cell


def with_fields(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events with `fields`, in place of the columns of their text; without those of other columns."""
    from sglang_instrument.analysis.reading.all_fields import fields_of

    shown = []
    for event in events:
        fields = fields_of(event["extra"], event["other_keys"])
        rest = {key: value for key, value in event.items() if key not in ("extra", "other_keys")}
        other_fields = {name: value for name, value in fields.items() if name not in _IN_COLUMNS}
        shown.append({**rest, "fields": other_fields})
    return shown


def print_fields(events: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each event that has fields."""
    events_with_fields = [event for event in events if event["fields"]]
    if events_with_fields:
        print_line("")
        print_line("fields of its events", "bold")
    for event in events_with_fields:
        turn = "" if event["turn"] is None else f", turn {event['turn'] + 1}"
        fields = ", ".join(f"{name} = {_short(value)}" for name, value in event["fields"].items())
        print_line(f"{event['event']}{turn}: {fields}")


def _short(value: Any) -> str:
    text = as_json(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
