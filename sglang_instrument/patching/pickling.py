"""Let what stands in rewritten code travel, with a class that Ray pickles by value, to where nobody knows us.

A node without this package gets something in its place that does nothing: the class works there as it did
before it was patched. `eval` is the one way to say so with what every Python has.
"""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, Final

#: In the place of a probe: whatever `contract` lets rewritten code call.
NO_PROBE: Final = """type("NoProbe", (), {
    "__call__": lambda self, *values: self,
    "__enter__": lambda self: self,
    "__exit__": lambda self, *exception: None,
    "capture": lambda self, name, value: value,
    "item": lambda self, value, *values: value,
    "leave": lambda self, *values: None,
    "fail": lambda self, *values: None,
    "leave_result": lambda self, *values: None,
})()"""
#: In the place of what is called with a value and passes it on.
PASSES_ON: Final = "lambda value, *values: value"

_ARRIVE: Final = """(
    (lambda made: made[0](*made[1]))(__import__("pickle").loads(sent))
    if __import__("importlib.util").util.find_spec("sglang_instrument") else {stand_in}
)"""

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def travelling(stand_in: str, make: Callable[..., Any], *arguments: Any) -> Reduced:
    """Return what `__reduce__` gives for `make(*arguments)`; for `stand_in` where this package is not."""
    return eval, (_ARRIVE.format(stand_in=stand_in), {"sent": pickle.dumps((make, arguments))})


class PassingOn(partial[Any]):
    """A function that is called with a value and passes it on, in the constants of rewritten code."""

    def __reduce__(self) -> Reduced:
        return travelling(PASSES_ON, PassingOn, self.func)
