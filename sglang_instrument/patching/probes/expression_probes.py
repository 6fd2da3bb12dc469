"""Measure an expression: the awaiting of a call's coroutine, or the entering of a `with` block.

Rewritten code calls such a probe with the expression's value and the locals that the fields read, and uses
the probe's result in place of the value. The probe is a constant of the code, and pickles as its region.
"""

from collections.abc import Coroutine
from typing import Any

from sglang_instrument.patching.pickling import IDENTITY, reduce_with_stand_in
from sglang_instrument.patching.probes.contract import ProbeContract
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.measure.spans import OFF
from sglang_instrument.recording.measure.waiting import counts_awaits, waited
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.recording.safety.notices import log_swallowed
from sglang_instrument.recording.safety.static_lookup import class_entry, special_method

Values = tuple[Any, ...]


class ExpressionProbe:
    """Measure a region that is an expression, with the probe of the region."""

    __slots__ = ("_counted", "_entering", "_reads", "locals", "probe")

    def __init__(self, probe: ProbeContract) -> None:
        self.probe, self._counted = probe, probe.counted()
        self.locals = (*probe.enter_locals, *probe.exit_locals)
        self._entering = len(probe.enter_locals)
        self._reads = bool(probe.exit_locals or probe.wants_result)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_with_stand_in(IDENTITY, type(self), self.probe)

    def __call__(self, value: Any, *values: Any) -> Any:
        """Return the object that replaces `value`."""
        raise NotImplementedError

    def open(self, values: Values) -> Any:
        """Begin a run that counts its own awaits."""
        return self._counted(*values[: self._entering])

    def leave(self, run: Any, values: Values, result: Any) -> Any:
        """Hand over the values that the exit fields read; return the result."""
        return run.leave_result(result, *values[self._entering :]) if self._reads else result


class CallProbe(ExpressionProbe):
    """Measure the coroutine that a call returns, from first step to end; leave other results alone."""

    __slots__ = ()

    def __call__(self, outcome: Any, *values: Any) -> Any:
        """Return a coroutine that drives and measures `outcome`, if `outcome` is a coroutine."""
        if spans.current_buffer() is OFF:
            return outcome
        called = None
        try:
            if not isinstance(outcome, Coroutine):
                return outcome  # a future, a task or a Ray reference: the program may use more than `await`
            called = _Called(outcome)
            driven: Any = _drive(self, values, called)
            driven.__name__ = getattr(outcome, "__name__", driven.__name__)
            driven.__qualname__ = getattr(outcome, "__qualname__", driven.__name__)
            return driven
        except BaseException as error:
            if called is not None:
                called.begun()
            log_swallowed("the probe of a call", error)
            return outcome


class _Called:
    """Hold the coroutine of a call until its first step.

    If a task is cancelled before that step, this class closes the coroutine: otherwise Python would warn that
    it was never awaited, although the program awaited the coroutine that drives it.
    """

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine: Coroutine[Any, Any, Any] | None = coroutine

    def begun(self) -> Any:
        coroutine, self._coroutine = self._coroutine, None
        return coroutine

    def __del__(self) -> None:
        if self._coroutine is not None:
            try:
                self._coroutine.close()
            except BaseException:  # a coroutine type of the trainer's own
                reraise_if_programs_own()


@counts_awaits
async def _drive(probe: CallProbe, values: Values, called: _Called) -> Any:
    with probe.open(values) as run:
        return probe.leave(run, values, await waited(called.begun()))


class EnterProbe(ExpressionProbe):
    """Measure the entering of a `with` block: the wait for a lock, a semaphore or a connection, say."""

    __slots__ = ()

    def __call__(self, context: Any, *values: Any) -> Any:
        """Return a context manager that enters `context` and measures it."""
        kind = type(context)
        if spans.current_buffer() is OFF:
            return context
        try:
            is_sync = _has(kind, "__enter__", "__exit__")
            if _has(kind, "__aenter__", "__aexit__"):
                return (BothEntering if is_sync else AsyncEntering)(self, context, values)
            return Entering(self, context, values) if is_sync else context
        except BaseException as error:  # its metaclass raises, or memory is short
            log_swallowed("the probe of a block's entering", error)
            return context


def _has(kind: type, *methods: str) -> bool:
    return all(class_entry(kind, method) is not None for method in methods)


class _MeasuredContext:
    __slots__ = ("_context", "_leave", "_probe", "_values")

    def __init__(self, probe: EnterProbe, context: Any, values: Values) -> None:
        self._probe, self._context, self._values = probe, context, values

    def _bound(self, enter: str, leave: str) -> Any:
        """Return the method that enters; Python binds both methods of a block before it calls the first."""
        entering = special_method(self._context, enter)
        self._leave = special_method(self._context, leave)
        return entering


class Entering(_MeasuredContext):
    """A context manager whose entering is measured."""

    __slots__ = ()

    def __enter__(self) -> Any:
        entering = self._bound("__enter__", "__exit__")
        with self._probe.open(self._values) as run:
            return self._probe.leave(run, self._values, entering())

    def __exit__(self, *exception: Any) -> Any:
        return self._leave(*exception)


class AsyncEntering(_MeasuredContext):
    """An asynchronous context manager whose entering is measured."""

    __slots__ = ()

    @counts_awaits
    async def __aenter__(self) -> Any:
        entering = self._bound("__aenter__", "__aexit__")
        with self._probe.open(self._values) as run:
            return self._probe.leave(run, self._values, await waited(entering()))

    def __aexit__(self, *exception: Any) -> Any:
        return self._leave(*exception)


class BothEntering(Entering, AsyncEntering):
    """A context manager of both kinds, as some locks and clients are."""

    __slots__ = ()
