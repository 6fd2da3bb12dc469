"""Find the class, or the function, that a user names as MODULE:NAME or FILE:NAME, and read its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from sglang_instrument.errors import TargetError
from sglang_instrument.patching.places.anchors import FunctionDef
from sglang_instrument.patching.places.source import parse
from sglang_instrument.patching.places.source_archives import InstalledPackages, SourceTree, open_tree
from sglang_instrument.patching.suggest.kinds import dotted
from sglang_instrument.patching.suggest.methods import Methods


def find_class(named: str, tree: SourceTree | None = None) -> tuple[Methods, SourceTree]:
    """Return the functions of a class or a module, and the tree in which they were found.

    Args:
        named: "MODULE:Class", "MODULE:function", or the same with the path of a file for the module.
        tree: Where modules are looked for; default: the installed packages.

    Raises:
        TargetError: There is no such module, or it has no such class or function.
    """
    place, separator, name = named.rpartition(":")
    if not separator or not place or not name:
        raise TargetError(f"expected MODULE:Class or FILE.py:Class, got {named!r}")
    module = place
    if place.endswith(".py") or "/" in place:
        root, module = _of_file(Path(place))
        tree = open_tree(root)
    tree = InstalledPackages() if tree is None else tree
    return _find(module, name, tree, frozenset()), tree


def _find(module: str, name: str, tree: SourceTree, seen: frozenset[tuple[str, str]]) -> Methods:
    """Return the functions of a class, which the module may have imported from another one."""
    source = tree.module(module)
    if source is None:
        raise TargetError(f"no module {module} in {tree.name}; give the path of its file, or --source FOLDER")
    try:
        body = parse(source).body
    except (SyntaxError, ValueError) as error:
        raise TargetError(f"{module}: cannot be parsed: {error}") from None
    home = _imported_from(module, body, name, is_package=tree.read(f"{module.replace('.', '/')}.py") is None)
    if home is None or home in seen or tree.module(home[0]) is None:
        is_package = tree.read(f"{module.replace('.', '/')}.py") is None
        return _methods(module, body, name, is_package=is_package)
    return _find(*home, tree, seen | {home})


def _imported_from(
    module: str, body: list[ast.stmt], name: str, *, is_package: bool
) -> tuple[str, str] | None:
    """Return from which module, under which name, `from ... import` binds `name`; None if nothing does."""
    names = module.split(".")
    for statement in body:
        if isinstance(statement, ast.ImportFrom):
            package = names[: len(names) + is_package - statement.level] if statement.level else []
            for alias in statement.names:
                if name == (alias.asname or alias.name):
                    return ".".join([*package, *filter(None, [statement.module])]), alias.name
    return None


def _of_file(path: Path) -> tuple[Path, str]:
    """Return the folder from which a file would be imported, and its module's name."""
    if not path.is_file():
        raise TargetError(f"{path}: no such file")
    names, folder = [path.stem], path.resolve().parent
    while (folder / "__init__.py").is_file():
        names.append(folder.name)
        folder = folder.parent
    if names[0] == "__init__" and len(names) > 1:
        del names[0]
    return folder, ".".join(reversed(names))


def _methods(module: str, body: list[ast.stmt], name: str, *, is_package: bool) -> Methods:
    classes = {statement.name: statement for statement in body if isinstance(statement, ast.ClassDef)}
    if name in classes:
        bases = tuple(_imported_bases(module, body, classes[name], classes, is_package=is_package))
        return Methods(module, name, _with_bases(classes[name], classes), bases=bases)
    functions = _functions(body)
    if name in functions:
        return Methods(module, "", functions, name)
    known = ", ".join([*classes, *functions]) or "none"
    raise TargetError(f"{module} has no class or function {name}; it has: {known}")


def _imported_bases(
    module: str,
    body: list[ast.stmt],
    of: ast.ClassDef,
    classes: dict[str, ast.ClassDef],
    *,
    is_package: bool,
) -> Iterator[tuple[str, str]]:
    """Yield the imported base classes of a class, and of its base classes in the same module."""
    for base in of.bases:
        holder, _, name = dotted(base).rpartition(".")
        if not holder and name in classes and name != of.name:
            others = {key: definition for key, definition in classes.items() if key != of.name}
            yield from _imported_bases(module, body, classes[name], others, is_package=is_package)
        elif not holder:
            home = _imported_from(module, body, name, is_package=is_package)
            yield from () if home is None else [home]
        elif (imported := _module_named(module, body, holder, is_package=is_package)) is not None:
            yield imported, name


def _module_named(module: str, body: list[ast.stmt], name: str, *, is_package: bool) -> str | None:
    """Return the module that `name` is, by an import of it; None if nothing imports it."""
    for statement in body:
        for alias in statement.names if isinstance(statement, ast.Import) else ():
            if name == (alias.asname or alias.name):
                return alias.name
    home = _imported_from(module, body, name, is_package=is_package)
    return None if home is None else ".".join(home)


def _with_bases(of: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> dict[str, FunctionDef]:
    """Return the methods of a class, and those that it inherits from classes of the same module."""
    methods: dict[str, FunctionDef] = {}
    for base in of.bases:
        if isinstance(base, ast.Name) and base.id in classes and base.id != of.name:
            methods |= _with_bases(
                classes[base.id], {key: definition for key, definition in classes.items() if key != of.name}
            )
    return methods | _functions(of.body)


def _functions(body: list[ast.stmt]) -> dict[str, FunctionDef]:
    return {
        statement.name: statement
        for statement in body
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
