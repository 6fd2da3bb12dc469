"""Read the source of packages without importing them: installed, or from folders, wheels and archives."""

import re
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sglang_instrument.errors import TargetError
from sglang_instrument.patching.places.source_versions import Read, declared_version, normalized
from sglang_instrument.patching.places.versions import installed_version
from sglang_instrument.regular_files import demand_regular, read_regular

#: Where a project may keep its packages.
_LAYOUTS: Final = ("", "python/", "src/")
_WHEEL: Final = re.compile(r"(?P<package>[\w.]+)-(?P<version>[^-]+)-.*\.whl")
_ARCHIVE: Final = re.compile(r"(?P<package>[\w.-]+?)-(?P<version>\d+(?:\.[\w+]+)+)\.(?:tar\.\w+|tgz|zip)")
_UNPACKED: Final = re.compile(r"(?P<package>[\w.]+)-(?P<version>[^-]+)\.dist-info")


@dataclass(frozen=True, eq=False)
class SourceTree:
    """Packages whose source can be read.

    `read` returns the content of a path such as "sglang/srt/server.py", or None if there is no such file.
    `versions` are the versions in file names, by normalized distribution name. Each of `projects` reads the
    files of one folder that may hold a project.
    """

    name: str
    read: Read
    versions: dict[str, str]
    projects: Sequence[Read] = ()

    def module(self, name: str) -> bytes | None:
        """Return the source of a module, None if the tree has no such module."""
        path = name.replace(".", "/")
        source = self.read(f"{path}.py")
        return source if source is not None else self.read(f"{path}/__init__.py")

    def version(self, package: str) -> str | None:
        """Return the version of a distribution, None if the tree does not tell it."""
        return self.versions.get(normalized(package)) or declared_version(package, self.read, self.projects)


class InstalledPackages(SourceTree):
    """What `import` would find; uses `find_spec` of the top-level package only, which imports nothing."""

    def __init__(self) -> None:
        super().__init__("installed packages", _read_installed, {})

    def version(self, package: str) -> str | None:
        """Return the version of an installed distribution."""
        return installed_version(package) or super().version(package)


def open_tree(path: Path) -> SourceTree:
    """Open a folder that holds packages, a wheel or a source archive.

    Raises:
        TargetError: there is no such file, or it is of another kind.
    """
    if path.is_dir():
        return _folder(path)
    try:
        demand_regular(path)
        if path.suffix in (".whl", ".zip"):
            return _zip(path)
        if path.name.endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")):
            return _tar(path)
    except (OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise TargetError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    raise TargetError(f"{path}: must be a folder, a wheel or a source archive")


def _folder(root: Path) -> SourceTree:
    def read(path: str) -> bytes | None:
        return _read_file(root / path)

    folders = ["", *(f"{path.name}/" for path in sorted(root.iterdir()) if path.is_dir())]
    unpacked = (_UNPACKED.fullmatch(path.name) for path in root.iterdir())
    versions = {normalized(match["package"]): match["version"] for match in unpacked if match}
    return SourceTree(str(root), _package_reader(folders, read), versions, _project_readers(folders, read))


def _zip(path: Path) -> SourceTree:
    archive = zipfile.ZipFile(path)
    names = frozenset(archive.namelist())

    def read(name: str) -> bytes | None:
        return archive.read(name) if name in names else None

    folders = _top_folders(names)
    return SourceTree(
        str(path), _package_reader(folders, read), _versions_in_name(path), _project_readers(folders, read)
    )


def _tar(path: Path) -> SourceTree:
    archive = tarfile.open(path)  # noqa: SIM115 - stays open as long as the tree
    names = frozenset(archive.getnames())

    def read(name: str) -> bytes | None:
        member = archive.extractfile(name) if name in names else None
        return None if member is None else member.read()

    folders = _top_folders(names)
    return SourceTree(
        str(path), _package_reader(folders, read), _versions_in_name(path), _project_readers(folders, read)
    )


def _prefixes(folders: Iterable[str]) -> list[str]:
    return [f"{folder}{layout}" for folder in folders for layout in _LAYOUTS]


def _project_readers(folders: Iterable[str], read: Read) -> list[Read]:
    """Return one reader for each place that may hold a project."""

    def below(prefix: str) -> Read:
        return lambda path: read(f"{prefix}{path}")

    return list(map(below, _prefixes(folders)))


def _package_reader(folders: Iterable[str], read: Read) -> Read:
    """Return a reader that looks for a top-level package in each folder, in each layout."""
    prefixes = _prefixes(folders)
    known: dict[str, str] = {}  # by package: the prefix of its first file found; it may lack __init__.py

    def read_under(path: str) -> bytes | None:
        package = path.partition("/")[0]
        for prefix in [known[package]] if package in known else prefixes:
            content = read(f"{prefix}{path}")
            if content is not None:
                known[package] = prefix
                return content
        return None

    return read_under


def _read_installed(path: str) -> bytes | None:
    top, _, rest = path.partition("/")
    spec = _find_top(top.removesuffix(".py"))
    if spec is None:
        return None
    if not rest:
        return _read_file(Path(spec.origin)) if spec.origin and path.endswith(".py") else None
    contents = (_read_file(Path(folder) / rest) for folder in spec.submodule_search_locations or ())
    return next((content for content in contents if content is not None), None)


@cache
def _find_top(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module without a spec, such as one that a program made
        return None


def _read_file(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except OSError:
        return None


def _top_folders(names: Iterable[str]) -> list[str]:
    return ["", *sorted({f"{name.partition('/')[0]}/" for name in names if "/" in name})]


def _versions_in_name(path: Path) -> dict[str, str]:
    match = _WHEEL.fullmatch(path.name) or _ARCHIVE.fullmatch(path.name)
    return {} if match is None else {normalized(match["package"]): match["version"]}
