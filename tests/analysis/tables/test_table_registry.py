"""A table declares its columns once; terminal, JSON, schema, SQL, notebook and reference follow."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_instrument
from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.tables.registry import all_tables
from sglang_instrument.cli.main import COMMANDS, main, tables_of
from sglang_instrument.errors import InstrumentError
from sglang_instrument.testing import SlowEngine, synthetic_run

TABLES = all_tables()
MADE = [name for name, table in TABLES.items() if table.make is not None]
PACKAGE = Path(sglang_instrument.__file__).parent
ENDS = {"time": "_sec", "fine time": "_sec", "moment": "_us", "bytes": "_bytes"}
#: A column of a field that the log has, and no table: tokens of the prompt, of the events of a request.
NEW_COLUMN = 'Column("checked_tokens", "tokens that the checker read", "count", field="checked_tokens"),'
#: A table that no table of ours knows, in a folder of its own.
NEW_TABLE = '''
"""Greetings."""
import polars as pl
from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

def make(run):
    return pl.DataFrame({"worker": [0, 1], "greeting_sec": [0.5, 1.5]})

GREETINGS = Table("greetings", "a greeting", (
    Column("worker", "that greets", "id"), Column("greeting_sec", "how long it greets", "time"),
), make=make, is_stored=True)
'''


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs") / "greeted"
    return synthetic_run(folder, steps=3, workers=2, requests=8, causes=[SlowEngine(2, 1, factor=6.0)])


@pytest.mark.parametrize("name", TABLES)
def test_a_column_says_what_it_is_and_ends_in_its_unit(name):
    columns = TABLES[name].columns
    assert len({column.name for column in columns}) == len(columns)
    for column in columns:
        assert column.meaning
        if column.json or column.frame:
            assert f"_{column.name}".endswith(ENDS.get(column.kind, "")), column.name
            assert column.name == column.name.lower().replace(" ", "_")


@pytest.mark.parametrize("name", MADE)
def test_a_notebook_gets_a_table_with_the_declared_columns_and_types(logs, stored, name):
    frame = open_run(logs).table(name)
    assert dict(frame.schema) == TABLES[name].schema


def test_a_table_that_is_not_there_is_named_with_those_that_are(logs):
    with pytest.raises(InstrumentError, match=r"no table 'turnz'; the tables are: .*requests.*turns"):
        open_run(logs).table("turnz")


def test_sql_knows_what_a_column_is(logs):
    asked = "select column_name, comment from duckdb_columns() where table_name = 'requests'"
    comments = dict(open_run(logs).sql(asked).iter_rows())
    assert comments["engine_sec"] == "its time in calls of the engine; seconds"
    assert None not in comments.values()


ASKED = {
    "requests": ["", "--cdf", "--cdf --step 2", "--fields generated_tokens:max", "--request 2-1-0002"],
    "turns": ["", "--tools"],
    "workers": ["", "--step 2"],
    "loop": ["", "--replicas +1"],
    "staleness": ["--by-worker --groups"],
    "waste": [""],
    "weights": ["", "--lineage"],
    "lengths": ["", "--speculation", "--caps"],
    "gaps": ["", "--curve"],
    "servers": ["", "--over-time"],
    "events": ["", "--step 2", "--step 1-2 --fields generated_tokens"],
    "summary": ["", "--step 2", "--by day"],
    "whatif": ["--max-tokens 100"],
    "advise": [""],
    "runs": [""],
    "check": [""],
    "watch": ["--once"],
}


@pytest.mark.parametrize(("command", "options"), [(name, each) for name in ASKED for each in ASKED[name]])
def test_json_is_as_its_schema_says(logs, stored, capsys, command, options):
    assert main([command, "--json-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert main([command, str(logs), "--json", *options.split()]) == 0
    assert list(problems(schema, json.loads(capsys.readouterr().out), command)) == []


def problems(schema, value, place):
    """Yield where a value is not as a schema says; a key that the schema does not name is a problem."""
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    kinds |= {"integer": int, "number": (int, float)}
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, kinds[kind]) for kind in types):
        yield f"{place}: {value!r} is no {types}"
    if isinstance(value, dict) and "properties" in schema:
        yield from (f"{place}: no {name}" for name in schema["required"] if name not in value)
        unknown = value.keys() - schema["properties"].keys()
        yield from (f"{place}: {name} is not described" for name in unknown)
        for name in value.keys() & schema["properties"].keys():
            yield from problems(schema["properties"][name], value[name], f"{place}.{name}")
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from problems(schema["items"], item, f"{place}[{number}]")


def test_commands_name_the_tables_that_they_print():
    printed = {
        (table.name, name)
        for name, module in COMMANDS.items()
        for table in tables_of(importlib.import_module(module))
    }
    declared = {(table.name, command) for table in TABLES.values() for command in table.commands}
    assert declared == printed


@pytest.fixture(scope="module")
def changed(tmp_path_factory, logs):
    """A copy of the package with one line more in one file, and one file more."""
    copied = tmp_path_factory.mktemp("changed") / "sglang_instrument"
    shutil.copytree(PACKAGE, copied)  # with what is compiled of it: files keep their times
    if not (copied / "patches").exists():
        shutil.copytree(PACKAGE.parent / "patches", copied / "patches")
    requests = copied / "analysis/tables/rollout/requests.py"
    before, mark, after = requests.read_text().partition("        START,\n")
    requests.write_text(f"{before}        {NEW_COLUMN}\n{mark}{after}")
    (copied / "analysis/tables/own").mkdir()
    (copied / "analysis/tables/own/__init__.py").write_text("")
    (copied / "analysis/tables/own/greetings.py").write_text(NEW_TABLE)
    for log in logs.glob("step_*/worker_*.jsonl"):
        lines = log.read_text().splitlines()
        log.write_text("\n".join(map(with_checked_tokens, lines)) + "\n")
    return copied.parent


def with_checked_tokens(line):
    record = json.loads(line)
    if record["event"] == "async_rollout_request_complete":
        record["extra"]["checked_tokens"] = 17
    return json.dumps(record)


@pytest.fixture
def ask(changed):
    """Run pieces of code one after another in a process of the changed package; return what each prints."""

    def run(*pieces):
        program = [sys.executable, "-c", ASKING, json.dumps(pieces)]
        done = subprocess.run(program, capture_output=True, text=True, cwd=changed)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


ASKING = """
import contextlib, io, json, sys
printed = []
for piece in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(piece, {})
    printed.append(output.getvalue())
print(json.dumps(printed))
"""


def command(*arguments):
    words = list(map(str, arguments))
    return f"from sglang_instrument.cli.main import main; assert main({words!r}) == 0"


def test_one_line_adds_a_field_of_the_log_as_a_column_everywhere(ask, logs):
    asked = "select distinct checked_tokens from requests"
    framed = f"from sglang_instrument.analysis import open_run; print(open_run({str(logs)!r}).requests()"
    printed, rows, explained, schema, answer, csv, column, page = ask(
        command("requests", logs),
        command("requests", logs, "--json"),
        command("requests", "--explain"),
        command("requests", "--json-schema"),
        command("sql", logs, asked, "--json"),
        command("sql", logs, asked, "--csv"),
        f"{framed}['checked_tokens'].unique().to_list())",
        PAGE,
    )
    assert "checked tokens" in printed.splitlines()[1]
    assert json.loads(rows)["requests"][0]["checked_tokens"] == 17
    assert "tokens that the checker read [checked_tokens]" in " ".join(explained.split())
    row = json.loads(schema)["properties"]["requests"]["items"]["properties"]
    assert row["checked_tokens"] == {
        "type": ["integer", "null"],
        "description": "tokens that the checker read",
    }
    assert json.loads(answer)["rows"] == [{"checked_tokens": 17}]
    assert csv.split() == ["checked_tokens", "17"]
    assert "17" in column
    assert "| checked tokens | `checked_tokens` | integer | tokens that the checker read |" in page


def test_one_file_adds_a_table(ask, logs):
    framed = f"from sglang_instrument.analysis import open_run; print(open_run({str(logs)!r})"
    csv, table, page = ask(
        command("sql", logs, "select greeting_sec from greetings", "--csv"),
        f"{framed}.table('greetings'))",
        PAGE,
    )
    assert "greeting_sec\n0.5" in csv
    assert "1.5" in table
    assert "| greeting | `greeting_sec` | number, seconds | how long it greets |" in page


PAGE = f"""
import runpy
print(runpy.run_path({str(PACKAGE.parent / "docs/hooks.py")!r})["answers"]())
"""
