"""Stand in for Miles' loading of functions by path."""

import importlib
from functools import cache
from typing import ClassVar


@cache
def load_function(path):
    """Return what "module.name" is; None for None."""
    if path is None:
        return None
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


class SingletonMeta(type):
    """Make one object of a class."""

    _instances: ClassVar[dict] = {}

    def __call__(cls, *args, **kwargs):
        if cls not in cls._instances:
            cls._instances[cls] = super().__call__(*args, **kwargs)
        return cls._instances[cls]
