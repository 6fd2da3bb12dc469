"""Define the calls from rewritten code to its probes: `rewriting/` writes them, `probe.py` answers them.

A region of statements becomes the code below; fields read local `a` at entry and local `b` at exit:

    with PROBE(a) as local:      # PROBE is a constant of the code object, not a name
        ...
        local.capture("rid", value)      # an argument that the table captures; returns `value`
        yield local.item(value, b)       # generator regions; returns `value`; with `b` if `ends` reads it
        yield from PASS_ITEMS(local.item, values)  # each item is handed over, see passed_items.py
        local.leave_result(value, b)     # before `return value`; local.leave(b) if no field reads it
        local.leave_early(b), local.leave_result_early(value, b)  # if a `finally` or a `with` of the program
                                         # follows: the fields are read at once, so that it may drop values
        local.leave(b)                   # the region's last line, and before `break` or `continue`
        local.fail(b)                    # when an exception passes, which is raised again

A region that hands over no values later is `with PROBE(a):`, without a local. If the probe `is_instant`, it
records an instant event at the start, and the code is `PROBE(a)` before the statements; if it `assigns` a
local, the code is `a = PROBE(a)`. The probe gets
`field_functions.UNBOUND` for a local that does not exist or has no value. None of these calls may ever raise.
"""

from typing import Any, Protocol


class OpenRegion(Protocol):
    """One run of a region, which a probe returns."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *exception: Any) -> None:
        """Close the region; in a function that reads its own `locals()`, the code handed nothing over."""


class ProbeContract(Protocol):
    """The constant in rewritten code; it is hashable and picklable.

    Fields read `enter_locals` at entry, `exit_locals` at exit and `error_locals` after an exception. The
    code hands over `item_locals` with each item: the exit locals if `ends` may end the region at an item.
    """

    enter_locals: tuple[str, ...]
    exit_locals: tuple[str, ...]
    item_locals: tuple[str, ...]
    error_locals: tuple[str, ...]
    wants_result: bool
    wants_items: bool
    is_instant: bool
    assigns: str | None

    def counted(self) -> "ProbeContract":
        """Return the region's probe for a coroutine that counts its own awaits."""

    def __call__(self, *values: Any) -> OpenRegion:
        """Begin a run of the region with the values of `enter_locals`."""
