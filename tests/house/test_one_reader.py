"""One reader decodes lines of our log: `analysis/reading`. All others name the fields that they need."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "sglang_instrument"
OFFLINE = ("analysis", "report", "live", "cli", "mcp", "collect")
READER = "analysis/reading/"
FOREIGN = "analysis/foreign/"  # lines of other projects

#: Calls that decode JSON, and the modules that decode something else than lines of a log.
DECODES = {"Decoder", "decode_lines", "loads", "convert", "read_ndjson", "scan_ndjson", "json_decode"}
DECODED = {
    "analysis/advice/promises.py": "the promises that `advise` kept",
    "analysis/digests/samples.py": "the column `sample_facts`",
    "analysis/digests/earlier_digest.py": "the manifest of a digest of earlier versions",
    "analysis/executors/ray_tasks.py": "the list of files that a task read",
    "analysis/executors/worker_processes.py": "the list of files that a process read",
    "analysis/store/parts.py": "what a part holds",
    "analysis/tables/table.py": "rows of a table that were just written as JSON",
    "cli/commands/doctor_ray.py": "the runtime environments of actors",
    "cli/ray_node.py": "what a Python on a node answers",
    "cli/commands/demo.py": "what the demo's workers returned",
    "collect/by_bucket.py": "the list of uploaded files",
    "collect/collected.py": "the state of a collection, and the manifest of pruned files",
    "collect/on_node.py": "the description of a process; the node may lack msgspec",
    "live/analyst.py": "the answers of a process of ours",
    "live/outside/stacks.py": "the stacks that py-spy prints",
    "live/finished.py": "the questions to that process",
    "live/serving/counters.py": "counters of an earlier follower",
    "mcp/command_answers.py": "what a command printed with --json",
    "live/terminal/details.py": "the answer of `summary --json`",
}
#: What yields text of a log, and the modules that hand it to the reader.
TEXTS = {"read_lines", "read_marked", "readable_lines", "whole_lines", "lines_between", "open_log"}
TEXT_USERS = {
    "analysis/long_runs/prune.py": "keeps the calls of engines, by `records_in`",
    "analysis/run/batch_job.py": "sends marked lines from a node of Ray",
    "analysis/run/newest_records.py": "hands lines to `records_in`",
    "analysis/run/opening.py": "opens files",
    "analysis/store/part_records.py": "keeps lines that are no records as they stand",
    "live/terminal/details.py": "reads the records of one request, by `lines.decode`",
}


@pytest.fixture(scope="module")
def calls():
    """The module, the last name, and the name before it of each call in the offline half."""
    return list(calls_in_modules())


def calls_in_modules():
    for folder in OFFLINE:
        for path in (PACKAGE / folder).rglob("*.py"):
            name = path.relative_to(PACKAGE).as_posix()
            if name.startswith((READER, FOREIGN)):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    called = node.func
                    owner = ast.unparse(called.value) if isinstance(called, ast.Attribute) else ""
                    yield name, getattr(called, "attr", getattr(called, "id", "")), owner


def test_no_other_module_decodes_lines_of_our_log(calls):
    decoding = {
        name
        for name, called, owner in calls
        if called in DECODES or (called == "decode" and owner == "msgspec.json")
    }
    assert decoding - DECODED.keys() == set(), (
        "let the module name fields, a subclass of `Fields`, or add its reason"
    )


def test_no_other_module_gets_the_text_of_a_log(calls):
    users = defaultdict(set)
    for name, called, _ in calls:
        if called in TEXTS:
            users[name].add(called)
    assert users.keys() - TEXT_USERS.keys() == set(), "let the module call `newest_records`"


def test_fields_of_a_record_are_declared_for_the_reader_alone():
    """A Struct with a field `extra` is a decoder of lines; kinds of fields have none."""
    structs = [
        f"{path.relative_to(PACKAGE)}: {node.name}"
        for folder in OFFLINE
        for path in (PACKAGE / folder).rglob("*.py")
        if not path.relative_to(PACKAGE).as_posix().startswith((READER, FOREIGN))
        for text in [path.read_text()]
        if "Struct" in text and "extra" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith("Struct") for base in node.bases)
        and any(isinstance(part, ast.AnnAssign) and ast.unparse(part.target) == "extra" for part in node.body)
    ]
    assert structs == []
