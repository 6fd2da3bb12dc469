"""Know functions that another decorator has rebuilt from their source, as typeguard's `typechecked` does.

Such a decorator parses the source, changes it, compiles it, and returns a new function. Below `instrument`,
the new code has no source, and the function gets a wrapper. Above it, the new function is not the decorated
one, which is dropped: then a notice names it.
"""

import os
import sys
from collections import deque
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, Final
from weakref import ref

from sglang_instrument.patching.code_constants import original_of
from sglang_instrument.patching.decorating.notes import NOTES
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.recording.safety.notices import notice
from sglang_instrument.recording.safety.static_lookup import entries

_LOCALS: Final = ".<locals>"
_FOLDER: Final = os.path.join(os.path.dirname(__file__), "")  # noqa: PTH118, PTH120 - pathlib takes long
_MOST_DROPPED: Final = 1000  # a program may decorate at each call, and nothing asks while nothing is recorded


def is_rebuilt(function: FunctionType, code: CodeType) -> bool:
    """Return whether the code of a function is not that of its `def`, in which a decorator is called now."""
    parent = function.__qualname__.rpartition(".")[0].removesuffix(_LOCALS)
    if _is_of_decorator(function, code):
        return False
    frame = _calling_frame()
    if frame is None or frame.f_code.co_filename != code.co_filename or code.co_name != function.__name__:
        return False
    if frame.f_code.co_name != (parent.rpartition(".")[2] or "<module>"):
        return False  # not called where the function is defined
    return not any(_has_body_of(code, constant) for constant in _codes_in(frame.f_code))


def _is_of_decorator(function: FunctionType, code: CodeType) -> bool:
    """Return whether functools.wraps gave a function the name of another one, which it calls."""
    if sys.version_info >= (3, 11):
        return code.co_qualname != function.__qualname__
    return "__wrapped__" in vars(function)


def _calling_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_FOLDER):
        frame = frame.f_back
    return frame


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield constant
            if constant.co_name.startswith("<generic parameters of "):
                yield from _codes_in(constant)


def _has_body_of(code: CodeType, other: CodeType) -> bool:
    """Return whether two codes are of one `def`; `types.coroutine` gives a function code with other flags."""
    same_name = (code.co_name, code.co_firstlineno) == (other.co_name, other.co_firstlineno)
    return other is code or (same_name and other.co_code == code.co_code)


class _Decorated(ref[FunctionType]):
    """A decorated function of a module or class, and where its name stands."""

    __slots__ = ("code", "filename", "lines", "module", "qualname")

    code: "ref[CodeType]"
    filename: str
    lines: range
    module: str
    qualname: str


_existing: Final[set[_Decorated]] = set()
_dropped: Final[deque[_Decorated]] = deque(maxlen=_MOST_DROPPED)


def _drop(decorated: Any, existing: Any = _existing, dropped: Any = _dropped) -> None:
    """Take the note of a function that is gone; the defaults are there when the interpreter ends, too."""
    if decorated in existing:
        existing.remove(decorated)
        dropped.append(decorated)


def expect(function: FunctionType) -> None:
    """Remember where a decorated function is defined."""
    if _LOCALS not in function.__qualname__:
        decorated = _Decorated(function, _drop)
        code = function.__code__
        decorated.code, decorated.filename = ref(code), code.co_filename
        last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
        decorated.lines = range(code.co_firstlineno, last + 1)
        decorated.module, decorated.qualname = function.__module__, function.__qualname__
        _existing.add(decorated)


def name_rebuilt() -> None:
    """Give a notice for each decorated function in whose place a function with other code stands now."""
    for _ in range(len(_dropped)):
        try:
            decorated = _dropped.popleft()
            if _is_being_imported(decorated.module):
                _dropped.append(decorated)  # its name is not bound yet
            elif _is_replaced(decorated):
                _name(f"{decorated.module}:{decorated.qualname}")
        except BaseException:  # another thread was first; a module that is no usual one
            reraise_if_programs_own()


def _name(place: str) -> None:
    text = (
        f"@instrument of {place}: a decorator above it made another function from its source; "
        "its calls are not recorded: put @instrument above that decorator"
    )
    notice(f"rebuilt: {place}", text)


def _is_being_imported(module: str) -> bool:
    spec = entries(sys.modules.get(module)).get("__spec__")
    return bool(getattr(spec, "_initializing", False))


def _is_replaced(decorated: _Decorated) -> bool:
    value: Any = sys.modules.get(decorated.module)
    for name in decorated.qualname.split("."):
        value = entries(value).get(name)
    if type(value) in (staticmethod, classmethod):
        value = value.__func__
    if type(value) is not FunctionType or value in NOTES:
        return False
    code = original_of(value.__code__)
    is_same_place = code.co_filename == decorated.filename and code.co_firstlineno in decorated.lines
    return is_same_place and code is not decorated.code() and value.__qualname__ == decorated.qualname
