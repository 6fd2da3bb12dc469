"""Run a task under the ids that were bound at its submit, in another thread or process.

A task pickles as its bare function and a dict of ids. A process without this package gets the bare function.
A process that waits to install (`python_startup`) keeps the ids while the task runs, and binds them if it
installs then. So this module imports nothing that records, and little else.
"""

from __future__ import annotations

from _contextvars import ContextVar

TYPE_CHECKING = False  # importing it from typing takes longer than the hook may
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Block(Protocol):
        """What binds ids for a task's time; neither method raises."""

        def enter(self) -> object:
            """Bind the ids."""

        def leave(self) -> object:
            """Unbind the ids."""


#: The ids that travel: those of `bind`.
NAMES = ("step", "worker", "request_id", "turn", "validate", "role")
#: Unpickles a task with builtins alone: by `startup.carried` where it is loaded, else as the bare function.
_UNPICKLE = (
    "getattr(__import__('sys').modules.get('sglang_instrument.startup'), 'carried', lambda task, _: task)"
    "(function, ids)"
)

#: Makes the block that binds ids; None while nothing is installed.
_make_block: Callable[[Any], Block] | None = None


class TaskCall:
    """One call of a task. Its ids are a dict from another process, or this process's own context."""

    __slots__ = ("_block", "_ids")

    def __init__(self, ids: Any) -> None:
        self._ids = ids
        self._block: Block | None = None

    def bind(self) -> None:
        """Bind the ids, if something is installed."""
        if _make_block is not None and self._block is None:
            self._block = _make_block(self._ids)
            self._block.enter()

    def unbind(self) -> None:
        """Unbind the ids, if they were bound."""
        block, self._block = self._block, None
        if block is not None:
            block.leave()


#: The task that runs now, if nothing was installed at its begin.
_unbound_call: ContextVar[TaskCall | None] = ContextVar("sglang_instrument_task", default=None)


class CarriedTask:
    """A function that runs under ids; it has the function's attributes."""

    __slots__ = ("_function", "_ids")

    def __init__(self, function: Callable[..., Any], ids: Any) -> None:
        self._function = function
        self._ids = ids

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function under the ids."""
        call = TaskCall(self._ids)
        call.bind()
        outer = _unbound_call.set(call) if _make_block is None else None
        try:
            return self._function(*args, **kwargs)
        finally:
            call.unbind()
            if outer is not None:
                _unbound_call.reset(outer)

    def __getattr__(self, name: str) -> Any:
        if name in CarriedTask.__slots__:  # a copy in the making has none yet
            raise AttributeError(name)
        return getattr(self._function, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (_UNPICKLE, {"function": self._function, "ids": ids_of(self._ids)})


def ids_of(bound: Any) -> dict[str, Any]:
    """Return the bound ids of a context, by name; a dict of ids as it is."""
    if type(bound) is dict:
        return bound
    values = ((name, getattr(bound, name)) for name in NAMES)
    return {name: value for name, value in values if value is not None and value is not False}


def bind_tasks(make_block: Callable[[Any], Block] | None) -> None:
    """Bind the ids of tasks by `make_block` from now on, those of the running task, too; None binds none."""
    global _make_block
    _make_block = make_block
    call = _unbound_call.get()
    if call is not None:
        call.bind()
