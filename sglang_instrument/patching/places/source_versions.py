"""Read a project's version from the source of a checkout without metadata; run nothing."""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

from sglang_instrument.patching.places.source import parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

#: Returns the content of a file, None if there is no such file.
Read = Callable[[str], bytes | None]
_MODULES: Final = ("_version", "version", "__init__")
_VERSION: Final = re.compile(r"v?(\d+(?:\.\w+)+(?:\+[\w.]+)?)")


def declared_version(package: str, read: Read, projects: Iterable[Read]) -> str | None:
    """Return the version that a distribution's source declares, None if it declares none.

    Args:
        package: The distribution's name.
        read: Reads a file by its path from the folder that holds the packages.
        projects: Readers, each of one folder that may hold a project.
    """
    name = normalized(package)
    texts = chain(
        [_text(read(f"{name}/version/version"))],
        _assigned(name, read),
        (_of_project(name, project) for project in projects),
    )
    return next((match[1] for text in texts if text and (match := _VERSION.fullmatch(text))), None)


def normalized(package: str) -> str:
    """Return a distribution's name in lower case with underscores."""
    return re.sub(r"[-_.]+", "_", package).lower()


def _assigned(name: str, read: Read) -> Iterator[str | None]:
    """Yield the strings that the modules in `_MODULES` assign to `__version__`."""
    for module in _MODULES:
        tree = _parsed(read(f"{name}/{module}.py"))
        for statement in [] if tree is None else tree.body:
            if isinstance(statement, ast.Assign) and "__version__" in map(_name, statement.targets):
                yield _literal(statement.value)


def _of_project(name: str, read: Read) -> str | None:
    """Return the version in a folder's `pyproject.toml` or `setup.py`, if the file names this project."""
    try:
        project = tomllib.loads(_text(read("pyproject.toml")) or "").get("project", {})
        if normalized(str(project.get("name", ""))) == name and "version" in project:
            return str(project["version"])
    except (tomllib.TOMLDecodeError, AttributeError):  # invalid TOML, or `project` is not a table
        pass
    tree = _parsed(read("setup.py"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    for call in calls:
        given = {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
        if normalized(given.get("name") or "") == name:
            return given.get("version")
    return None


def _parsed(content: bytes | None) -> ast.Module | None:
    try:
        return None if content is None else parse(content)
    except (SyntaxError, ValueError):
        return None


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace").strip()


def _name(node: ast.AST) -> Any:
    return getattr(node, "id", None)


def _literal(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
