"""Make values whose methods all raise, of a new class or of one derived from a built-in class."""

import asyncio

BASES = (object, int, str, float, list, dict, tuple, bytes, set)
ERRORS = (ValueError, MemoryError, SystemExit, GeneratorExit, asyncio.CancelledError)
# fmt: off
_METHODS = (
    "__repr__", "__str__", "__format__", "__hash__", "__eq__", "__ne__", "__lt__", "__gt__", "__bool__",
    "__len__", "__iter__", "__getitem__", "__contains__", "__int__", "__index__", "__float__", "__add__",
    "__radd__", "__getattribute__", "__array__", "__call__", "__trunc__", "__mod__", "__abs__",
    "__neg__", "__getattr__", "__bytes__", "__reversed__", "__next__", "__missing__", "isidentifier",
    "isascii", "encode", "get", "keys", "items", "values", "bit_length", "is_integer",
)
# fmt: on


def value(base: type, error: type[BaseException]) -> object:
    """Return a value of a class derived from `base` whose methods all raise `error`."""

    def fails(self, *args, **kwargs):
        raise error("a value's own")

    methods = dict.fromkeys(_METHODS, fails)
    methods["__class__"] = methods["shape"] = methods["device"] = methods["_value_"] = property(fails)
    kind = type("Hostile", (base,), methods)
    return base.__new__(kind, "x") if base in (str,) else base.__new__(kind)
