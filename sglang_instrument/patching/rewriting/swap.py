"""Put something of ours in a target's place, and put the target back exactly as it was."""

import sys
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any


@dataclass(frozen=True, eq=False)
class SwappedCode:
    """A function that runs our code."""

    function: FunctionType
    original: CodeType
    ours: CodeType

    @classmethod
    def put(cls, function: FunctionType, ours: CodeType) -> "SwappedCode":
        """Let `function` run `ours` from its next call on; calls in progress keep the code they have."""
        original = function.__code__
        function.__code__ = ours
        return cls(function, original, ours)

    def restore(self) -> str | None:
        """Give the function its own code back; return what stands in the way, None if nothing does."""
        if self.function.__code__ is self.original:
            return None
        if self.function.__code__ is not self.ours:
            name = f"{self.function.__module__}.{self.function.__qualname__}"
            return f"{name}: its code was changed by somebody else"
        self.function.__code__ = self.original
        return None


@dataclass(frozen=True, eq=False)
class SwappedEntry:
    """An entry of a class's or module's `__dict__` that is ours.

    `was_own` is False where the owner had inherited the entry.
    """

    owner: Any
    name: str
    original: Any
    ours: Any
    was_own: bool

    @classmethod
    def put(cls, owner: Any, name: str, original: Any, ours: Any) -> "SwappedEntry":
        """Set an attribute.

        Raises:
            TypeError: `owner` is built into C and takes none.
        """
        was_own = name in vars(owner)
        setattr(owner, name, ours)
        return cls(owner, name, original, ours, was_own)

    def restore(self) -> str | None:
        """Put the original back; return what stands in the way, None if nothing does."""
        present = vars(self.owner).get(self.name)
        if present is self.original:  # `_restore_copies` of another module's entry did it
            return None
        if present is not self.ours:
            return f"{self.owner.__name__}.{self.name}: it was replaced by somebody else"
        if self.was_own:
            setattr(self.owner, self.name, self.original)
        else:
            delattr(self.owner, self.name)
        if isinstance(self.owner, ModuleType):
            self._restore_copies()
        return None

    def _restore_copies(self) -> None:
        """Restore the names by which modules imported meanwhile took the function over."""
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", {})
            for name, value in list(names.items()):
                if value is self.ours:
                    names[name] = self.original
