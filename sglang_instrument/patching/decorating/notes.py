"""Keep a note of each decorated function, as long as the function lives."""

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary, ref

from sglang_instrument.patching.pickling import Reduced
from sglang_instrument.schema import Phase

NOTE: Final = "__sglang_instrument__"  # in a function's __dict__: travels with a function pickled by value
_UNPICKLE: Final = """(
    __import__("sglang_instrument.patching.decorating.functions", fromlist=["x"])
    .note_again(function, sent, rewritten)
    if __import__("importlib.util").util.find_spec("sglang_instrument") else None
)"""


def _send_nothing(function: FunctionType, note: "FunctionNote") -> CodeType | None:
    return None


#: Returns the rewritten code to send with a function; None if the function runs it. `functions.py` sets this.
rewrite_to_send: "Callable[[FunctionType, FunctionNote], CodeType | None]" = _send_nothing


class Decoration(NamedTuple):
    """What `instrument` was asked to record of a function's calls."""

    event: str
    phase: Phase | None
    fields: tuple[tuple[str, str], ...]
    bind: tuple[tuple[str, str], ...]
    sync: bool | None

    @property
    def reads(self) -> bool:
        """Whether a value of the call is read."""
        return bool(self.fields or self.bind)


class FunctionNote:
    """What is known of one decorated function.

    `decorations` are those that were stacked, the outer one first. `template` is the function that was
    copied, if it has regions of a table. While the function runs rewritten code, `original` is the code that
    `rewritten` replaces.
    """

    __slots__ = ("_function", "decorations", "original", "rewritten", "template")

    def __init__(
        self,
        function: FunctionType,
        decorations: tuple[Decoration, ...],
        template: FunctionType | None = None,
    ) -> None:
        self._function = ref(function)
        self.decorations = decorations
        self.template = template
        self.original: CodeType | None = None
        self.rewritten: CodeType | None = None

    def __reduce__(self) -> Reduced:
        function = self._function()
        if function is None:
            return eval, ("None", {})
        sent = tuple(map(tuple, self.decorations))
        rewritten = rewrite_to_send(function, self)  # no source may exist where the function arrives
        return eval, (_UNPICKLE, {"function": function, "sent": sent, "rewritten": rewritten})


#: The notes of all decorated functions that exist.
NOTES: "Final[WeakKeyDictionary[FunctionType, FunctionNote]]" = WeakKeyDictionary()


def decorations_of(function: FunctionType) -> tuple[Decoration, ...]:
    """Return the decorations of a function, the outer one first."""
    note = NOTES.get(function)
    return () if note is None else note.decorations
