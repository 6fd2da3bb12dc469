"""Make probes picklable; without this package they unpickle as stand-ins that do nothing.

Ray pickles some classes by value, with the probes in their rewritten methods. On a node without this package
such a class works as it did before it was patched. The pickle uses `eval`, which every Python has.
"""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, Final

#: Stands in for a probe: has every method that `probes/contract.py` lets rewritten code call.
NO_PROBE: Final = """type("NoProbe", (), {
    "__call__": lambda self, *values: self,
    "__enter__": lambda self: self,
    "__exit__": lambda self, *exception: None,
    "capture": lambda self, name, value: value,
    "item": lambda self, value, *values: value,
    "leave": lambda self, *values: None,
    "fail": lambda self, *values: None,
    "leave_result": lambda self, *values: None,
    "leave_early": lambda self, *values: None,
    "leave_result_early": lambda self, *values: None,
})()"""
#: Stands in for a function that is called with a value, if any, and returns it.
IDENTITY: Final = "lambda value=None, *values: value"

_UNPICKLE: Final = """(
    (lambda made: made[0](*made[1]))(__import__("pickle").loads(sent))
    if __import__("importlib.util").util.find_spec("sglang_instrument") else {stand_in}
)"""

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def reduce_with_stand_in(stand_in: str, make: Callable[..., Any], *arguments: Any) -> Reduced:
    """Return what `__reduce__` returns for `make(*arguments)`; without this package, `stand_in` appears."""
    return eval, (_UNPICKLE.format(stand_in=stand_in), {"sent": pickle.dumps((make, arguments))})


class PassThrough(partial[Any]):
    """Hold a function in the constants of rewritten code; its stand-in returns the first argument."""

    def __reduce__(self) -> Reduced:
        return reduce_with_stand_in(IDENTITY, PassThrough, self.func)

    def bare(self) -> Callable[..., Any]:
        """Return the function, whose call costs a tenth; `picklable` finds this object again."""
        _of_bare[id(self.func)] = self
        return self.func


_of_bare: Final[dict[int, PassThrough]] = {}  # by id of the function; they are few, and of this package


def picklable(constant: Any) -> Any:
    """Return what to pickle in the place of a constant."""
    return _of_bare.get(id(constant), constant)
