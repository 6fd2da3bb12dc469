"""Say whether cloudpickle, in any of its copies, asks for a function that it would send by value.

It takes whatever `isinstance` calls a function for one, and sends its code without the wrapper around it.
"""

import sys
from types import FrameType, FunctionType
from typing import Any, Final

_CLOUDPICKLE: Final = "cloudpickle"  # Ray's and joblib's copies are in packages of this name, too


def cloudpickle_calls() -> bool:
    """Return whether the caller of this function's caller is cloudpickle."""
    return _is_cloudpickle(sys._getframe(2))


def goes_by_value(wrapped: Any) -> bool:
    """Return whether the pickler that called this function's caller sends a function with its code."""
    frame = sys._getframe(2)
    if type(wrapped) is not FunctionType or not _is_cloudpickle(frame):
        return False
    module = wrapped.__module__
    registered = frame.f_globals.get("list_registry_pickle_by_value", frozenset)()
    return module == "__main__" or any(f"{module}.".startswith(f"{name}.") for name in registered)


def _is_cloudpickle(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return type(name) is str and _CLOUDPICKLE in name.split(".")
