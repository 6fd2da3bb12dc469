"""Resolve tables against source that is read, not imported: what would be found, in this or any version."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sglang_instrument.patching.anchors import Block, FunctionDef, statement_lists
from sglang_instrument.patching.bindings import Bindings
from sglang_instrument.patching.dead import with_dead_fields
from sglang_instrument.patching.sites import Site, Wanted, best_sites, place, without_function
from sglang_instrument.patching.source import parse
from sglang_instrument.patching.tables import Patch, Table, Target
from sglang_instrument.patching.trees import InstalledPackages, SourceTree

#: Names that lead from module to module, each importing it from the next.
_LONGEST_WAY: Final = 8

_Named = ast.stmt


@dataclass(frozen=True)
class Checked:
    """One table against one source. `sites` is None where the source has none of the table's packages."""

    table: Table
    source: str
    version: str | None
    sites: tuple[Site, ...] | None


def check(tables: Sequence[Table], tree: SourceTree | None = None) -> list[Checked]:
    """Resolve every region of `tables` in `tree`, default what is installed; nothing is imported."""
    tree = InstalledPackages() if tree is None else tree
    definitions = Definitions(tree)
    checked = []
    for table in tables:
        version = tree.version(table.package)
        if all(tree.module(module) is None for module in table.modules):
            checked.append(Checked(table, tree.name, version, None))
            continue
        sites = [site for patch in table.patches for site in _check_patch(definitions, patch, version)]
        checked.append(Checked(table, tree.name, version, tuple(sites)))
    return checked


def _check_patch(definitions: "Definitions", patch: Patch, version: str | None) -> list[Site]:
    sites: list[Site] = []
    done: list[FunctionDef] = []  # two candidates may lead to one function
    for module in dict.fromkeys(target.module for target in patch.targets):
        candidates = [target for target in patch.targets if target.module == module]
        for target in candidates:
            definition = definitions.find(target)
            if definition is not None:
                if definition not in done:
                    wanted = [Wanted(region, target, version) for region in patch.regions]
                    bindings = Bindings(definition)
                    sites += [
                        with_dead_fields(one.site, bindings) for one in place(definition, wanted, bindings)
                    ]
                    done.append(definition)
                break
        else:
            sites += _missing(definitions, patch, candidates, version)
    return best_sites(patch, sites)


def _missing(
    definitions: "Definitions", patch: Patch, candidates: Sequence[Target], version: str | None
) -> list[Site]:
    module = candidates[0].module
    names = " or ".join(target.name for target in candidates)
    note = f"{module} has no {names}" if definitions.has_module(module) else f"no module {module}"
    wanted = [Wanted(region, candidates[0], version) for region in patch.regions]
    return without_function(wanted, "missing", note)


class Definitions:
    """Finds functions by name as `import` and inheritance would."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree
        self._modules: dict[str, ast.Module | None] = {}

    def has_module(self, name: str) -> bool:
        """Say whether the tree has a module that can be parsed."""
        return self._module(name) is not None

    def find(self, target: Target) -> FunctionDef | None:
        """Return the definition of a target; None if there is none, or if only running code could tell."""
        first, *rest = target.name.split(".")
        found = self._global(target.module, first)
        for part in rest:
            found = None if found is None else self._member(*found, part)
        node = None if found is None else found[1]
        return node if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None

    def _module(self, name: str) -> ast.Module | None:
        if name not in self._modules:
            text = self._tree.module(name)
            try:
                self._modules[name] = None if text is None else parse(text)
            except (SyntaxError, ValueError):
                self._modules[name] = None
        return self._modules[name]

    def _global(self, module: str, name: str, way: int = 0) -> tuple[str, _Named] | None:
        """Return the definition of a module's name, and the module that it stands in."""
        tree = self._module(module)
        if tree is None or way > _LONGEST_WAY:
            return None
        found = _named(tree.body, name)
        if isinstance(found, ast.ImportFrom):
            source, original = self._imported(module, found, name)
            return self._global(source, original, way + 1)
        if isinstance(found, ast.Assign) and isinstance(found.value, ast.Name):
            return self._global(module, found.value.id, way + 1)
        return None if found is None else (module, found)

    def _member(self, module: str, owner: _Named, name: str) -> tuple[str, _Named] | None:
        """Return the definition of a class's member, in it or in the classes that it inherits from."""
        if not isinstance(owner, ast.ClassDef):
            return None
        found = _named(owner.body, name)
        if isinstance(found, ast.Assign) and isinstance(found.value, ast.Name):
            return self._member(module, owner, found.value.id)
        if found is not None:
            return module, found
        for base in owner.bases:
            inherited = self._global(module, base.id) if isinstance(base, ast.Name) else None
            member = None if inherited is None else self._member(*inherited, name)
            if member is not None:
                return member
        return None

    def _imported(self, module: str, statement: ast.ImportFrom, name: str) -> tuple[str, str]:
        original = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
        if not statement.level:
            return statement.module or "", original
        is_package = self._tree.read(f"{module.replace('.', '/')}/__init__.py") is not None
        parts = module.split(".")
        parts = parts[: len(parts) - statement.level + is_package]
        return ".".join([*parts, *([statement.module] if statement.module else [])]), original


def _named(body: Block, name: str) -> _Named | None:
    """Return the last statement of a module or class that binds `name`."""
    found = None
    for statement in _with_branches(body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound = statement.name == name
        elif isinstance(statement, ast.ImportFrom):
            bound = any((alias.asname or alias.name) == name for alias in statement.names)
        elif isinstance(statement, ast.Assign):
            bound = any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
        else:
            bound = False
        found = statement if bound else found
    return found


def _with_branches(body: Block) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for inner in statement_lists(statement):
            yield from _with_branches(inner)
