"""Find a target in an imported module: the class that owns it, and the function behind its decorators."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from sglang_instrument.recording.safety.guard import reraise_if_programs_own


@dataclass(frozen=True, eq=False)
class ResolvedTarget:
    """A target that exists.

    `owner` is the module or class that has the name. `raw` is the entry in the `__dict__` of the owner or of
    the base class that defines it. `function` is the plain function behind `raw`, None if it is built into C.
    """

    owner: Any
    name: str
    raw: Any
    function: FunctionType | None


def find_target(module: ModuleType, path: str) -> ResolvedTarget | None:
    """Find "Class.method" in `module`; return None if there is no such name.

    The search reads `__dict__`s only: it calls nothing and runs no descriptor.
    """
    *outer, name = path.split(".")
    owner: Any = module
    for part in outer:
        owner = _behind_actor(_raw(owner, part))
        if owner is None:
            return None
    raw = _raw(owner, name)
    return None if raw is None else ResolvedTarget(owner, name, raw, _innermost(raw, name))


def _raw(owner: Any, name: str) -> Any:
    # The entry of the owner's own __dict__, not getattr(): getattr would bind a classmethod, and run a
    # property or a module's __getattr__.
    for one in getattr(owner, "__mro__", (owner,)):
        entries = getattr(one, "__dict__", {})
        if name in entries:
            return entries[name]
    return None


def _behind_actor(owner: Any) -> Any:
    """Return the class that the user wrote, if `owner` is the actor class that Ray made of it."""
    ray = getattr(owner, "__dict__", {}).get("__ray_metadata__")
    return getattr(ray, "modified_class", owner)


def _innermost(raw: Any, name: str) -> FunctionType | None:
    """Return the function named `name` behind its decorators, even those without `functools.wraps`."""
    seen: set[int] = set()
    waiting = [raw]
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        # The code's name: a decorator may copy `__name__` to its wrapper, but not `co_name`.
        if isinstance(current, FunctionType) and current.__code__.co_name == name:
            return current
        waiting += _wrapped_in(current)
    # Not a decorator, but a second name of a function: `method = function`.
    return raw if isinstance(raw, FunctionType) and not raw.__closure__ else None


def _wrapped_in(wrapper: Any) -> Iterator[Any]:
    """Yield the callables that a wrapper may hold: in a descriptor, a partial, Ray's wrapper, a closure."""
    for attribute in ("__wrapped__", "__func__", "func", "fget", "_function"):
        try:
            inner = getattr(wrapper, attribute, None)
        except BaseException:  # the wrapper is foreign code and may raise anything
            reraise_if_programs_own()
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
