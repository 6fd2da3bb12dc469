"""Find a target in an imported module: the class that owns it, and the function behind its decorators."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from sglang_instrument.recording.safety.guard import let_through


@dataclass(frozen=True, eq=False)
class Found:
    """Where a target's name leads.

    `owner` is the module or class whose name it is, `raw` the entry as it stands in the `__dict__` of the
    owner or of the class that it inherits it from. `function` is the plain function behind `raw`, None where
    there is none: built into C.
    """

    owner: Any
    name: str
    raw: Any
    function: FunctionType | None


def find_target(module: ModuleType, path: str) -> Found | None:
    """Return what "Class.method" is in `module`; None if there is no such thing.

    Nothing is called and no descriptor runs: entries are read from `__dict__`s.
    """
    *outer, name = path.split(".")
    owner: Any = module
    for part in outer:
        owner = _behind_actor(_raw(owner, part))
        if owner is None:
            return None
    raw = _raw(owner, name)
    return None if raw is None else Found(owner, name, raw, _innermost(raw, name))


def _raw(owner: Any, name: str) -> Any:
    # The entry of the owner's own __dict__, not getattr(): getattr would bind a classmethod, and run a
    # property or a module's __getattr__.
    for one in getattr(owner, "__mro__", (owner,)):
        entries = getattr(one, "__dict__", {})
        if name in entries:
            return entries[name]
    return None


def _behind_actor(owner: Any) -> Any:
    """Return the class whose methods travel where Ray has made an actor class of it."""
    ray = getattr(owner, "__dict__", {}).get("__ray_metadata__")
    return getattr(ray, "modified_class", owner)


def _innermost(raw: Any, name: str) -> FunctionType | None:
    """Return the function named `name` behind decorators, those without `functools.wraps` included."""
    seen: set[int] = set()
    waiting = [raw]
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        # The code's name: a decorator may copy `__name__` to its wrapper, but not this.
        if isinstance(current, FunctionType) and current.__code__.co_name == name:
            return current
        waiting += _wrapped_in(current)
    # Not a decorator's work but another name of a function: `method = function`.
    return raw if isinstance(raw, FunctionType) and not raw.__closure__ else None


def _wrapped_in(wrapper: Any) -> Iterator[Any]:
    """Yield what a wrapper may have wrapped: a descriptor's, a partial's, Ray's function, closure cells."""
    for attribute in ("__wrapped__", "__func__", "func", "fget", "_function"):
        try:
            inner = getattr(wrapper, attribute, None)
        except BaseException:  # the wrapper is somebody else's object and may raise anything
            let_through()
            continue
        if callable(inner):
            yield inner
    if isinstance(wrapper, FunctionType):
        for cell in wrapper.__closure__ or ():
            try:
                inner = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            if callable(inner):
                yield inner
