"""Swallow errors of recording; re-raise the program's own.

A value's method may raise anything, SystemExit and GeneratorExit included, and memory may run out. Training
must see none of that. It must see a KeyboardInterrupt, and any exception that a signal handler or another
thread raises while our code runs. So each function that calls the program's code, or is called by it,
catches so:

    except BaseException:
        reraise_if_programs_own()

`exception_origins.py` tells one from the other.
"""

import sys

from sglang_instrument.recording.safety.exception_origins import (
    is_programs_own,
    is_usual,
    may_be_lost,
    name_of_type,
)
from sglang_instrument.recording.safety.notices import notice


def reraise_if_programs_own() -> None:
    """Re-raise the exception being handled if the code that we called did not raise it."""
    _, error, trace = sys.exc_info()
    try:
        if error is None or is_usual(error, trace):
            return
        if is_programs_own(error, trace):
            raise error
        if may_be_lost(error, trace):
            name = name_of_type(type(error))
            notice(
                f"lost {name}", f"{name} may have been meant for the program: it reached a value's own code"
            )
    finally:
        del error, trace  # this frame is in the traceback: a cycle would keep the program's objects alive
