"""Check the structure: imports run one way, importing is fast, files have docstrings and a limited size."""

import ast
import graphlib
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sglang_instrument

ROOT = Path(sglang_instrument.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
COMPILED = sorted(path for kind in ("*.pyx", "*.pxi", "*.pxd") for path in ROOT.rglob(kind))
SCRIPTS = sorted(ROOT.rglob("*.js"))

WORDS = {
    "addresses",
    "errors",
    "schema",
    "config",
    "gc_pause",
    "launchers",
    "plain_text",
    "sparkline",
    "regular_files",
    "extras",
    "free_ports",
    "part_colours",
    "kernel_names",
    "prompt_prefixes",
    "processors",
    "whole_commands",
}
FACADE = {"auto", "rollout"}
MEASURE = {"words", "native", "recording.safety", "recording.measure"}
TABLES = {"words", "patching", "patching.places", "patching.tables", "recording.safety"}
READING = {"analysis.reading", "analysis.reading.records"}
RUN = READING | {
    "words",
    "safe_files",
    "analysis.timing",
    "analysis.digests",
    "analysis.executors",
    "analysis.store",
    "analysis.run",
}
LEDGER = RUN | {"analysis.ledger"}
ROUTING = {
    "analysis.answers",
    "analysis.answers.engine",
    "analysis.answers.routing",
    "analysis.answers.weights",
    "analysis.answers.asynchronous",
}
EVIDENCE = {
    "analysis.verdict.evidence",
    "analysis.verdict.evidence.fields",
    "analysis.verdict.evidence.series",
    "analysis.verdict.evidence.servers",
    "analysis.verdict.evidence.tools",
}
ANSWERS = (
    LEDGER
    | ROUTING
    | EVIDENCE
    | {"analysis.settings", "analysis.changes", "analysis.changes.replaying"}
    | {"analysis.changes.why", "analysis.verdict"}
)
ADVICE = ANSWERS | {"analysis.advice.evidence"}

#: The other folders that each folder may import, from the bottom up. Two halves share only the vocabulary:
#: one runs inside training (recording, patching, startup), the other reads the logs.
MAY_IMPORT = {
    "words": set(),
    "package": set(),  # __init__.py: it looks its public names up by strings, at their first use
    "native": set(),  # compiled code gets what it needs as arguments
    "safe_files": {"words"},  # outside training alone: each change opens folders, and may wait for a disk
    "recording.safety": {"words"},
    "recording.measure": MEASURE,
    "recording.keep": MEASURE,
    "recording.watch": MEASURE | {"recording.keep"},
    "recording.settings": {"words", "recording.safety"},
    "recording": MEASURE | {"recording.keep", "recording.watch"},
    "patching": {"words", "recording.safety"},
    "patching.places": {"words", "recording.safety"},
    "patching.tables": TABLES,
    "patching.probes": TABLES | MEASURE | {"recording.settings"},
    "patching.rewriting": TABLES | MEASURE | {"patching.probes"},
    "patching.decorating": TABLES | MEASURE | {"patching.probes", "patching.rewriting"},
    "patching.suggest": TABLES | {"patching.probes", "patching.rewriting"},
    "profilers": TABLES,
    "profilers.in_training": TABLES | MEASURE | {"profilers"},
    "profilers.from_outside": {"words", "profilers"},
    "startup": TABLES
    | MEASURE
    | {
        "recording",
        "recording.keep",
        "recording.settings",
        "patching.decorating",
        "patching.probes",
        "patching.rewriting",
        "profilers.in_training",
        "package",
    },
    "facade": MEASURE
    | {"recording", "patching.decorating", "patching.probes", "profilers", "startup", "package"},
    "analysis.reading.records": {"words"},
    "analysis.reading": {"words", "analysis.reading.records"},
    "analysis.timing": {"words"},
    "analysis.digests": {"words", "safe_files", "analysis.reading", "analysis.timing"},
    "analysis.store": {
        *("words", "safe_files", "analysis.reading", "analysis.reading.records"),
        *("analysis.timing", "analysis.digests"),
    },
    "analysis.executors": {
        *("words", "safe_files", "analysis.reading", "analysis.digests", "analysis.store"),
        *("collect", "package"),
    },
    "analysis.foreign.stores": {"words"},
    "analysis.foreign.records": READING | {"words"},
    "analysis.foreign.sglang": READING | {"words", "analysis.foreign.records"},
    "analysis.foreign": READING
    | {"words", "analysis.executors"}
    | {"analysis.foreign.stores", "analysis.foreign.records", "analysis.foreign.sglang"},
    "analysis.run": RUN | {"analysis.foreign"},
    "analysis.settings": RUN,
    "analysis.ledger": RUN,
    "analysis.answers.engine": LEDGER,
    "analysis.answers": LEDGER | {"analysis.answers.engine"},
    "analysis.answers.weights": LEDGER | {"analysis.answers", "analysis.answers.engine"},
    "analysis.changes.replaying": LEDGER
    | {"analysis.answers", "analysis.answers.engine", "analysis.answers.routing"},
    "analysis.changes": LEDGER
    | {"analysis.changes.replaying"}
    | {"analysis.answers", "analysis.answers.engine"}
    | {"analysis.answers.routing", "analysis.answers.asynchronous"},
    "analysis.changes.why": LEDGER
    | {"analysis.answers.engine", "analysis.answers.routing", "analysis.settings"},
    "analysis.answers.routing": LEDGER | {"analysis.answers", "analysis.answers.engine"},
    "analysis.answers.asynchronous": LEDGER | {"analysis.answers", "analysis.answers.engine"},
    "analysis.verdict.evidence.series": set(),
    "analysis.verdict.evidence": LEDGER | ROUTING | {"analysis.verdict.evidence.series"},
    "analysis.verdict.evidence.servers": LEDGER | ROUTING | {"analysis.verdict.evidence"},
    "analysis.verdict.evidence.tools": LEDGER | ROUTING | {"analysis.verdict.evidence"},
    "analysis.verdict.evidence.fields": LEDGER | ROUTING | {"analysis.verdict.evidence"},
    "analysis.verdict.detectors": LEDGER | ROUTING | EVIDENCE,
    "analysis.verdict.detectors.calls": LEDGER | ROUTING | EVIDENCE,
    "analysis.verdict.detectors.updates": LEDGER | ROUTING | EVIDENCE,
    "analysis.verdict": LEDGER
    | ROUTING
    | EVIDENCE
    | {"analysis.verdict.detectors", "analysis.verdict.detectors.calls"},
    "analysis.advice.evidence": ANSWERS,
    "analysis.advice.levers": ADVICE,
    "analysis.advice.levers.responses": ADVICE,
    "analysis.advice.levers.engine": ADVICE,
    "analysis.advice.levers.around": ADVICE,
    "analysis.advice": ADVICE | {"analysis.advice.levers"},
    "analysis.outlook": ADVICE,
    "analysis.tables": ANSWERS,
    "analysis.tables.rollout": ANSWERS | {"analysis.tables"},
    "analysis.tables.engine": ANSWERS | {"analysis.tables"},
    "analysis.tables.responses": ANSWERS | {"analysis.tables"},
    "analysis.tables.training": ANSWERS | {"analysis.tables"},
    "analysis.tables.run": ANSWERS | {"analysis.tables"},
    "analysis.tables.changes": {"analysis.tables"},
    "analysis.tables.profiling": {"words", "analysis.tables"},
    "analysis.tables.live": {"analysis.tables"},
    "analysis.dataset": ANSWERS | {"analysis.tables", "analysis.tables.run"},
    "analysis.long_runs": ANSWERS | {"package"},
    "analysis": ANSWERS
    | {"analysis.dataset", "analysis.long_runs", "analysis.tables", "analysis.tables.rollout"}
    | {"package", "report.figures", "report.html", "analysis.advice"},
    "collect": {"words", "safe_files"},
    "live.counting": READING | {"words"},
    "live.forecasting": {"words"},
    "live.outside": READING | {"words", "safe_files"},
    "live.problems": {"words", "live.counting", "live.forecasting", "live.outside"},
    "live": ANSWERS
    | {"analysis.outlook", "live.counting", "live.forecasting", "live.outside", "live.problems"},
    "live.serving": {"words", "safe_files", "analysis.answers", "live"},
    "live.terminal": READING | {"words", "live", "live.counting"},
    "traces": {"words"},
    "report": READING | {"words", "analysis.ledger"},
    "report.figures": ANSWERS | {"report", "analysis.advice"},
    "report.html.sections": ANSWERS | {"report", "analysis.advice", "analysis.tables.changes"},
    "report.html": ANSWERS | {"report", "report.html.sections", "analysis.advice"},
    "report.perfetto": ANSWERS | {"report", "report.html"},
    "report.otlp": ANSWERS | {"package", "report"},
    "twin": {"words"},
    "twin.agendas": ANSWERS,
    "twin.playing": {"words", "package", "twin.agendas"},
    "twin.servers": {"words"},
    "twin.trials": ANSWERS | {"twin.agendas", "twin.playing", "twin.servers"},
    "testing.simulation": {"words", "recording.keep", "analysis.timing"},
    "testing.causes": {"words", "testing.simulation"},
    "testing.world.serving": {"words"},
    "testing.world.rollout": {"words", "testing.world.serving"},
    "testing.world.faults": {"words", "testing.world.serving", "testing.world.rollout"},
    "testing.world": {
        *("words", "recording.keep", "testing.world.serving"),
        *("testing.world.rollout", "testing.world.faults"),
    },
    "testing": MEASURE | {"recording.keep", "recording.watch", "testing.simulation", "testing.causes"},
    "demo": {"words", "testing", "testing.causes", "package"},
    "demo.engine_models": set(),
}
BELOW = {below for allowed in MAY_IMPORT.values() for below in allowed} | set(MAY_IMPORT)
MAY_IMPORT["cli"] = BELOW
MAY_IMPORT["cli.summaries"] = BELOW | {"cli"}
MAY_IMPORT["mcp"] = BELOW | {"cli"}
MAY_IMPORT["cli.commands"] = BELOW | {"cli", "cli.summaries", "mcp"}
MAY_IMPORT["__main__"] = {"cli"}

LONGEST_FILE = 350  # lines
LONGER_FILES = {}  # name: the reason
MOST_MODULES = 16  # in a folder
FULLER_FOLDERS = {"cli.commands": "a file a command", "demo": "the demo's parts are its own"}

HEAVY = [
    "torch",
    "sglang",
    "ray",
    "polars",
    "wrapt",
    "filelock",
    "asyncio",
    "rich",
    "numpy",
    "scipy",
    "sglang_instrument.startup.session",
]


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def folder_of(module):
    """Return the folder that a module lies in; the files at the top are the words, and what users import."""
    if module in ("", "__main__"):
        return module or "package"
    if module in WORDS:
        return "words"
    if module in FACADE:
        return "facade"
    if ROOT.joinpath(*module.split(".")).is_dir():
        return module
    return module.rpartition(".")[0] or module


@dataclass(frozen=True)
class File:
    """What the rules ask of a Python file."""

    docstring: str
    imports: frozenset[str]  # our modules, imported at its top or in functions, but not under TYPE_CHECKING
    relative_imports: tuple[int, ...]  # their lines


@cache
def read(path):
    tree = ast.parse(path.read_text())
    modules, relative = set(), []
    for node in running(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            relative.append(node.lineno)
        elif isinstance(node, ast.ImportFrom):
            modules |= {_module(node.module, alias.name) for alias in node.names}
    ours = {name for name in modules if name == "sglang_instrument" or name.startswith("sglang_instrument.")}
    ours = frozenset(name.removeprefix("sglang_instrument").lstrip(".") for name in ours)
    return File(ast.get_docstring(tree) or "", ours, tuple(relative))


def running(tree):
    """Yield the statements of a file, without those under TYPE_CHECKING."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if not isinstance(child, ast.expr):  # no import is in an expression
                yield child
                waiting.append(child)


@cache
def _module(package, name):
    """Return what `from package import name` imports: a module of ours, or else the package."""
    path = ROOT.parent.joinpath(*package.split("."), name)
    return f"{package}.{name}" if path.with_suffix(".py").exists() or path.is_dir() else package


def test_imports_run_one_way():
    wrong = []
    for path in FILES:
        folder = folder_of(name_of(path))
        allowed = MAY_IMPORT[folder] | {folder}
        wrong += [
            f"{path.relative_to(ROOT)} imports {module or 'the package'} of {folder_of(module)}; "
            f"{folder} may import {', '.join(sorted(MAY_IMPORT[folder])) or 'nothing of ours'}"
            for module in sorted(read(path).imports)
            if folder_of(module) not in allowed
        ]
    assert not wrong, "\n".join(wrong)


def test_no_import_is_relative():
    assert [
        f"{path.relative_to(ROOT)}:{line}" for path in FILES for line in read(path).relative_imports
    ] == []


def test_no_folders_form_a_circle():
    graph = {folder: below - {folder} for folder, below in MAY_IMPORT.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_no_imports_form_a_circle():
    graph = {name_of(path): read(path).imports - {name_of(path)} for path in FILES}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_no_folder_has_too_many_modules():
    # Pure and compiled twins are one module: spans.py, _spans.pyx and its includes (.pxi).
    modules = {
        (path.parent, path.stem.removeprefix("_"))
        for path in [*FILES, *COMPILED]
        if path.name != "__init__.py" and path.suffix != ".pxi"
    }
    counts = Counter(folder_of(name_of(folder / name)) for folder, name in modules)
    assert {folder for folder, count in counts.items() if count > MOST_MODULES} == set(FULLER_FOLDERS)


def test_each_file_begins_with_a_docstring_of_which_the_first_line_is_whole():
    wrong = [
        f"{path.relative_to(ROOT)}: {first!r}"
        for path in FILES
        for first in [read(path).docstring.partition("\n")[0]]
        if not first.endswith((".", ",", ":", "?", "`"))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_file_is_too_long():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in [*FILES, *COMPILED, *SCRIPTS]
        if name_of(path) not in LONGER_FILES
    }
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_the_public_names_equal_all_in_order():
    public = sglang_instrument.__all__
    assert public == sorted(public)
    assert len(public) == len(set(public))
    for name in public:
        assert getattr(sglang_instrument, name) is not None
    ours = {
        name
        for name, value in vars(sglang_instrument).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("sglang_instrument")
    }
    assert ours <= set(public)


def test_dir_shows_only_the_public_names():
    assert [name for name in dir(sglang_instrument) if not name.startswith("__")] == sglang_instrument.__all__


def test_the_import_is_light():
    asked = f"import sys, sglang_instrument; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout


def test_the_analysis_does_not_import_what_records():
    asked = (
        "import sys, sglang_instrument.analysis; "
        "print([name for name in ('torch', 'sglang', 'ray', 'wrapt') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout
