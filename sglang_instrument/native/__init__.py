"""Decide, once a process, which compiled parts take the place of the pure Python beside them.

A compiled part (`_spans.pyx`) has the names of the pure module that it mirrors (`spans.py` beside it) and
does the same at a fraction of the cost. `SGLANG_INSTRUMENT_NATIVE` says which are used: `0` none,
`spans,values` these and what they need; by default all. Where one of them was not built, or was built from
another state of its sources or for another Python, everything is pure Python, and `REASON` says why.
"""

import os
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from sglang_instrument.native.stamps import NEEDS, PARTS, stamp_of


def _asked_for(asked: str) -> list[str]:
    """Return the parts to use, each after those that it needs.

    Raises:
        ValueError: There is no such part.
    """
    if asked in ("", "1"):
        return list(PARTS)
    if asked == "0":
        return []
    waiting, named = [name.strip() for name in asked.split(",")], set()
    while waiting:
        name = waiting.pop()
        if name not in PARTS:
            raise ValueError(f"SGLANG_INSTRUMENT_NATIVE: no part {name!r}, there are {', '.join(PARTS)}")
        if name not in named:
            named.add(name)
            waiting += NEEDS.get(name, ())
    return [part for part in PARTS if part in named]


def _load() -> tuple[dict[str, Any], str | None]:
    """Return the compiled modules to use, by part, and why it is not all of them."""
    asked = os.environ.get("SGLANG_INSTRUMENT_NATIVE", "")
    root = os.path.join(os.path.dirname(__file__), "..", "..")  # noqa: PTH118, PTH120 - pathlib takes long
    loaded: dict[str, Any] = {}
    try:
        for part in _asked_for(asked):
            module = import_module(PARTS[part])
            if stamp_of(root, PARTS[part]) != module.STAMP:
                return {}, f"{part} was built from another state of its sources: `make native` builds it"
            loaded[part] = module
    except ModuleNotFoundError as error:
        return {}, f"{error.name} was not built for this Python: there was no compiler, or it is a pure wheel"
    except Exception as error:  # another Python's, a broken file, a subinterpreter: training goes on
        return {}, f"{type(error).__name__}: {error}"
    return loaded, None if len(loaded) == len(PARTS) else f"SGLANG_INSTRUMENT_NATIVE={asked}"


_LOADED, _REASON = _load()
#: Why not all compiled parts are used; None if they are.
REASON: Final = _REASON
#: Whether any is.
ON: Final = bool(_LOADED)


def take_over(public: dict[str, Any], part: str, *names: str) -> Any:
    """Put what is compiled in the place of `names` in a public module's `globals()`, if that part is used.

    From then on it says that it comes from there: by that name it is pickled, and found by a process in which
    nothing is compiled.

    Returns:
        The compiled module; None if it is not used.
    """
    compiled: Any = _LOADED.get(part)
    if compiled is None:
        return None
    for name in names:
        pure, value = public.get(name), getattr(compiled, name)
        public[name] = value
        if isinstance(value, type):
            compiled.call_by_home(value, public["__name__"])
        elif callable(value):
            value.__module__ = public["__name__"]
            with suppress(AttributeError):  # of a function that is no part of the public API
                value.__doc__ = getattr(pure, "__doc__", None)
    return compiled
