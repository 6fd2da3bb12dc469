"""Wrap what has no source that could be rewritten: C functions, partials, descriptors, lambdas.

The wrapper is wrapt's: it looks like the object that it wraps, and binds to instances as that object would.
wrapt is imported only here. A wrapper pickles by name, as a function does, or as what it wraps and the
decoration; without this package it unpickles as the bare object.
"""

import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from functools import cache
from typing import Any, Final

from sglang_instrument.errors import TargetError
from sglang_instrument.patching.decorating.arguments import Picker, picker
from sglang_instrument.patching.decorating.by_value import cloudpickle_calls, goes_by_value
from sglang_instrument.patching.decorating.notes import Decoration
from sglang_instrument.patching.decorating.regions import called_by, region_of_call, wants_items
from sglang_instrument.patching.probes.contract import ProbeContract
from sglang_instrument.patching.probes.probe import build_probe
from sglang_instrument.patching.probes.region_spans import SKIPPED
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.measure.losses import log_swallowed_now
from sglang_instrument.recording.measure.spans import OFF
from sglang_instrument.recording.measure.waiting import counts_awaits, waited
from sglang_instrument.recording.safety.notices import notice

Function = Callable[..., Any]
_UNPICKLE: Final = """(
    __import__("sglang_instrument.patching.decorating.wrappers", fromlist=["x"]).wrap_again(function, sent)
    if __import__("importlib.util").util.find_spec("sglang_instrument") else function
)"""


def wrap_decorated(target: Function, decoration: Decoration) -> Function:
    """Return a wrapper for a decorated object that has no source.

    Raises:
        TableError: An expression of the decoration is invalid.
    """
    probe = build_probe(region_of_call(target, decoration))
    return _wrapped(target, probe, tuple(decoration))


def wrap_again(function: Function, sent: tuple[Any, ...] | None) -> Function:
    """Wrap an object that was pickled in another process, together with its decoration."""
    return function if sent is None else wrap_decorated(function, Decoration(*sent))


def wrap_target(function: Function, probe: ProbeContract) -> Function:
    """Return a wrapper for a target of a table; `probe` measures each call as a whole.

    Raises:
        TargetError: `function` is a class; or only one of function and probe is for generators.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrap_target(function.__func__, probe))
    if isinstance(function, type):
        raise TargetError(f"{function!r} is a class; a wrapper would break isinstance()")
    is_generator = wants_items(function)
    if is_generator is not probe.wants_items:
        problem = (
            "is a generator: its region needs generator = true" if is_generator else "is not a generator"
        )
        raise TargetError(f"{function!r} {problem}")
    return _wrapped(function, probe, None)


def _wrapped(target: Function, probe: ProbeContract, sent: tuple[Any, ...] | None) -> Function:
    try:
        kind = _wrapper_type()
    except ImportError:
        notice("wrapt", f"{target!r} has no source, and wrapt is not installed: its calls are not recorded")
        return target
    made: Function = kind(target, _measuring(target, probe))
    made._self_sent = sent  # type: ignore[attr-defined]
    return made


@cache
def _wrapper_type() -> Any:
    import wrapt

    # Any: later versions of wrapt have types, earlier ones have none.
    bound_type: Any = wrapt.BoundFunctionWrapper
    wrapper_type: Any = wrapt.FunctionWrapper

    class BoundWrapper(bound_type):  # type: ignore[misc]
        """The wrapper as a method of an instance, which pickles as a method does, or as a class gives it.

        Ray takes the methods of actors from their class, and sends functions around them by value.
        """

        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            """The class of what is bound to all but cloudpickle, which would send a bare function."""
            is_function = self._self_instance is None
            return BoundWrapper if is_function and cloudpickle_calls() else self.__wrapped__.__class__

        def __reduce_ex__(self, protocol: Any) -> Any:
            if self._self_instance is not None:
                return getattr, (self._self_instance, self.__name__)
            wrapper = self._self_parent
            if _has_own_name(wrapper) and not goes_by_value(wrapper.__wrapped__):
                return wrapper.__qualname__
            return _sent(wrapper)

    class Wrapper(wrapper_type):  # type: ignore[misc]
        """A wrapper that can be pickled and copied as a function can."""

        __bound_function_wrapper__ = BoundWrapper

        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            """The wrapped object's class to all but cloudpickle, which would send the bare function."""
            return Wrapper if cloudpickle_calls() else self.__wrapped__.__class__

        def __reduce_ex__(self, protocol: Any) -> Any:
            if _has_own_name(self) and not goes_by_value(self.__wrapped__):
                return self.__qualname__
            return _sent(self)

        def __copy__(self) -> Any:
            return self

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    return Wrapper


def _sent(wrapper: Any) -> Any:
    return eval, (_UNPICKLE, {"function": wrapper.__wrapped__, "sent": wrapper._self_sent})


def _has_own_name(wrapper: Any) -> bool:
    """Return whether pickle finds the wrapper by its name."""
    named = sys.modules.get(wrapper.__module__)
    for name in wrapper.__qualname__.split("."):
        named = getattr(named, name, None)
    return named is wrapper


def _measuring(target: Function, probe: ProbeContract) -> Callable[[Any, Any, Any, Any], Any]:
    """Return the function that wrapt calls in the target's place."""
    function = called_by(target)
    is_coroutine = inspect.iscoroutinefunction(function)
    call = _MeasuredCalls(target, probe.counted() if is_coroutine else probe)
    if is_coroutine:
        return call.awaited
    if not probe.wants_items:
        return call.called
    return call.iterated_async if inspect.isasyncgenfunction(function) else call.iterated


class _MeasuredCalls:
    """Measures the calls of one object; `instance` is that to which wrapt has bound it, or None."""

    def __init__(self, target: Function, probe: ProbeContract) -> None:
        self._probe = probe
        self._entering: Picker = picker(target, probe.enter_locals)
        self._leaving: Picker = picker(target, probe.exit_locals)
        self._reads_at_end = bool(probe.exit_locals or probe.wants_result)

    def called(self, wrapped: Function, instance: Any, args: Any, kwargs: Any) -> Any:
        """Call a function."""
        if spans.current_buffer() is OFF:
            return wrapped(*args, **kwargs)
        given = args if instance is None else (instance, *args)
        with self._begin(given, kwargs) as run:
            result = wrapped(*args, **kwargs)
            if self._reads_at_end:
                self._hand_over(run, given, kwargs, result)
            return result

    @counts_awaits
    async def awaited(self, wrapped: Function, instance: Any, args: Any, kwargs: Any) -> Any:
        """Await a coroutine function."""
        if spans.current_buffer() is OFF:
            return await wrapped(*args, **kwargs)
        given = args if instance is None else (instance, *args)
        with self._begin(given, kwargs) as run:
            result = await waited(wrapped(*args, **kwargs))
            if self._reads_at_end:
                self._hand_over(run, given, kwargs, result)
            return result

    def iterated(self, wrapped: Function, instance: Any, args: Any, kwargs: Any) -> Generator[Any, Any, Any]:
        """Iterate over a generator; GeneratorExit is thrown into it as any exception is."""
        given = args if instance is None else (instance, *args)
        with self._begin(given, kwargs) as run:
            self._hand_over(run, given, kwargs)
            items = wrapped(*args, **kwargs)
            try:
                item = items.send(None)
                while True:
                    try:
                        sent = yield run.item(item)
                    except BaseException as thrown:
                        item = items.throw(thrown)
                    else:
                        item = items.send(sent)
            except StopIteration as stop:
                return stop.value

    async def iterated_async(
        self, wrapped: Function, instance: Any, args: Any, kwargs: Any
    ) -> AsyncGenerator[Any, Any]:
        """Iterate over an async generator."""
        given = args if instance is None else (instance, *args)
        with self._begin(given, kwargs) as run:
            self._hand_over(run, given, kwargs)
            items = wrapped(*args, **kwargs)
            try:
                item = await items.asend(None)
                while True:
                    try:
                        sent = yield run.item(item)
                    except BaseException as thrown:
                        item = await items.athrow(thrown)
                    else:
                        item = await items.asend(sent)
            except StopAsyncIteration:
                return

    def _begin(self, args: Any, kwargs: Mapping[str, Any]) -> Any:
        try:
            return self._probe(*self._entering(args, kwargs))
        except BaseException:
            spans.drop_record("beginning a span")
            return SKIPPED

    def _hand_over(self, run: Any, args: Any, kwargs: Mapping[str, Any], result: Any = None) -> None:
        try:
            run.leave_result(result, *self._leaving(args, kwargs))
        except BaseException:
            log_swallowed_now("reading the fields of a call")
