"""Tell the program's own exceptions from those of its code that we call.

Our code calls code of the program: a value's `__repr__`, a property, a logging handler. What that code raises
stays away from training. Python raises other exceptions between any two instructions: those of signal
handlers, and those that another thread sets with `PyThreadState_SetAsyncExc`. They are the program's own, and
must reach it. The traceback tells them apart. It begins with frames of ours, and

- goes on with a frame of other code. If our last frame calls code of the program, that code has raised the
  exception, unless one of the further frames is a signal handler's, or a trace function's, or the last one is
  of Python's own library and does not raise it;
- or it ends. Then C code that we called has raised the exception, our own code (a bug of ours), or Python
  itself: only the last is the program's. An exception that Python itself raises has a class of the program's,
  or no arguments, because `PyThreadState_SetAsyncExc` takes a class. The others have arguments and a class of
  Python's, of a C extension's, or of ours.

Ctrl-C is the program's own, wherever it arrives.
"""

import sys

# The functions of `signal` convert a handler to an enum, and call repr() of a handler that is a function.
from _signal import getsignal, valid_signals  # type: ignore[import-not-found]
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Final

#: The descriptor of `type` itself: a metaclass may override `__name__`.
_NAME: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__
_ARGUMENTS: Final[Callable[[BaseException], Any]] = BaseException.__dict__["args"].__get__
_OF_VALUES: Final = (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError, StopIteration)
# By id(): comparing a class of the program's may call its metaclass.
_USUAL: Final = frozenset(map(id, _OF_VALUES))
_BUILT_IN: Final = frozenset(
    id(kind) for kind in vars(sys.modules["builtins"]).values() if isinstance(kind, type)
)
# Of which C code that we call raises exceptions, and our own code.
_RAISE_FROM_C: Final = frozenset({"torch", "numpy", "orjson", "msgspec", "sglang_instrument"})
_OURS: Final = tuple(
    f"sglang_instrument.{part}"
    for part in ("recording.", "patching.", "startup.", "profilers.", "launchers", "addresses")
)
_GENERATED: Final = "<sglang_instrument "
# These modules call no code of the program, except through `call`.
_CALLING_NOTHING: Final = frozenset(
    f"sglang_instrument.recording.measure.{name}"
    for name in ("binding", "context", "open_spans", "losses", "values", "error_names")
)
_GONE: Final = object()
_VARARGS: Final = 0x04  # inspect.CO_VARARGS


def call(function: Callable[..., Any], /, *arguments: Any) -> Any:
    """Call code of a value: `call(repr, value)`. What that code raises is not the program's own exception.

    Whatever else raises below `_CALLING_NOTHING`, a signal handler or a debugger, was not called by us.
    """
    return function(*arguments)


def name_of_type(kind: type) -> str:
    """Return a type's name as a plain str, without calling its metaclass."""
    return str.__str__(_NAME(kind))


def is_usual(error: BaseException, trace: TracebackType | None) -> bool:
    """Return whether C code raised a usual error in the frame that caught it: a field is missing.

    `is_programs_own` and `may_be_lost` would take longer to say no.
    """
    return trace is not None and trace.tb_next is None and id(type(error)) in _USUAL and bool(error.args)


def is_programs_own(error: BaseException, trace: TracebackType | None) -> bool:
    """Return whether an exception that is being handled did not come from code that we called."""
    kind = type(error)
    if kind is MemoryError or kind is RecursionError:
        return False
    if issubclass(kind, KeyboardInterrupt):
        return True
    ours, others = None, trace
    while others is not None and _is_ours(others.tb_frame):
        ours, others = others.tb_frame, others.tb_next
    if others is None:
        return not _is_of_c_code(error, ours)
    if (ours is not None and not _calls_the_program(ours)) or _is_interrupted(others):
        return True
    last = _last(others)
    return _root(_module_of(last.tb_frame)) in sys.stdlib_module_names and _came_from_outside(error, last)


def may_be_lost(error: BaseException, trace: TracebackType | None) -> bool:
    """Return whether an exception may have interrupted a value's own code, which did not raise it.

    This is a guess where that code has called C code, which can raise any exception.
    """
    return trace is not None and _came_from_outside(error, _last(trace))


def _came_from_outside(error: BaseException, place: TracebackType) -> bool:
    """Return whether neither the code at this place raises the exception, nor C code that it calls."""
    if _is_of_c_code(error, None):
        return False
    from opcode import opmap  # not at the top: it is hardly ever needed

    instruction = place.tb_frame.f_code.co_code[place.tb_lasti]
    return instruction not in (opmap["RAISE_VARARGS"], opmap["RERAISE"])


def _last(trace: TracebackType) -> TracebackType:
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _is_ours(frame: FrameType) -> bool:
    name = _module_of(frame)
    return name.startswith(_OURS) or frame.f_code.co_filename.startswith(_GENERATED)


def _module_of(frame: FrameType) -> str:
    name = dict.get(frame.f_globals, "__name__")
    return name if type(name) is str else ""


def _calls_the_program(frame: FrameType) -> bool:
    return frame.f_code is call.__code__ or _module_of(frame) not in _CALLING_NOTHING


def _is_of_c_code(error: BaseException, raised_in: FrameType | None) -> bool:
    """Return whether C code raises such an exception, or our own code.

    Args:
        error: The exception.
        raised_in: The frame of ours in which it was raised.
    """
    if raised_in is not None and raised_in.f_code.co_filename.endswith((".pyx", ".pxi")):
        return True  # Python itself raises nothing in compiled code
    kind = type(error)
    if id(kind) in _BUILT_IN and _ARGUMENTS(error):
        return True
    name = type.__dict__["__module__"].__get__(kind)
    root = _root(name)
    if id(kind) in _BUILT_IN or root in sys.stdlib_module_names:
        calls = raised_in is not None and raised_in.f_code is call.__code__
        return bool(_ARGUMENTS(error)) or (calls and id(kind) in _USUAL)
    return root in _RAISE_FROM_C or _file_of(name).endswith((".so", ".pyd"))


def _root(module: Any) -> str:
    return module.partition(".")[0] if type(module) is str else ""


def _file_of(module: Any) -> str:
    return str(getattr(sys.modules.get(module), "__file__", None)) if type(module) is str else ""


def _is_interrupted(trace: TracebackType) -> bool:
    """Return whether Python itself called one of the functions: a signal handler, or a trace function."""
    entry: TracebackType | None = trace
    while entry is not None:
        if _interrupts(entry.tb_frame):
            return True
        entry = entry.tb_next
    return False


def _interrupts(frame: FrameType) -> bool:
    """Return whether a function's arguments are its caller's frame and a number, or the name of an event.

    `getsignal` names the handlers, but one of them may have replaced itself by now. So it only helps where a
    function has put other values into its arguments.
    """
    code = frame.f_code
    if code.co_argcount < 2 and not code.co_flags & _VARARGS:
        return False
    caller, is_given, is_named, is_changed = frame.f_back, False, False, False
    for argument in _arguments(frame):
        kind = type(argument)
        is_given = is_given or argument is caller
        is_named = is_named or kind is int or kind is str
        is_changed = is_changed or argument is _GONE or issubclass(kind, int)
    return is_named if is_given else is_changed and _is_handler(frame)


def _arguments(frame: FrameType) -> list[Any]:
    """Return the arguments of a call that has ended; `_GONE` for one that was deleted."""
    code, values = frame.f_code, frame.f_locals
    arguments = [values.get(name, _GONE) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & _VARARGS:
        rest = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        arguments += rest if type(rest) is tuple else (_GONE,)
    return arguments


def _is_handler(frame: FrameType) -> bool:
    """Return whether this is a signal handler; they run on the main thread alone."""
    threading = sys.modules.get("threading")
    if threading is not None and get_ident() != threading.main_thread().ident:
        return False
    return any(_code_of(getsignal(number)) is frame.f_code for number in valid_signals())


def _code_of(handler: Any) -> Any:
    """Return the code of a signal handler; None if the handler is not a Python function."""
    if handler is None or type(handler) is int:
        return None  # ignored, the system's own, or not set by Python
    while type(handler) is partial:
        handler = handler.func
    try:
        function = getattr(handler, "__func__", handler)
        return getattr(function, "__code__", None) or type(handler).__call__.__code__
    except BaseException:  # an enum such as SIG_DFL, or a foreign object
        return None
