"""Say what rewritten code and the probes in it expect of each other: `rewrite` calls, `probe` answers.

A region of statements becomes, where `a` is named by the fields read at entry and `b` by those read at exit:

    with PROBE(a) as local:      # PROBE is a constant of the code object, no name anywhere
        ...
        local.capture("rid", value)      # an argument that the table captures; passes `value` on
        yield local.item(value, b)       # generator regions; passes `value` on; `b` where `ends` reads it
        local.leave_result(value, b)     # before `return value`; where no result is wanted, local.leave(b)
        local.leave(b)                   # the region's last line, and before a `break` or `continue` from it
        local.fail(b)                    # where an exception passes, which goes on

A region that hands nothing over is `with PROBE(a):`, without a local; one whose probe `is_instant`, for it
records its beginning and no more, is `PROBE(a)` before the statements. A local of the program that is not
there, or has no value yet, arrives as `measures.UNBOUND`. None of these calls may ever raise.
"""

from typing import Any, Protocol


class OpenRegion(Protocol):
    """What a probe returns: one run of a region."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *exception: Any) -> None:
        """Close the region; one in a function that asks for its own `locals()` has handed nothing over."""


class Probe(Protocol):
    """The constant in rewritten code; hashable, and picklable by reference.

    `exit_locals` are what the fields at exit read. `item_locals` are handed over with each item: the same, of
    a generator that may end at one. `error_locals` are what is read after an exception.
    """

    enter_locals: tuple[str, ...]
    exit_locals: tuple[str, ...]
    item_locals: tuple[str, ...]
    error_locals: tuple[str, ...]
    wants_result: bool
    wants_items: bool
    is_instant: bool

    def counted(self) -> "Probe":
        """Return the probe of the same region in a coroutine that counts its own awaits."""

    def __call__(self, *values: Any) -> OpenRegion:
        """Begin a run of the region with the values of `enter_locals`."""
