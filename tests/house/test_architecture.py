"""The house keeps its shape: imports run one way, the import is light, each file says what it is for."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_instrument

ROOT = Path(sglang_instrument.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
COMPILED = sorted(path for kind in ("*.pyx", "*.pxi", "*.pxd") for path in ROOT.rglob(kind))

#: What each room may import, beside itself. Design, section 8: words <- recording <- patching <- session
#: <- switch <- bootstrap; words <- analysis <- report; cli, demo and testing on top.
WORDS = {"errors", "schema", "config", "regular", "uncollected"}
RECORDING = WORDS | {"recording", "native"}
SESSION = RECORDING | {"patching", "", "session", "launch", "reach", "profilers.attach"}
MAY_IMPORT = {
    "errors": set(),
    "schema": set(),
    "config": {"errors"},
    "regular": set(),
    "uncollected": set(),
    "native": set(),  # what is compiled is handed what it needs
    "recording": RECORDING,
    "patching": RECORDING,
    "launch": set(),
    "reach": RECORDING | {"patching"},
    "session": SESSION,
    "switch": SESSION,
    "": RECORDING | {"patching", "switch"},  # the package itself: what its __all__ names
    "bootstrap": SESSION | {"switch"},
    "auto": SESSION | {"switch"},
    "rollout": SESSION | {"switch", "profiling"},
    "analysis": WORDS,
    "report": WORDS | {"analysis"},
    "profiling": WORDS
    | {
        "recording.measure.context",
        "recording.measure.identity",
        "recording.safety.notices",
        "recording.measure.spans",
    },
    "testing": SESSION | {"switch"},
    "demo": SESSION | {"switch", "testing"},
    "cli": SESSION | {"launch", "switch", "bootstrap", "analysis", "report", "profiling", "testing", "demo"},
}

LONGEST_FILE = 350  # lines
LONGER_FILES = {}  # name: the reason

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
    "sglang_instrument.startup.session",
]


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def room_of(module):
    return module.partition(".")[0]


def imports(path):
    """Return the modules of ours that a file imports, at its top or inside of functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {_module(node.module, alias.name) for alias in node.names}
    ours = {name for name in found if name == "sglang_instrument" or name.startswith("sglang_instrument.")}
    return {name.removeprefix("sglang_instrument").lstrip(".") for name in ours}


def _module(package, name):
    """Return what `from package import name` imports: a module of ours, or else the package."""
    path = ROOT.parent.joinpath(*package.split("."), name)
    return f"{package}.{name}" if path.with_suffix(".py").exists() or path.is_dir() else package


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_run_one_way(path):
    room = room_of(name_of(path))
    allowed = MAY_IMPORT[room]
    wrong = {
        module
        for module in imports(path)
        if room_of(module) != room and room_of(module) not in allowed and module not in allowed
    }
    assert not wrong, f"{room} may import {sorted(allowed)}"


def test_no_import_comes_back_to_where_it_began():
    graph = {name_of(path): imports(path) - {name_of(path)} for path in FILES}
    top_level = {name: _top_level(ROOT.joinpath(*name.split("."))) for name in graph}
    list(graphlib.TopologicalSorter(top_level).static_order())  # raises CycleError


def _top_level(path):
    """Return what a module imports when it is imported itself, not later or for type checkers alone."""
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text())
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("sglang_instrument"):
            found |= {_module(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("sglang_instrument")}
    below = {name.removeprefix("sglang_instrument").lstrip(".") for name in found}
    return below - {"", name_of(path)}  # every module stands in the package


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_each_file_opens_with_what_it_is_for(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, f"{path} has no docstring"
    assert docstring.splitlines()[0].endswith((".", ",", ":", "?", "`"))


@pytest.mark.parametrize("path", [*FILES, *COMPILED], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_too_long_for_one_idea(path):
    lines = len(path.read_text().splitlines())
    assert lines <= LONGEST_FILE or name_of(path) in LONGER_FILES


def test_the_public_names_are_those_of_all_in_order():
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


def test_dir_shows_the_public_names_alone():
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
