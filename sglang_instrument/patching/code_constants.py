"""Hold the constants of rewritten code, and show compilers of bytecode the function as it was written.

Rewritten code begins with `if GATE is None:` and holds the original statements in that branch, the rewritten
ones in the other. The interpreter reads constants in C and finds `GATE`. A compiler of bytecode, such as
torch.compile, reads them in Python and finds None: it compiles the original statements and never meets a
probe, which it could not put into a graph.
"""

import sys
from types import CodeType
from typing import Any, Final
from weakref import ref

from sglang_instrument.patching.pickling import PassThrough, Reduced, picklable, reduce_with_stand_in
from sglang_instrument.recording.safety.notices import notice

_COMPILER: Final = "torch._dynamo"
# The constants are the outer pickler's: only it can pickle nested code.
_UNPICKLE: Final = """(
    __import__("sglang_instrument.patching.code_constants", fromlist=["x"])
    .RewrittenConstants(items, name, original)
    if __import__("importlib.util").util.find_spec("sglang_instrument") else tuple(items)
)"""


class _Gate:
    """Stand in the constants of rewritten code for the choice between its two branches."""

    __slots__ = ()

    def __reduce__(self) -> Reduced:
        return reduce_with_stand_in("True", _gate)


GATE: Final = _Gate()


def _gate() -> _Gate:
    return GATE


class RewrittenConstants(tuple[Any, ...]):
    """The constants of rewritten code, which has the qualified name `name`."""

    name: str
    _original: "ref[CodeType] | CodeType | None"

    def __new__(
        cls, items: Any, name: str, original: "ref[CodeType] | CodeType | None"
    ) -> "RewrittenConstants":
        """Make the constants.

        Args:
            items: the constants.
            name: the function's qualified name.
            original: the code that was rewritten; None for a function nested in a rewritten one. A cache of
                rewritten code by its original must not keep the original alive: it passes a reference.
        """
        bare = (item.bare() if type(item) is PassThrough else item for item in items)
        made = super().__new__(cls, bare)
        made.name, made._original = name, original
        return made

    @property
    def original(self) -> CodeType | None:
        """The code that was rewritten, if it is known and still exists."""
        original = self._original
        return original() if isinstance(original, ref) else original

    def __getitem__(self, index: Any) -> Any:
        """Return a constant, as the modules `dis` and `torch._dynamo` ask for it; None for the gate."""
        value = tuple.__getitem__(self, index)
        if value is not GATE:
            return value
        if _is_compiling():
            text = f"{self.name}: torch.compile compiles it; compiled code records nothing"
            notice(f"compiled: {self.name}", text)
        return None

    def __reduce_ex__(self, protocol: Any) -> Reduced:
        sent = {"items": list(map(picklable, self)), "name": self.name, "original": self.original}
        return eval, (_UNPICKLE, sent)


def original_of(code: CodeType) -> CodeType:
    """Return the code that was rewritten to `code`; `code` itself if it was not rewritten."""
    constants = code.co_consts
    return (constants.original if type(constants) is RewrittenConstants else None) or code


def _is_compiling() -> bool:
    """Return whether torch.compile is reading the constants: a debugger or a profiler may do so, too."""
    if _COMPILER not in sys.modules:
        return False
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if type(name) is str and name.startswith(_COMPILER):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
