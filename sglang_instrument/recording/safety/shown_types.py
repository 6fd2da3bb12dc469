"""List the types whose `repr` is recorded: it is short, and it holds no text that is not logged.

The `repr` of any other object may show what it holds: `argparse.Namespace` a token, a request its prompt.
"""

from typing import Any, Final

_SHOWN: Final = frozenset(
    {
        ("builtins", "slice"),
        ("builtins", "ellipsis"),
        ("builtins", "NotImplementedType"),
        ("datetime", "date"),
        ("datetime", "datetime"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
        ("decimal", "Decimal"),
        ("fractions", "Fraction"),
        ("pathlib", "PosixPath"),
        ("pathlib", "PurePosixPath"),
        ("pathlib._local", "PosixPath"),
        ("pathlib._local", "PurePosixPath"),
        ("torch", "device"),
        ("torch", "dtype"),
        ("torch", "layout"),
        ("uuid", "UUID"),
    }
)
_DTYPES: Final = "numpy.dtypes"  # one class for each
# The descriptors themselves: a metaclass may define attributes of these names.
_module_of: Final[Any] = type.__dict__["__module__"].__get__
_name_of: Final[Any] = type.__dict__["__name__"].__get__


def is_shown(kind: type) -> bool:
    """Return whether the `repr` of values of exactly this type is recorded, not the type's name."""
    module = _module_of(kind)
    return type(module) is str and (module == _DTYPES or (module, _name_of(kind)) in _SHOWN)
