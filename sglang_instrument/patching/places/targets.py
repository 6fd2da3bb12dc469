"""Find a target in an imported module: the class that owns it, and the function behind its decorators."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Final

from sglang_instrument.recording.safety.exception_origins import name_of_type
from sglang_instrument.recording.safety.static_lookup import (
    answers_itself,
    class_entry,
    entries,
    is_class,
    stored_attribute,
)

#: Objects that the search behind decorators visits: closures may lead from one to the next without an end.
_MOST_OBJECTS: Final = 1000


@dataclass(frozen=True, eq=False)
class ResolvedTarget:
    """A target that exists.

    `owner` is the module or class that has the name. `raw` is the entry in the `__dict__` of the owner or of
    the base class that defines it. `function` is the plain function behind `raw`, None if there is none: it
    is built into C, say. Then `stand_in` is the name of a class behind `raw` whose own code answers for any
    attribute, as a mock does; "" if there is none.
    """

    owner: Any
    name: str
    raw: Any
    function: FunctionType | None
    stand_in: str = ""


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
    return None if raw is None else _resolved(owner, name, raw)


def _raw(owner: Any, name: str) -> Any:
    # The entry of the owner's own __dict__, not getattr(): getattr would bind a classmethod, and run a
    # property, a module's __getattr__ or a lazy module's whole code.
    return class_entry(owner, name) if is_class(owner) else entries(owner).get(name)


def _behind_actor(owner: Any) -> Any:
    """Return the class that the user wrote, if `owner` is the actor class that Ray made of it."""
    ray = None if owner is None else entries(owner).get("__ray_metadata__")
    actor = None if ray is None else stored_attribute(ray, "modified_class")
    return owner if actor is None else actor


def _resolved(owner: Any, name: str, raw: Any) -> ResolvedTarget:
    function = function_named(raw, name)
    if function is not None:
        return ResolvedTarget(owner, name, raw, function)
    stand_ins = (name_of_type(type(each)) for each in behind(raw) if answers_itself(each))
    return ResolvedTarget(owner, name, raw, None, next(stand_ins, ""))


def function_named(raw: Any, name: str) -> FunctionType | None:
    """Return the function named `name` behind its decorators, even those without `functools.wraps`."""
    for current in behind(raw):
        # The code's name: a decorator may copy `__name__` to its wrapper, but not `co_name`.
        if type(current) is FunctionType and current.__code__.co_name == name:
            return current
    # A second name of a function: `method = function`.
    return raw if type(raw) is FunctionType and not raw.__closure__ else None


def behind(raw: Any) -> Iterator[Any]:
    """Yield `raw` and the objects that it wraps, the nearest first."""
    seen: dict[int, Any] = {}  # holds the objects: the id of a freed one may be given again
    waiting = deque([raw])
    while waiting and len(seen) < _MOST_OBJECTS:
        current = waiting.popleft()
        if id(current) not in seen:
            seen[id(current)] = current
            yield current
            waiting += _wrapped_in(current)


def _wrapped_in(wrapper: Any) -> Iterator[Any]:
    """Yield the callables that a wrapper may hold: in a descriptor, a partial, Ray's wrapper, a closure.

    Only what is stored counts: a mock or an RPC stub would answer each name with a new object.
    """
    for attribute in ("__wrapped__", "__func__", "func", "fget", "_function"):
        inner = stored_attribute(wrapper, attribute)
        if callable(inner):
            yield inner
    if type(wrapper) is FunctionType:
        for cell in wrapper.__closure__ or ():
            try:
                inner = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            if callable(inner):
                yield inner
