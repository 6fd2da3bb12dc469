"""Install when a process first imports a package that has patches, or the first part of ours that records.

`sglang_instrument.pth`, shipped beside the package, imports this module in every Python process that has
`SGLANG_INSTRUMENT=1`; verl and SGLang find it by entry points, where Python reads no `.pth`. Until a target
is imported, it costs one comparison per import: no thread, no file. Without the variable it does nothing.
"""

from __future__ import annotations

import os
import sys

from sglang_instrument.startup import run_ids

TYPE_CHECKING = False  # importing it from typing takes longer than this hook may
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from sglang_instrument.startup.ray_workers import RayInit

_DEMO = "demo"  # its table patches this package itself
#: The modules that record. Functions that come by value (cloudpickle) import them when they are unpickled.
#: Each is the first on its way: `install()` needs the public names, whose modules must not be half imported.
_RECORDING = frozenset(
    {
        "sglang_instrument.patching.decorating",
        "sglang_instrument.recording.measure",
        "sglang_instrument.recording.log_manager",
        "sglang_instrument.patching.probes",
    }
)
_COMMANDS = "sglang_instrument.cli"  # a command reads logs and writes none


class Trigger:
    """A finder on `sys.meta_path` that only observes imports: it installs, and finds no modules itself."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Install, once, before the first patched package, or the first module that records, is imported."""
        if cls not in sys.meta_path:
            return None
        if name in _RECORDING and _COMMANDS not in sys.modules:
            return _install_at_use(name)
        if "." in name:
            return None
        if name == "ray" and _ray is None:
            return _watch_ray(name, path)
        return _install_before(name, path) if name in _packages() else None


def start() -> None:
    """Install now if a target is already imported, else at its import; without the switch, do nothing.

    SGLang's plugin loader calls this function; verl's imports this module, which does the same.
    """
    if not run_ids.is_asked(os.environ):
        return
    if run_ids.PATCHES in os.environ and run_ids.PACKAGES not in os.environ:
        os.environ[run_ids.PACKAGES] = ",".join(sorted(_packages_of_own_tables()))
    if _packages() & sys.modules.keys():
        _install()
    elif Trigger not in sys.meta_path:
        # Processes without a common driver, such as those of a script that only calls Ray, share this id.
        os.environ.setdefault(run_ids.LAUNCH, run_ids.new_run_id(os.environ))
        sys.meta_path.insert(0, Trigger)


class _Loaded:
    """Gives the running import of one of our modules the module that `install()` has loaded meanwhile."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _install_at_use(name: str) -> ModuleSpec | None:
    """Install, and hand this module to the import that asked for it: a second load would double its state."""
    _install()
    module = sys.modules.get(name)
    if module is None:  # nothing was installed, so the usual finders find it
        return None
    from importlib.machinery import ModuleSpec

    # The import system takes the spec of a module that was imported while it searched.
    module.__spec__ = ModuleSpec(name, _Loaded(module))  # type: ignore[arg-type]
    return module.__spec__


def _install_before(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Install, and ask the new finder for this module: the running import has already passed its place."""
    _install()
    try:
        from sglang_instrument.patching.rewriting.imports import ImportWatch

        watches = [finder for finder in sys.meta_path if isinstance(finder, ImportWatch)]
        return next((spec for watch in watches if (spec := watch.find_spec(name, path)) is not None), None)
    except Exception:  # if the import is broken, the import itself raises
        return None


_ray: RayInit | None = None


_shipped: frozenset[str] = frozenset()


def shipped_packages() -> frozenset[str]:
    """Return the packages of the shipped tables: each folder in `patches/` has the name of its package.

    The tables themselves are not read: that takes longer than this hook may.
    """
    global _shipped
    if not _shipped:
        package = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - pathlib takes long to import
        for root in (package, os.path.dirname(package)):  # noqa: PTH120 - in a wheel, in a checkout
            try:
                names = os.listdir(os.path.join(root, "patches"))  # noqa: PTH118, PTH208 - as above
            except OSError:
                continue
            _shipped = frozenset(name for name in names if "." not in name and name != _DEMO)
            break
    return _shipped


def _packages() -> frozenset[str]:
    return shipped_packages().union(os.environ.get(run_ids.PACKAGES, "").split(",")) - {""}


def _packages_of_own_tables() -> set[str]:
    """Return the packages that the user's own tables name; `install()` reports errors in tables later.

    Importing a TOML reader takes longer than this hook may, so this reads names after `module =` and before
    the colon of a target. One name too many does no harm.
    """
    from sglang_instrument.regular_files import read_regular

    packages = set[str]()
    for path in _own_tables():
        try:
            pieces = read_regular(path).decode().replace("'", '"').split('"')
        except (OSError, ValueError):
            continue
        for before, quoted in zip(pieces[::2], pieces[1::2], strict=False):
            is_module = before.rstrip(" \t=").endswith("module")
            name, colon, _ = quoted.partition(":")
            top = name.partition(".")[0]
            if (is_module or colon) and top.isidentifier():
                packages.add(top)
    return packages


def _own_tables() -> list[str]:
    folders = os.environ[run_ids.PATCHES].split(os.pathsep)
    walks = (walked for folder in folders if folder for walked in os.walk(folder))
    return [
        os.path.join(path, name)  # noqa: PTH118
        for path, _, names in walks
        for name in names
        if name.endswith(".toml")
    ]


def _install() -> None:
    global _ray
    try:
        sys.meta_path.remove(Trigger)
    except ValueError:
        pass  # it was not there, or another thread has removed it
    try:
        if _ray is not None:
            _ray.stop()  # the session makes its own RayInit
            _ray = None
        from sglang_instrument.startup import install

        if not install.was_called():  # an earlier install() or uninstall() call decides
            install.install()
    except Exception as error:
        print(f"sglang_instrument: not installed: {error!r}", file=sys.stderr)  # noqa: T201 - no other way to report


def _watch_ray(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Install when `ray.init()` is called: a driver may import no target, while its workers do."""
    global _ray
    try:
        from sglang_instrument.startup.ray_workers import RayInit

        _ray = RayInit(_at_ray_init)
        return _ray.start_with(name, path)
    except Exception as error:
        print(f"sglang_instrument: Ray is not watched: {error!r}", file=sys.stderr)  # noqa: T201 - as above
        return None


def _at_ray_init() -> dict[str, str]:
    _install()
    from sglang_instrument.startup.install import child_environment

    return dict(child_environment())


start()
