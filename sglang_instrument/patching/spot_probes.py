"""Measure an expression: what a call gives while it is awaited, how long a `with` block takes to be entered.

Rewritten code calls such a probe with the expression's value and the locals that the fields read, and goes on
with what the probe returns. It stands in the constants of the code, and pickles by its region.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from sglang_instrument.patching.contract import Probe
from sglang_instrument.patching.travel import PASSES_ON, travelling
from sglang_instrument.recording import spans
from sglang_instrument.recording.spans import OFF
from sglang_instrument.recording.waiting import counting, counts_awaits, waited

Values = tuple[Any, ...]


class SpotProbe:
    """Hold the probe of a region that is an expression."""

    __slots__ = ("_entering", "_reads", "locals", "probe")

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.locals = (*probe.enter_locals, *probe.exit_locals)
        self._entering = len(probe.enter_locals)
        self._reads = bool(self.locals or probe.wants_result)

    def __reduce__(self) -> tuple[Any, ...]:
        return travelling(PASSES_ON, type(self), self.probe)

    def __call__(self, value: Any, *values: Any) -> Any:
        """Return what is to take the place of `value`."""
        raise NotImplementedError

    def open(self, values: Values) -> Any:
        """Begin a run whose block counts its own awaits."""
        return counting(self.probe(*values[: self._entering]))

    def leave(self, run: Any, values: Values, result: Any) -> Any:
        """Hand over what the fields at exit read; return the result."""
        return run.leave_result(result, *values[self._entering :]) if self._reads else result


class CallProbe(SpotProbe):
    """Measure the coroutine that a call gives, from its first step to its end; all else is left alone."""

    __slots__ = ()

    def __call__(self, function: Any, *values: Any) -> Any:
        """Return what is to be called instead of `function`."""
        return function if spans.current_buffer() is OFF else partial(self._call, function, values)

    def _call(self, function: Callable[..., Any], values: Values, /, *args: Any, **kwargs: Any) -> Any:
        if iscoroutinefunction(_behind_probes(function)):
            # Called by the first step only: else a task that is cancelled before it leaves one never awaited.
            driven: Any = _drive(self, values, partial(function, *args, **kwargs))
            driven.__name__ = getattr(function, "__name__", driven.__name__)
            driven.__qualname__ = getattr(function, "__qualname__", driven.__name__)
            return driven
        outcome = function(*args, **kwargs)
        # A future, a task or a reference of Ray's may be asked for more than to be awaited.
        return _drive(self, values, lambda: outcome) if isinstance(outcome, Coroutine) else outcome


def _behind_probes(function: Any) -> Any:
    """Return what is called in the end where several regions are one call."""
    while isinstance(function, partial) and getattr(function.func, "__func__", None) is CallProbe._call:
        function = function.args[0]
    return function


@counts_awaits
async def _drive(probe: CallProbe, values: Values, begin: Callable[[], Any]) -> Any:
    with probe.open(values) as run:
        return probe.leave(run, values, await waited(begin()))


class EnterProbe(SpotProbe):
    """Measure the entering of a `with` block: how long it waits for a lock, a semaphore, a connection."""

    __slots__ = ()

    def __call__(self, context: Any, *values: Any) -> Any:
        """Return what is to be entered instead of `context`."""
        kind = type(context)
        if spans.current_buffer() is OFF:
            return context
        is_sync = hasattr(kind, "__enter__")
        if hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__"):
            return (BothEntering if is_sync else AsyncEntering)(self, context, values)
        return Entering(self, context, values) if is_sync else context


class _Entering:
    __slots__ = ("_context", "_probe", "_values")

    def __init__(self, probe: EnterProbe, context: Any, values: Values) -> None:
        self._probe, self._context, self._values = probe, context, values


class Entering(_Entering):
    """A context manager whose entering is measured."""

    __slots__ = ()

    def __enter__(self) -> Any:
        with self._probe.open(self._values) as run:
            return self._probe.leave(run, self._values, type(self._context).__enter__(self._context))

    def __exit__(self, *exception: Any) -> Any:
        return type(self._context).__exit__(self._context, *exception)


class AsyncEntering(_Entering):
    """An asynchronous context manager whose entering is measured."""

    __slots__ = ()

    @counts_awaits
    async def __aenter__(self) -> Any:
        with self._probe.open(self._values) as run:
            return self._probe.leave(
                run, self._values, await waited(type(self._context).__aenter__(self._context))
            )

    def __aexit__(self, *exception: Any) -> Any:
        return type(self._context).__aexit__(self._context, *exception)


class BothEntering(Entering, AsyncEntering):
    """A context manager of either kind, as some locks and clients are."""

    __slots__ = ()
