"""Decide, once per process, which compiled parts replace the pure Python beside them.

A compiled part (`spans`, in `_spans.pyx`) has the same names as the pure module that it mirrors (`spans.py`
beside it) and does the same at a fraction of the cost. `SGLANG_INSTRUMENT_NATIVE` selects the parts: `0`
none, `spans,values` these two and the parts that they need; by default all. If a selected part is missing,
or was built from other sources or for another Python, this process uses pure Python only; `REASON` says why.
"""

import os
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from sglang_instrument.native.stamps import NEEDS, PARTS, stamp_of


def _asked_for(asked: str) -> list[str]:
    """Return the parts to use; each part follows the parts that it needs.

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
    """Return the compiled modules to use, by part, and the reason if some are not used."""
    asked = os.environ.get("SGLANG_INSTRUMENT_NATIVE", "")
    root = os.path.join(os.path.dirname(__file__), "..", "..")  # noqa: PTH118, PTH120 - pathlib takes long
    loaded: dict[str, Any] = {}
    try:
        for part in _asked_for(asked):
            module = import_module(PARTS[part])
            if stamp_of(root, PARTS[part]) != module.STAMP:
                return {}, f"{part} was built from other sources: `make native` rebuilds it"
            loaded[part] = module
    except ModuleNotFoundError as error:
        return {}, f"{error.name} was not built for this Python: no compiler was found, or the wheel is pure"
    except Exception as error:  # built for another Python, a broken file, a subinterpreter: training goes on
        return {}, f"{type(error).__name__}: {error}"
    return loaded, None if len(loaded) == len(PARTS) else f"SGLANG_INSTRUMENT_NATIVE={asked}"


_LOADED, _REASON = _load()
#: Why some compiled parts are not used; None if all are used.
REASON: Final = _REASON
#: Whether any compiled part is used.
ON: Final = bool(_LOADED)


def use_compiled(public: dict[str, Any], *names: str) -> Any:
    """Replace `names` in a public module's `globals()` by their compiled twins, if its part is used.

    First the compiled module's `connect` takes the pure functions and constants that it uses. The twins take
    the public module's name as their `__module__`: they are pickled by that name, and a process without
    compiled parts can unpickle them.

    Returns:
        The compiled module; None if the part is not used.
    """
    compiled: Any = _LOADED.get(public["__name__"].rpartition(".")[2])
    if compiled is None:
        return None
    if hasattr(compiled, "connect"):
        compiled.connect(public)
    for name in names:
        pure, value = public.get(name), getattr(compiled, name)
        public[name] = value
        if isinstance(value, type):
            compiled.name_after_public_module(value, public["__name__"])
        elif callable(value):
            value.__module__ = public["__name__"]
            with suppress(AttributeError):  # a function outside the public API has a fixed docstring
                value.__doc__ = getattr(pure, "__doc__", None)
    return compiled
