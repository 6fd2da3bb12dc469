"""Fill the pages that repeat what the code says, where they have `{{ commands }}`, `{{ events }}` and so on.

mkdocs calls `on_page_markdown` for each page; tests call the functions below it.
"""

import ast
import importlib.util
import os
import re
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from sglang_instrument import schema
from sglang_instrument.analysis.dataset.columns import TABLES, VIEWS
from sglang_instrument.analysis.tables.column import TYPES, Column
from sglang_instrument.analysis.tables.registry import all_tables
from sglang_instrument.analysis.tables.table import Table
from sglang_instrument.analysis.verdict.detectors import CAUSES
from sglang_instrument.analysis.verdict.evidence.detector import NamedCause
from sglang_instrument.cli.main import COMMANDS, parser_of

WORDS: Final = {"string": "text", "array": "list"}
ROOT: Final = Path(__file__).resolve().parents[1]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page's text with its placeholders filled."""
    return re.sub(r"^\{\{ (\w+) \}\}$", lambda found: _PARTS[found[1]](), markdown, flags=re.MULTILINE)


def commands() -> str:
    """Return a section for each command: what `--help` prints, 100 columns wide."""
    with patch.dict(os.environ, COLUMNS="100"):  # argparse's own way to be told a width
        helps = {name: parser_of(name).format_help() for name in COMMANDS}
    return "\n\n".join(f"## {name}\n\n```text\n{text}```" for name, text in helps.items())


def events() -> str:
    """Return the vocabulary as a table, one row an event."""
    rows = [f"| `{name}` | {kind.phase} | {_marks(kind)} |" for name, kind in sorted(schema.EVENTS.items())]
    return "\n".join(["| event | phase | |", "|---|---|---|", *rows])


def _marks(kind: schema.EventKind) -> str:
    marks = {"instant": kind.instant, "may wait for the GPU": kind.synced, "of the reference": kind.reference}
    return ", ".join(word for word, holds in marks.items() if holds)


def tables() -> str:
    """Return the text of each shipped patch table, folded."""
    found = sorted((ROOT / "patches").rglob("*.toml"))
    return "\n\n".join(_table(path) for path in found)


def _table(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    body = "\n".join(f"    {line}" if line else "" for line in ["```toml", *lines, "```"])
    name = path.relative_to(ROOT / "patches").with_suffix("")
    return f'### {name}\n\n??? abstract "patches/{name}.toml, {len(lines)} lines"\n\n{body}'


def columns() -> str:
    """Return a table for each table of a dataset, one row a column."""
    return "\n\n".join(f"### {name}\n\n{_columns(of)}" for name, of in {**TABLES, **VIEWS}.items())


def _columns(of: dict[str, Column]) -> str:
    rows = [f"| `{name}` | {_type(column)} | {column.meaning} |" for name, column in of.items()]
    return "\n".join(["| column | type | meaning |", "|---|---|---|", *rows])


def _type(column: Column) -> str:
    """Return the type of a column, and its unit."""
    if column.kind == "timestamp":
        return "timestamp, UTC, microseconds"
    return ", ".join(filter(None, (WORDS.get(TYPES[column.kind], TYPES[column.kind]), column.unit)))


def answers() -> str:
    """Return a section for each table that a command prints or a notebook asks, one row a column."""
    return "\n\n".join(f"## {name}\n\n{_answer(table)}" for name, table in all_tables().items())


def _answer(table: Table) -> str:
    printed = [f"`{name} {table.option}`".replace(" `", "`") for name in table.commands]
    places = [", ".join(printed)] if printed else []
    places += [f'`run.table("{table.name}")`'] if table.make else []
    places += ["`sql`"] if table.is_stored else []
    rows = [
        f"| {column.header if column.terminal else ''} | {_name_of(column)} | {_type(column)} "
        f"| {column.meaning} |"
        for column in table.columns
    ]
    head = ["| terminal | JSON, SQL, notebook | type | meaning |", "|---|---|---|---|"]
    return "\n".join([f"A row is {table.row}. {'; '.join(places)}", "", *head, *rows])


def _name_of(column: Column) -> str:
    return f"`{column.name}`" if column.json or column.frame else ""


def renamed() -> str:
    """Return the names of columns in earlier versions and now, one row a column."""
    rows = [
        f"| {table.name} | {column.former_title} | {_code_of(column.formerly)} | {column.header} "
        f"| {_name_of(column)} |"
        for table in all_tables().values()
        for column in table.columns
        if column.formerly or column.former_title
    ]
    head = "| table | header, earlier | JSON and SQL, earlier | header, now | JSON and SQL, now |"
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def _code_of(name: str) -> str:
    return f"`{name}`" if name else ""


def causes() -> str:
    """Return what the verdict names as a table; causes that one sentence defines share a row."""
    rows: dict[tuple[str, str], list[NamedCause]] = {}
    for cause in CAUSES.values():
        rows.setdefault((cause.scopes, cause.named_if), []).append(cause)
    lines = [
        f"| {', '.join(f'`{cause.name}`' for cause in alike)} | {scopes} | {named_if} |"
        for (scopes, named_if), alike in rows.items()
    ]
    return "\n".join(["| cause | scope | named if |", "|---|---|---|", *lines])


def support() -> str:
    """Return the files of tests/support as a table: what each is for, by its first line."""
    folder = ROOT / "tests/support"
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.py"))}
    purposes = {
        name: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for name, path in files.items()
    }
    rows = [f"| `{name}` | {(purpose or '').splitlines()[0]} |" for name, purpose in purposes.items()]
    return "\n".join(["| file | purpose |", "|---|---|", *rows])


def ways() -> str:
    """Return how work is started and what its records are, as the tests of these ways show it."""
    starts = _support("ways_to_start")
    kinds: dict[tuple[str, str], list[str]] = {}
    for way in starts.WAYS:
        started, _, kind = way.partition(", ")
        kinds.setdefault((started, starts.ids_of(way)), []).append(kind)
    rows = [f"| {_code(way)} | {', '.join(kind)} | all | {ids} |" for (way, ids), kind in kinds.items()]
    return "\n".join(["| started by | | recorded | ids of a task |", "|---|---|---|---|", *rows])


def launches() -> str:
    """Return how ranks are launched, as the tests of these ways show it."""
    known = _support("ways_to_launch")
    every = [*known.TORCHRUN, *known.LAUNCHERS]
    rows = [f"| {way} | all | one | `{known.rank_variable(way)}` |" for way in every]
    head = "| ranks started by | recorded | runs | the worker's number is |"
    return "\n".join([head, "|---|---|---|---|", *rows])


def _support(name: str) -> Any:
    """Return a module of tests/support."""
    spec = importlib.util.spec_from_file_location(f"support_{name}", ROOT / f"tests/support/{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _code(way: str) -> str:
    return f"`{way}`" if re.fullmatch(r"[\w.]*[._A-Z][\w.]*", way) else way


_PARTS: Final = {
    "ways": ways,
    "launches": launches,
    "support": support,
    "commands": commands,
    "events": events,
    "tables": tables,
    "columns": columns,
    "causes": causes,
    "answers": answers,
    "renamed": renamed,
}
