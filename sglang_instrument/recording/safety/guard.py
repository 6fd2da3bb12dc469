"""Keep from training what fails on the way of a record; let pass what is the program's own.

A value's method may raise anything, SystemExit and GeneratorExit included, and there may be no memory for us.
Training must see none of that. It must see a KeyboardInterrupt, and what one of its signal handlers raises
while our code runs. So whatever runs the program's code, or is called by it, catches in one way:

    except BaseException:
        let_through()
"""

import sys

# Those of `signal` make an enum of a handler, and ask for the repr of one that is a function.
from _signal import getsignal, valid_signals  # type: ignore[import-not-found]
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final

# Not looked into, for in each record some fields are missing: a handler that raises one is not known.
_OF_VALUES: Final = (AttributeError, LookupError, TypeError, ValueError, MemoryError, RecursionError)
# Of a type whose metaclass has an opinion about it, too.
_NAME: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__


def let_through() -> None:
    """Raise what is being handled again if it comes from Ctrl-C or from a signal handler of the program."""
    _, error, trace = sys.exc_info()
    if error is None or issubclass(type(error), _OF_VALUES):
        return
    if issubclass(type(error), KeyboardInterrupt) or _is_of_signal(trace):
        raise error


def name_of_type(kind: type) -> str:
    """Return a type's name without asking its metaclass, and without the class that a name may have."""
    return str.__str__(_NAME(kind))


def _is_of_signal(trace: TracebackType | None) -> bool:
    """Whether an exception came through a signal handler, which Python runs between any two steps."""
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
    """Return the code of a signal handler; None of one that is no Python function."""
    while type(handler) is partial:
        handler = handler.func
    try:
        function = getattr(handler, "__func__", handler)
        return getattr(function, "__code__", None) or type(handler).__call__.__code__
    except BaseException:  # an enum, as SIG_DFL is, or an object of somebody's own
        return None
