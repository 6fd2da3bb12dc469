"""Describe what `--json` prints, and print it as a JSON Schema: `--json-schema` needs no run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sglang_instrument.analysis.tables.column import TYPES, Column
from sglang_instrument.analysis.tables.table import Table
from sglang_instrument.cli.tables import print_json

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class Key:
    """What a key of an answer holds.

    Attributes:
        holds: Rows of a table; an object with these keys; or types of JSON: "string", "integer or array".
        meaning: What it is; of a table, what a row is says it.
        optional: Whether it is there only if an option asks for it.
        is_row: Whether it holds one row in place of a list of rows; null, where there is none.
        is_list: Whether it holds a list of objects with these keys in place of one.
    """

    holds: Table | Mapping[str, Key] | str
    meaning: str = ""
    optional: bool = False
    is_row: bool = False
    is_list: bool = False


Answer = Mapping[str, Key]
FOLDER: Final = Key("string", "the folder of the run")
MISSING: Final = Key("array", "sentences: what the log does not tell, and what would record it")


class PrintSchema(argparse.Action):
    """Print a JSON Schema of what --json prints, and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str, answer: Answer) -> None:
        """Take the keys of the answer."""
        super().__init__(option_strings, dest, nargs=0, help="print a JSON Schema of what --json prints")
        self._answer = answer

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the schema."""
        print_json({"$schema": _DIALECT, **schema_of(self._answer)})
        sys.stdout.flush()
        parser.exit()


def schema_of(answer: Answer) -> dict[str, Any]:
    """Return the JSON Schema of an answer."""
    return _object({name: (_of_key(key), key.optional) for name, key in answer.items()})


def _object(members: Mapping[str, tuple[dict[str, Any], bool]]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in members.items()},
        "required": [name for name, (_, optional) in members.items() if not optional],
    }


def _of_key(key: Key) -> dict[str, Any]:
    if isinstance(key.holds, str):
        return {"type": [*key.holds.split(" or "), "null"], "description": key.meaning}
    if not isinstance(key.holds, Table):
        schema = schema_of(key.holds)
        if key.is_list:
            return {"type": ["array", "null"], "items": schema, "description": key.meaning}
        return {**schema, "type": ["object", "null"], "description": key.meaning}
    row = _object(
        {column.name: (_of_column(column), column.optional) for column in key.holds.columns if column.json}
    )
    meaning = key.meaning or f"a row is {key.holds.row}"
    if key.is_row:
        return {**row, "type": ["object", "null"], "description": meaning}
    return {"type": "array", "items": row, "description": meaning}


def _of_column(column: Column) -> dict[str, Any]:
    unit = {"unit": column.unit} if column.unit else {}
    return {"type": [*TYPES[column.kind].split(" or "), "null"], "description": column.meaning, **unit}
