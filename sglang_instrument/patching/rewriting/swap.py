"""Replace a target's code or `__dict__` entry, and restore it exactly as it was."""

import sys
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from sglang_instrument.recording.safety.static_lookup import entries, is_class


@dataclass(frozen=True, eq=False)
class SwappedCode:
    """A function that runs rewritten code."""

    function: FunctionType
    original: CodeType
    ours: CodeType

    @classmethod
    def put(cls, function: FunctionType, ours: CodeType, original: CodeType) -> "SwappedCode":
        """Let `function` run `ours` from its next call on; calls in progress keep the code they have.

        `original` is what `ours` was made from.
        """
        function.__code__ = ours
        return cls(function, original, ours)

    def restore(self) -> str | None:
        """Restore the function's code; return the reason if that is impossible, else None."""
        if self.function.__code__ is self.original:
            return None
        if self.function.__code__ is not self.ours:
            name = f"{self.function.__module__}.{self.function.__qualname__}"
            return f"{name}: other code has changed its __code__ since"
        self.function.__code__ = self.original
        return None


@dataclass(frozen=True, eq=False)
class SwappedEntry:
    """An entry of a class's or module's `__dict__` that this package replaced.

    `was_own` is False if the owner had inherited the entry.
    """

    owner: Any
    name: str
    original: Any
    ours: Any
    was_own: bool

    @classmethod
    def put(cls, owner: Any, name: str, original: Any, ours: Any) -> "SwappedEntry":
        """Set the attribute, and remember the original.

        Raises:
            TypeError: `owner` is built into C and allows no new attributes.
        """
        was_own = name in entries(owner)
        setattr(owner, name, ours)
        return cls(owner, name, original, ours, was_own)

    def restore(self) -> str | None:
        """Restore the original; return the reason if that is impossible, else None."""
        present = entries(self.owner).get(self.name)
        if present is self.original:  # `_restore_copies` of another module's entry restored it
            return None
        if present is not self.ours:
            return f"{self.owner.__name__}.{self.name}: other code has replaced it since"
        if self.was_own:
            setattr(self.owner, self.name, self.original)
        else:
            delattr(self.owner, self.name)
        if isinstance(self.owner, ModuleType):
            self._restore_copies()
        return None

    def _restore_copies(self) -> None:
        """Restore the names of modules that imported the wrapper in the meantime."""
        for module in list(sys.modules.values()):
            names: Any = {} if is_class(module) else entries(module)
            for name, value in list(names.items()):
                if value is self.ours:
                    names[name] = self.original
