"""Read chosen locals of a caller's frame, and leave nothing behind in it.

Up to Python 3.12, `frame.f_locals` fills a dict that the frame keeps: a batch in it lives until the function
returns, and to clear it takes away what `exec` put there. So each version has its own way around that dict.
The arguments of measured functions do not suffice: slime's `args` and NeMo-RL's `policy_generation` are
locals of loops without a probe, and `with step(n)` hands over nothing.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FrameType
from typing import Any, Final

Values = Iterator[Any]
Reader = Callable[[FrameType, Iterable[str]], Values]


def values_of(frame: FrameType, names: Iterable[str]) -> list[Any]:
    """Return the values of those of a frame's locals that have one of the names, and a value."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a module's or a class's frame: its dict is its namespace
        held: Any = frame.f_locals
        return [held[name] for name in names if name in held] if type(held) is dict else []
    known = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    wanted = [name for name in names if name in known]
    return [value for value in _reader(frame, wanted) if value is not None] if wanted else []


def _by_view(frame: FrameType, names: Iterable[str]) -> Values:
    """Python 3.13: `f_locals` is a view of the frame."""
    view = frame.f_locals
    return (view[name] for name in names if name in view)


def _by_reference(frame: FrameType, names: Iterable[str]) -> Values:
    """Python 3.10: the collector knows a frame's values, though not their names."""
    others = (FrameType, CodeType, dict)  # the frame's own
    return (_in_cell(value) for value in gc.get_referents(frame) if type(value) not in others)


def _in_cell(value: Any) -> Any:
    try:
        return value.cell_contents if type(value) is CellType else value
    except ValueError:  # the variable has no value
        return None


def _by_name() -> Reader:
    """Python 3.12: a function of C returns one variable."""
    import ctypes

    get = ctypes.pythonapi.PyFrame_GetVar
    get.restype, get.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.py_object]

    def read(frame: FrameType, names: Iterable[str]) -> Values:
        for name in names:
            try:
                yield get(frame, name)
            except NameError:  # the variable has no value
                continue

    return read


#: Words of a `_PyInterpreterFrame` of Python 3.11 before its locals: function, globals, builtins, locals,
#: code, frame object, previous frame, instruction, and small fields in one.
_HEAD_WORDS: Final = 9


def _by_position() -> Reader:
    """Python 3.11 has no function for it, and its collector does not visit frames of running functions.

    So read the slots of `_PyInterpreterFrame` in memory, if its head names the frame's code and globals. Only
    callers on this thread are read: nothing else runs them meanwhile.
    """
    import ctypes

    word = ctypes.sizeof(ctypes.c_void_p)

    def words(address: int, count: int) -> Any:
        return (ctypes.c_size_t * count).from_address(address)

    def read(frame: FrameType, names: Iterable[str]) -> Values:
        code = frame.f_code
        (inner,) = words(id(frame) + object.__basicsize__ + word, 1)
        head = words(inner, _HEAD_WORDS)
        if [head[1], head[4], head[5]] != [id(frame.f_globals), id(code), id(frame)]:
            return  # an interpreter with another layout
        order = _order_of_slots(code)
        slots = words(inner + _HEAD_WORDS * word, len(order))
        for name in names:
            slot = slots[order.index(name)]
            if slot:
                yield _in_cell(ctypes.cast(slot, ctypes.py_object).value)

    return read


def _order_of_slots(code: CodeType) -> list[str]:
    cells = (name for name in code.co_cellvars if name not in code.co_varnames)  # else an argument's slot
    return [*code.co_varnames, *cells, *code.co_freevars]


def _no_values(frame: FrameType, names: Iterable[str]) -> Values:
    """Read nothing: only CPython's frames are known."""
    return iter(())


def _reader_for_this_python() -> Reader:
    if sys.implementation.name != "cpython":
        return _no_values
    if sys.version_info >= (3, 13):
        return _by_view
    if sys.version_info >= (3, 12):
        return _by_name()
    return _by_position() if sys.version_info >= (3, 11) else _by_reference


_reader: Final = _reader_for_this_python()
