"""Find new subclasses of classes that have targets, and the methods by which they override a target."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FunctionType
from typing import Any, Final
from weakref import ref

from sglang_instrument.patching.places.loaded_modules import is_being_imported
from sglang_instrument.patching.places.targets import behind, function_named
from sglang_instrument.recording.safety.static_lookup import entries

_SUBCLASSES_OF: Final = type.__dict__["__subclasses__"]  # a metaclass may have a method of this name
_MRO_OF: Final = type.__dict__["__mro__"].__get__
_NAME_OF: Final = type.__dict__["__name__"].__get__
_QUALNAME_OF: Final = type.__dict__["__qualname__"].__get__
_KIND: Final = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR


class Subclasses:
    """The subclasses of some classes, without those that were seen before."""

    def __init__(self) -> None:
        self._owners: dict[int, type] = {}
        self._seen: dict[int, ref[type]] = {}  # by id: a metaclass may compare its classes by code of its own

    def watch(self, owner: type) -> None:
        """Look for subclasses of this class, too."""
        self._owners[id(owner)] = owner

    @property
    def is_watching(self) -> bool:
        """Whether there is a class to look at."""
        return bool(self._owners)

    def new(self) -> list[type]:
        """Return the subclasses that are new, each after its base classes.

        A class whose module is being imported is left for the next time: its decorators may still run.
        """
        waiting, new = deque(list(self._owners.values())), dict[int, type]()
        while waiting:
            for subclass in _SUBCLASSES_OF(waiting.popleft()):
                if is_being_imported(entries(subclass).get("__module__")):
                    continue
                waiting.append(subclass)
                seen = self._seen.get(id(subclass))
                if seen is None or seen() is not subclass:
                    new.pop(id(subclass), None)  # it follows the last of its base classes
                    new[id(subclass)] = subclass
        self._seen |= {key: ref(subclass) for key, subclass in new.items()}
        return list(new.values())

    def forget(self) -> None:
        """Look at no class any more."""
        self._owners.clear()
        self._seen.clear()


@dataclass(frozen=True)
class Override:
    """A method of a subclass, in the place of a target's method.

    `name` is "Class.method" in the module `module`. `receiver` is the parameter that gets the object, `bases`
    are the names of the base classes.
    """

    module: str
    name: str
    function: FunctionType
    receiver: str
    bases: frozenset[str]

    def is_like(self, function: FunctionType) -> bool:
        """Whether both are plain functions, coroutines, generators or async generators."""
        return not (self.function.__code__.co_flags ^ function.__code__.co_flags) & _KIND

    def lacks(self, name: str, function: FunctionType) -> bool:
        """Whether `name` is a parameter of the overridden `function`, and not of this method."""
        return name in _parameters(function.__code__) and name not in _parameters(self.function.__code__)

    @property
    def calls_super(self) -> bool:
        """Whether it seems to call the method that it overrides."""
        name, naming = self.name.rpartition(".")[2], self.bases | {"super"}
        return any(
            name in code.co_names and not naming.isdisjoint(code.co_names)
            for code in _codes(self.function.__code__)
        )


def is_subclass(subclass: type, owner: type) -> bool:
    """Return whether `owner` is one of the base classes."""
    return any(base is owner for base in _MRO_OF(subclass)[1:])


def override_in(subclass: type, name: str) -> Override | None:
    """Return the method by which a class itself overrides the method `name` of its base classes.

    A method that only wraps one of theirs, as in the class that Ray makes of an actor's, is none.
    """
    raw = entries(subclass).get(name)
    function = None if raw is None else function_named(raw, name)
    if function is None or not function.__code__.co_argcount or isinstance(raw, staticmethod):
        return None
    theirs = {id(each) for each in inherited_functions(subclass, name)}
    if any(id(each) in theirs for each in behind(raw)):
        return None
    module = entries(subclass).get("__module__")
    return Override(
        module if type(module) is str else "?",
        f"{_QUALNAME_OF(subclass)}.{name}",
        function,
        function.__code__.co_varnames[0],
        frozenset(map(_NAME_OF, _MRO_OF(subclass)[1:])),
    )


def inherited_functions(subclass: type, name: str) -> Iterator[FunctionType]:
    """Yield the functions named `name` of a class's base classes, the nearest first."""
    for base in _MRO_OF(subclass)[1:]:
        raw = entries(base).get(name)
        function = None if raw is None else function_named(raw, name)
        if function is not None:
            yield function


def _parameters(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _codes(code: CodeType) -> Iterator[Any]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
