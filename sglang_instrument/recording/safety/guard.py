"""Swallow errors of recording; re-raise the program's own.

A value's method may raise anything, SystemExit and GeneratorExit included, and memory may run out. Training
must see none of that. It must see a KeyboardInterrupt, and any exception that one of its signal handlers
raises while our code runs. So each function that calls the program's code, or is called by it, catches so:

    except BaseException:
        reraise_if_programs_own()
"""

import sys

# The functions of `signal` convert a handler to an enum, and call repr() of a handler that is a function.
from _signal import getsignal, valid_signals  # type: ignore[import-not-found]
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final

# Missing fields raise these in most records, so they are swallowed without a search for a signal handler.
_OF_VALUES: Final = (AttributeError, LookupError, TypeError, ValueError, MemoryError, RecursionError)
# The descriptor of `type` itself: a metaclass may override `__name__`.
_NAME: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__


def reraise_if_programs_own() -> None:
    """Re-raise the exception being handled if it comes from Ctrl-C or a signal handler of the program."""
    _, error, trace = sys.exc_info()
    if error is None or issubclass(type(error), _OF_VALUES):
        return
    if issubclass(type(error), KeyboardInterrupt) or _is_of_signal(trace):
        raise error


def name_of_type(kind: type) -> str:
    """Return a type's name as a plain str, without calling its metaclass."""
    return str.__str__(_NAME(kind))


def _is_of_signal(trace: TracebackType | None) -> bool:
    """Return whether a signal handler raised the exception; Python runs handlers between bytecodes."""
    threading = sys.modules.get("threading")
    if threading is not None and get_ident() != threading.main_thread().ident:
        return False  # handlers run on the main thread alone
    handlers = [_code_of(getsignal(number)) for number in valid_signals()]
    while trace is not None:
        if any(trace.tb_frame.f_code is code for code in handlers):
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> Any:
    """Return the code of a signal handler; None if the handler is not a Python function."""
    while type(handler) is partial:
        handler = handler.func
    try:
        function = getattr(handler, "__func__", handler)
        return getattr(function, "__code__", None) or type(handler).__call__.__code__
    except BaseException:  # an enum such as SIG_DFL, or a foreign object
        return None
