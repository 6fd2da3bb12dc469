"""Call back when a module has been imported, and leave no trace afterwards.

wrapt's post-import hooks cannot be unregistered, let a hook's error fail the import, and take 50 ms to
import; the start-up hook may take 2 ms. So this module has its own finder: the other finders find the module,
it calls back after the module's code has run, and it leaves `sys.meta_path` when it watches no module.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

Callback = Callable[[ModuleType], None]


class ImportWatch:
    """Watch for imports of some modules, and call back with each one.

    Args:
        callback: called with the module after its code has run, in the importing thread. Its errors are
            dropped, so it must report them itself.
    """

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._names: frozenset[str] = frozenset()
        self._searching = threading.local()

    def start(self, names: frozenset[str]) -> None:
        """Watch for the modules `names`."""
        self._names = names
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Stop watching."""
        self._names = frozenset()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a watched module with the other finders, and wrap its loader in one that calls back."""
        if name not in self._names or getattr(self._searching, "name", None) == name:
            return None
        self._searching.name = name
        try:
            spec = self._found_by_others(name, path, target)
        finally:
            self._searching.name = None
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = cast("Loader", _Announcing(spec.loader, self._announce))
        return spec

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in tuple(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _announce(self, module: ModuleType) -> None:
        if module.__name__ not in self._names:  # no longer wanted
            return
        try:
            self._callback(module)
        except Exception:
            pass  # an import may never fail because of us


class _Announcing:
    """Load a module with its own loader, and restore that loader before the module's code runs."""

    def __init__(self, loader: Any, announce: Callback) -> None:
        self._loader = loader
        self._announce = announce

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy in the making has no attributes yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._loader, "create_module", None)
        module: ModuleType | None = None if create is None else create(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None and cast("object", spec.loader) is self:
            spec.loader = self._loader
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._announce(module)
