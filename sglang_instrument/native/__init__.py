"""Decide, once a process, whether the compiled parts are used: all of them, or none.

They do what the pure Python beside them does, at a fraction of its cost. Where they were not built, are of
another state of the sources or of another Python, or `SGLANG_INSTRUMENT_NATIVE=0`, everything is pure
Python, and `REASON` says why. What is compiled imports nothing of ours when it is imported: the public
modules hand it what it needs (`connect`).
"""

import os
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from sglang_instrument.native.stamps import MODULES, stamp_of


def _reason_against() -> str | None:
    """Import the compiled parts; return why they cannot be used, None if they can."""
    if os.environ.get("SGLANG_INSTRUMENT_NATIVE") == "0":
        return "SGLANG_INSTRUMENT_NATIVE=0"
    folder = os.path.dirname(__file__)  # noqa: PTH120 - pathlib takes long to import
    try:
        for name in MODULES:
            module = import_module(f"{__name__}.{name}")
            if stamp_of(folder, name) != module.STAMP:
                return f"native/{name} was built from another state of its sources: `make native` builds it"
    except ModuleNotFoundError as error:
        return f"{error.name} was not built for this Python: no compiler was at hand, or it is a pure wheel"
    except Exception as error:  # another Python's, a broken file, a subinterpreter: training goes on
        return f"{type(error).__name__}: {error}"
    return None


#: Why everything is pure Python; None if the compiled parts are used.
REASON: Final = _reason_against()
ON: Final = REASON is None


def take_over(public: dict[str, Any], module: str, *names: str) -> None:
    """Put what is compiled in the place of `names` in a public module's `globals()`, if it is used at all.

    From then on it says that it comes from there: by that name it is pickled, and found by a process in which
    nothing is compiled.
    """
    if not ON:
        return
    compiled = import_module(f"{__name__}.{module}")
    for name in names:
        pure, value = public.get(name), getattr(compiled, name)
        public[name] = value
        if isinstance(value, type):
            import_module(f"{__name__}.spans").call_by_home(value, public["__name__"])
        elif callable(value):
            value.__module__ = public["__name__"]
            with suppress(AttributeError):  # of a function that is no part of the public API
                value.__doc__ = getattr(pure, "__doc__", None)
