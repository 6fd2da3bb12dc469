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
from typing import Any

from sglang_instrument.patching.places.loaded_modules import is_lazy
from sglang_instrument.patching.rewriting.watched_spec import AnnouncingLoader, WatchedSpec
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.recording.safety.notices import log_swallowed
from sglang_instrument.recording.safety.static_lookup import entries

#: Called with the name that is imported, and the module.
Callback = Callable[[str, Any], object]


class ImportWatch:
    """Watch for imports of some modules, and call back with each one.

    Args:
        callback: called with the name and the module after the module's code has run, in the importing
            thread. An error in it is logged, and does not reach the import.
        others: called with the name of any other module when its import begins.
    """

    def __init__(self, callback: Callback, others: Callable[[str], object] = lambda name: None) -> None:
        self._callback = callback
        self._others = others
        self._names: frozenset[str] = frozenset()
        self._searching = threading.local()
        self._specs: list[WatchedSpec] = []

    def start(self, names: frozenset[str]) -> None:
        """Watch for the modules `names`."""
        self._names = names
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        for name in names:
            module = sys.modules.get(name)
            if is_lazy(module):
                self._watched(entries(module)["__spec__"]).is_lazy()

    def stop(self) -> None:
        """Stop watching."""
        self._names = frozenset()
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        specs, self._specs = self._specs, []
        for spec in reversed(specs):
            spec.release()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a watched module with the other finders, and watch its spec."""
        if name not in self._names:
            self._begun(name)
            return None
        if getattr(self._searching, "name", None) == name:
            return None
        self._searching.name = name
        try:
            spec = self._found_by_others(name, path, target)
        except BaseException:  # the import asks that finder itself next, and fails without a line of ours
            reraise_if_programs_own()
            return None
        finally:
            self._searching.name = None
        if spec is not None and target is not None:  # a reload, which tells a spec nothing
            spec.loader = AnnouncingLoader.around(spec.loader, self._announce)
        elif spec is not None:
            self._watched(spec)
        return spec

    def _begun(self, name: str) -> None:
        try:
            self._others(name)
        except BaseException as error:  # an import may never fail because of us
            log_swallowed("the import of other modules", error)

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

    def _watched(self, spec: ModuleSpec) -> WatchedSpec:
        self._specs = [known for known in self._specs if known.is_in_use]
        known = next((known for known in self._specs if known.is_of(spec)), None)
        if known is None:
            known = WatchedSpec(spec, self._announce)
            self._specs.append(known)
        return known

    def _announce(self, name: str, module: ModuleType | None = None) -> None:
        """Call back with a module; one that is not given is looked up, as other code may have replaced it."""
        if module is None:
            module = sys.modules.get(name)
            if module is None or is_lazy(module):
                return  # the import has failed, or the code runs later
        if name not in self._names:  # no longer wanted
            return
        try:
            self._callback(name, module)
        except BaseException as error:  # an import may never fail because of us
            log_swallowed(f"the search for targets in {name}", error)
