"""Learn from a module's spec when its code has run, while its loader stays what it is.

A loader of ours would stand between the module's code and the import: the module's warnings would be blamed
on this package, and a failed import would show a line of it.
"""

import copyreg
import weakref
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from sglang_instrument.recording.safety.static_lookup import entries

#: Called with the module's name and, where its loader knows it, the module.
Announce = Callable[[str, ModuleType | None], object]

#: Python leaves code of this file and name out of `stacklevel` and of the traceback of a failed import.
_HIDDEN: Final[dict[str, Any]] = {
    "co_filename": "<frozen importlib._bootstrap_external>",
    "co_name": "_call_with_frames_removed",
}


class WatchedSpec:
    """A spec whose class is replaced by a subclass until the module's code has run.

    importlib sets `_initializing` to False after the code, from a frame of its own. `LazyLoader` sets
    `loader_state` when it puts the code off until the first use of the module; nothing else tells its end, so
    then an `AnnouncingLoader` runs the code.

    Args:
        spec: The spec.
        announce: Called with the module's name once its import has ended, if only by an error.
    """

    def __init__(self, spec: Any, announce: Announce) -> None:
        self._spec = weakref.ref(spec)
        self._announce = announce
        self._plain = plain = type(spec)
        self._loader: AnnouncingLoader | None = None
        watch = self

        class Watched(plain):  # type: ignore[valid-type,misc]
            def __setattr__(self, name: str, value: object) -> None:
                if name == "_initializing" and not value:
                    watch.ended(self)
                plain.__setattr__(self, name, value)  # type: ignore[call-arg]
                if name == "loader_state" and value is not None:
                    watch.is_lazy()

            def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:  # a copy is plain
                return copyreg._reconstructor, (plain, object, None), vars(self)  # type: ignore[attr-defined]

        Watched.__name__, Watched.__qualname__ = plain.__name__, plain.__qualname__
        Watched.__module__ = plain.__module__
        self._watched = Watched
        spec.__class__ = Watched

    @property
    def is_in_use(self) -> bool:
        """Whether the spec is still watched."""
        spec: Any = self._spec()
        return spec is not None and (type(spec) is self._watched or self._loader is not None)

    def is_of(self, spec: ModuleSpec) -> bool:
        """Return whether this is the watch of `spec`."""
        return self._spec() is spec

    def ended(self, spec: Any) -> None:
        """Announce the end of an import, while other threads still wait for it."""
        if self._loader is None:  # else the code runs later
            if type(spec) is self._watched:
                spec.__class__ = self._plain
            self._announce(spec.name, None)

    def is_lazy(self) -> None:
        """Have the module's code, which runs later, announced."""
        spec: Any = self._spec()
        if spec is not None and self._loader is None:
            loader = AnnouncingLoader.around(spec.loader, self._announce, self.release)
            spec.loader = self._loader = loader

    def release(self) -> None:
        """Give the spec its class and its loader back."""
        spec: Any = self._spec()
        loader, self._loader = self._loader, None
        if spec is None:
            return
        if loader is not None and spec.loader is loader:
            spec.loader = loader.loader
        if type(spec) is self._watched:
            spec.__class__ = self._plain


class AnnouncingLoader:
    """Load a module with its own loader, which is put back before the module's code runs, and announce it."""

    def __init__(self, loader: Any, announce: Announce, release: Callable[[], object]) -> None:
        self.loader = loader
        self._announce = announce
        self._release = release

    @classmethod
    def around(cls, loader: Any, announce: Announce, release: Callable[[], object] = lambda: None) -> Any:
        """Return an announcing loader, or `loader` itself if that is of an old kind."""
        return cls(loader, announce, release) if hasattr(loader, "exec_module") else loader

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # a copy in the making has no attributes yet
            raise AttributeError(name)
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the module's own loader create it."""
        create = getattr(self.loader, "create_module", None)
        module: ModuleType | None = None if create is None else create(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Put the module's own loader back, let it run the code, and announce the module."""
        self._put_back(module)
        self.loader.exec_module(module)
        self._announce(entries(module)["__name__"], module)

    def _put_back(self, module: ModuleType) -> None:
        self._release()
        names: Any = entries(module)  # vars() would load a lazy module
        spec = names.get("__spec__")
        if spec is not None and spec.loader is self:
            spec.loader = self.loader
        if names.get("__loader__") is self:
            names["__loader__"] = self.loader

    exec_module.__code__ = exec_module.__code__.replace(**_HIDDEN)
