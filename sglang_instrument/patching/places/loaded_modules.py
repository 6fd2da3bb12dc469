"""Say which modules of this process have run their code, without making a lazy one do so."""

import sys
from types import ModuleType
from typing import Any, Literal

from sglang_instrument.recording.safety.exception_origins import name_of_type
from sglang_instrument.recording.safety.static_lookup import entries


def loaded_module(name: str) -> ModuleType | None:
    """Return a module whose code has run; None during its import, and for a lazy one before its first use."""
    module = sys.modules.get(name)
    if not _is_module(module) or is_lazy(module):
        return None
    return None if _is_initializing(module) else module


def is_being_imported(name: Any) -> bool:
    """Return whether the code of this module runs now, as far as Python's import tells."""
    return type(name) is str and _is_initializing(sys.modules.get(name))


def is_lazy(module: Any) -> bool:
    """Return whether `importlib.util.LazyLoader` will run the module's code when it is first used."""
    lazy = entries(sys.modules.get("importlib.util")).get("_LazyModule")
    return lazy is not None and type(module) is lazy


def why_not_loaded(name: str) -> tuple[Literal["pending", "missing"], str]:
    """Return the state of a target in a module that is not loaded, and the reason."""
    module = sys.modules.get(name)
    if module is None or _is_module(module):
        return "pending", "not used yet: a lazy module" if is_lazy(module) else "not imported yet"
    return "missing", f"sys.modules has a {name_of_type(type(module))} of this name, not a module"


def _is_initializing(module: Any) -> bool:
    return entries(entries(module).get("__spec__")).get("_initializing") is True


def _is_module(module: Any) -> bool:
    return issubclass(type(module), ModuleType)
