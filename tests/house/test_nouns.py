"""A variable is named after what it holds, and a class name stands for one class in the whole package."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "sglang_instrument"
TREES = (PACKAGE, "tests", "benchmarks")

#: Names that make a reader carry the noun in the head.
REFUSED = frozenset({"one", "found", "own", "kept", "told", "there", "at"})

#: A name that users write, by its file; with the reason.
ALLOWED: dict[str, set[str]] = {
    "sglang_instrument/patching/places/anchors.py": {"at"},  # the key `at` of a patch table
    "sglang_instrument/live/reported.py": {"kept"},  # a field of records, as patch tables name it
}

COMPILED = {".pyx", ".pxi", ".pxd"}
CLASS = re.compile(r"^ *class (\w+)[(:\[]", re.MULTILINE)
FILES = [
    path
    for tree in TREES
    for path in sorted((ROOT / tree).rglob("*"))
    if path.suffix == ".py" or path.suffix in COMPILED
]


def names_in(code: CodeType) -> set[str]:
    """Return every name of compiled code, and its strings: the name of a field without a value is one."""
    names = {*code.co_varnames, *code.co_cellvars, *code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
        elif isinstance(constant, str):
            names.add(constant)
    return names


def bindings_in(text: str) -> Iterator[tuple[str, int]]:
    """Yield each refused name that a file binds, with its line.

    Few files have such a name anywhere, and only these are walked: compiling a file takes a fifth of that.
    """
    if names_in(compile(text, "file", "exec", dont_inherit=True)) & REFUSED:
        yield from bindings(ast.parse(text))


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a file binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case (
                ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.ExceptHandler(name=str(name))
            ):
                yield name, node.lineno
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname or alias.name, alias.lineno) for alias in aliases)


def names_in_cython(text: str) -> Iterator[tuple[str, int]]:
    """Yield each name of a file in Cython that does not follow a dot, with its line."""
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and before != ".":
            yield token.string, token.start[0]
        before = token.string


def refused_in(path: Path) -> list[str]:
    """Return the refused names that a file binds, each as `file:line: name`."""
    names = (names_in_cython if path.suffix in COMPILED else bindings_in)(path.read_text())
    place = path.relative_to(ROOT).as_posix()
    refused = REFUSED - ALLOWED.get(place, set())
    lines = sorted({(line, name) for name, line in names if name in refused})
    return [f"{place}:{line}: {name}" for line, name in lines]


def classes_with_one_name() -> list[str]:
    """Return the places, as `file:line: class`, of each class whose name stands for another class, too.

    A leading underscore makes no name.
    """
    places = defaultdict(list)
    for path in FILES:
        if path.suffix == ".py" and path.is_relative_to(ROOT / PACKAGE):
            text = path.read_text()
            for definition in CLASS.finditer(text):
                line = text.count("\n", 0, definition.start(1)) + 1
                place = f"{path.relative_to(ROOT).as_posix()}:{line}: class {definition[1]}"
                places[definition[1].lstrip("_")].append(place)
    return [place for of_name in places.values() if len(of_name) > 1 for place in of_name]


def test_names_are_nouns() -> None:
    places = [place for path in FILES for place in refused_in(path)]
    assert not places, "name what the variable holds:\n" + "\n".join(places)


def test_a_class_name_stands_for_one_class() -> None:
    places = classes_with_one_name()
    assert not places, "name what the class is:\n" + "\n".join(places)


@pytest.mark.parametrize(
    "code",
    [
        "one = 1",
        "for one in range(3): pass",
        "[one for one in range(3)]",
        "lambda at: 0",
        "def sum_of(*kept): pass",
        "def found(): pass",
        "class Answer:\n    own: int = 0",
        "self.told = 1",
        "if (there := 1): pass",
        "with place as there: pass",
        "import one",
        "from here import there as own",
        "try: pass\nexcept OSError as one: pass",
        "match x:\n    case [one, *kept]: pass",
        "class Answer:\n    own: int",
        "from __future__ import annotations\nclass Answer:\n    own: int",
        "def sum_of():\n    own: int\n    own = 1",
        "def sum_of():\n    own = 1\n    return lambda: own",
    ],
)
def test_each_way_to_bind_a_name_is_seen(code: str) -> None:
    assert {name for name, _ in bindings_in(code)} & REFUSED


def test_names_of_cython_are_seen_and_its_strings_and_attributes_are_not() -> None:
    text = "cdef object found  # one of two\nx = 'kept' + row.own\n"
    assert [name for name, _ in names_in_cython(text) if name in REFUSED] == ["found"]
