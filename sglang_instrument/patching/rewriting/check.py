"""Check which regions of tables exist in a package's source, of any version, without importing it."""

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sglang_instrument.patching.places.anchors import Block, FunctionDef, statement_lists
from sglang_instrument.patching.places.bindings import Bindings
from sglang_instrument.patching.places.source import parse
from sglang_instrument.patching.places.source_archives import InstalledPackages, SourceTree
from sglang_instrument.patching.places.versions import is_release, numbers_of
from sglang_instrument.patching.rewriting.sites import (
    RegionRequest,
    Site,
    best_sites,
    place,
    without_function,
)
from sglang_instrument.patching.rewriting.unreadable_fields import with_unreadable_fields
from sglang_instrument.patching.tables.regions import Patch, PatchTable, Target

#: How many modules may pass a name on by import before the search gives up.
_MAX_IMPORTS: Final = 8

_Definition = ast.stmt


@dataclass(frozen=True)
class Checked:
    """One table against one source.

    `sites` is None if the source has none of the table's modules. `version_inferred`: the source names no
    release, so the check infers the version from the regions that it finds.
    """

    table: PatchTable
    source: str
    version: str | None
    sites: tuple[Site, ...] | None
    version_inferred: bool = False


def check(tables: Sequence[PatchTable], tree: SourceTree | None = None) -> list[Checked]:
    """Find every region of `tables` in `tree`, by default the installed packages; import nothing."""
    tree = InstalledPackages() if tree is None else tree
    definitions = Definitions(tree)
    checked = []
    for table in tables:
        version = tree.version(table.package)
        if all(tree.module(module) is None for module in table.modules):
            checked.append(Checked(table, tree.name, version, None))
        else:
            known = version if is_release(version) else None
            sites = _check_table(definitions, table, known)
            checked.append(Checked(table, tree.name, version, sites, known is None))
    for package in {entry.table.package for entry in checked if entry.version_inferred}:
        version = _inferred_version([entry for entry in checked if entry.table.package == package])
        for index, entry in enumerate(checked):
            if entry.version_inferred and entry.table.package == package:
                checked[index] = replace(entry, sites=_check_table(definitions, entry.table, version))
    return checked


def _inferred_version(checked: Sequence[Checked]) -> str:
    """Return the version that fits the found regions best, of those that the tables' `requires` tell apart.

    The best version has the fewest missing regions; then the most found regions; then it is the newest. A
    version without any found region comes last.
    """
    requirements = [(site, site.region.requires) for entry in checked for site in entry.sites or ()]
    edges = {edge for _, requires in requirements if requires is not None for edge in requires.edges}

    def against(version: str) -> tuple[bool, int, int]:
        due = [site for site, requires in requirements if requires is None or requires.admits(version)]
        sites_found = sum(site.state == "found" for site in due)
        return not sites_found, sum(site.state != "found" and site.expected for site in due), -sites_found

    return min(sorted({*edges, "0"}, key=numbers_of, reverse=True), key=against)


def _check_table(definitions: "Definitions", table: PatchTable, version: str | None) -> tuple[Site, ...]:
    return tuple(site for patch in table.patches for site in _check_patch(definitions, patch, version))


def _check_patch(definitions: "Definitions", patch: Patch, version: str | None) -> list[Site]:
    sites: list[Site] = []
    done: list[FunctionDef] = []  # two candidates may name one function
    for module in dict.fromkeys(target.module for target in patch.targets):
        candidates = [target for target in patch.targets if target.module == module]
        try:
            located = _first(definitions, candidates)
        except Unparsed as reason:
            sites += _missing(str(reason), patch, candidates, version)
            continue
        if located is None:
            sites += _missing(_what_is_missing(definitions, candidates), patch, candidates, version)
        elif located[1] not in done:
            target, definition = located
            wanted = [RegionRequest(region, target, version) for region in patch.regions]
            bindings = Bindings(definition)
            placed = place(definition, wanted, bindings)
            sites += [with_unreadable_fields(placed_region.site, bindings) for placed_region in placed]
            done.append(definition)
    return best_sites(patch, sites)


def _first(definitions: "Definitions", candidates: Sequence[Target]) -> tuple[Target, FunctionDef] | None:
    """Return the first candidate that exists, and its definition."""
    for target in candidates:
        definition = definitions.find(target)
        if definition is not None:
            return target, definition
    return None


def _missing(note: str, patch: Patch, candidates: Sequence[Target], version: str | None) -> list[Site]:
    wanted = [RegionRequest(region, candidates[0], version) for region in patch.regions]
    return without_function(wanted, "missing", note)


def _what_is_missing(definitions: "Definitions", candidates: Sequence[Target]) -> str:
    module = candidates[0].module
    names = " or ".join(target.name for target in candidates)
    return f"{module} has no {names}" if definitions.has_module(module) else f"no module {module}"


class Unparsed(Exception):  # noqa: N818 - a result of the search; callers catch it
    """This Python cannot parse a module that the search needs."""


class Definitions:
    """Finds functions by name as `import` and inheritance would."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree
        self._modules: dict[
            str, ast.Module | str | None
        ] = {}  # a string is the reason why it cannot be parsed

    def has_module(self, name: str) -> bool:
        """Say whether the tree has a module."""
        return self._module(name) is not None

    def find(self, target: Target) -> FunctionDef | None:
        """Return the definition of a target; None if there is none, or if it cannot be found without imports.

        Raises:
            Unparsed: A module that may define it cannot be parsed.
        """
        first, *rest = target.name.split(".")
        place = self._global(target.module, first)
        for part in rest:
            place = None if place is None else self._member(*place, part)
        node = None if place is None else place[1]
        return node if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None

    def _module(self, name: str) -> ast.Module | None:
        if name not in self._modules:
            text = self._tree.module(name)
            try:
                self._modules[name] = None if text is None else parse(text)
            except (SyntaxError, ValueError) as error:
                self._modules[name] = f"{name}: {_parse_error(error)}"
        module = self._modules[name]
        if isinstance(module, str):
            raise Unparsed(module)
        return module

    def _global(self, module: str, name: str, depth: int = 0) -> tuple[str, _Definition] | None:
        """Return the module that defines a module's global name, and the definition."""
        tree = self._module(module)
        if tree is None or depth > _MAX_IMPORTS:
            return None
        statement = _named(tree.body, name)
        if isinstance(statement, ast.ImportFrom):
            source, original = self._imported(module, statement, name)
            return self._global(source, original, depth + 1)
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
            return self._global(module, statement.value.id, depth + 1)
        return None if statement is None else (module, statement)

    def _member(self, module: str, owner: _Definition, name: str) -> tuple[str, _Definition] | None:
        """Return the module that defines a class's member, and the definition; search base classes, too."""
        if not isinstance(owner, ast.ClassDef):
            return None
        statement = _named(owner.body, name)
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
            return self._member(module, owner, statement.value.id)
        if statement is not None:
            return module, statement
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


def _parse_error(error: SyntaxError | ValueError) -> str:
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"syntax error at line {error.lineno} for {python}: {error.msg}"
    return f"cannot be parsed by {python}: {error}"


def _named(body: Block, name: str) -> _Definition | None:
    """Return the last statement of a module or class that binds `name`."""
    binding = None
    for statement in _with_branches(body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound = statement.name == name
        elif isinstance(statement, ast.ImportFrom):
            bound = any((alias.asname or alias.name) == name for alias in statement.names)
        elif isinstance(statement, ast.Assign):
            bound = any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
        else:
            bound = False
        binding = statement if bound else binding
    return binding


def _with_branches(body: Block) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for inner in statement_lists(statement):
            yield from _with_branches(inner)
