"""Wrap functions: for the decorator `instrument`, and for targets without source.

A wrapper is a plain function made with `functools.wraps`, of the same kind as the function: sync, coroutine,
generator or async generator. `inspect.signature`, `iscoroutinefunction` and pickling by name work as before;
proxy objects would break pickling by name in Ray actors and spawned processes.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from sglang_instrument.errors import InstrumentError, TargetError
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.measure.losses import log_swallowed_now
from sglang_instrument.recording.measure.spans import OFF
from sglang_instrument.recording.measure.values import text
from sglang_instrument.recording.measure.waiting import counts_awaits, waited
from sglang_instrument.recording.safety.notices import log_swallowed
from sglang_instrument.schema import Phase

if TYPE_CHECKING:
    from sglang_instrument.patching.probes.arguments import Picker
    from sglang_instrument.patching.probes.contract import Probe

Function = Callable[..., Any]
T = TypeVar("T", bound="Function | staticmethod[Any, Any] | classmethod[Any, Any, Any]")


@overload
def instrument(target: T, /) -> T: ...


@overload
def instrument(
    event: str | None = None,
    *,
    phase: Phase | None = None,
    fields: Mapping[str, str] | None = None,
    bind: Mapping[str, str] | None = None,
    sync: bool | None = None,
) -> Callable[[T], T]: ...


def instrument(
    event: Any = None,
    *,
    phase: Phase | None = None,
    fields: Mapping[str, str] | None = None,
    bind: Mapping[str, str] | None = None,
    sync: bool | None = None,
) -> Any:
    """Time every call of a function, as in `@instrument("tool")` or `@instrument("search", phase="tool")`.

    `instrument` takes functions, coroutines, generators, async generators and methods of all kinds, above or
    below `staticmethod` and `classmethod`. Before `install()` the function runs as if it were not decorated.

    Args:
        event: `request`, `turn`, `generate`, `tool`, `reward`, another event of the vocabulary, or your own;
            default is the function's `__name__`.
        phase: Which of these an event of your own is; all are in `sglang_instrument.schema.PHASES`.
        fields: Field expressions by name, such as `{"tokens": "size(result)", "id": "request.uid"}`;
            arguments have their names, `result` is the returned value, `item` a generator's last item.
        bind: Expressions for step, worker, request_id, turn or validate, bound while the function runs.
        sync: Whether to synchronise the GPU at both ends; the default for the event is in the vocabulary.

    Raises:
        TargetError: The decorated object is not a function or method.
        TableError: An expression is not in the language, or names an unknown argument.
    """
    if event is not None and not issubclass(type(event), str):  # isinstance() would call the value's code
        return _decorate_guarded(event, None, None, None, None, None)
    name = None if event is None else str.__str__(event)
    named = None if phase is None else cast("Phase", text(phase))
    return lambda target: _decorate_guarded(target, name, named, fields, bind, sync)


def wrap_function(function: Function, probe: "Probe") -> Function:
    """Return a wrapper of the same kind as `function`; `probe` measures each call as a whole.

    Raises:
        TargetError: `function` is a class; or only one of function and probe is for generators.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrap_function(function.__func__, probe))
    if isinstance(function, type):
        raise TargetError(f"{function!r} is a class; a wrapper would break isinstance()")
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if is_generator is not probe.wants_items:
        problem = (
            "is a generator: its region needs generator = true" if is_generator else "is not a generator"
        )
        raise TargetError(f"{function!r} {problem}")
    if is_generator:
        return _wrap_generator(function, probe)
    if probe.enter_locals or probe.exit_locals or probe.wants_result:
        return _wrap_reading(function, probe)
    return _wrap_plain(function, probe.counted() if inspect.iscoroutinefunction(function) else probe)


def _decorate_guarded(target: Any, *asked: Any) -> Any:
    """Decorate a target; return it undecorated if inspecting it raises."""
    try:
        return _decorate(target, *asked)
    except InstrumentError:  # a mistake in the program's text: its author must see it
        raise
    except BaseException as error:
        log_swallowed("decorating a function", error)
        return target


def _decorate(
    target: Any,
    event: str | None,
    phase: Phase | None,
    fields: Mapping[str, str] | None,
    bind: Mapping[str, str] | None,
    sync: bool | None,
) -> Any:
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(_decorate(target.__func__, event, phase, fields, bind, sync))
    if not callable(target) or issubclass(type(target), type):
        raise TargetError(f"instrument must decorate a function or method, got {target!r}")
    name = event or getattr(target, "__name__", None)
    if name is None:
        raise TargetError(f"instrument needs the name of an event: {target!r} has no __name__")
    is_generator = inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target)
    if not (fields or bind or is_generator):
        counted = 0 if inspect.iscoroutinefunction(target) else None
        return _wrap_plain(target, spans.plain(name, phase, sync, counted))
    # Imported here: it imports the field compiler, which a process without fields does not need.
    from sglang_instrument.patching.probes.decorated import probe_of_call

    return wrap_function(target, probe_of_call(target, name, phase, fields or {}, bind or {}, sync))


def _wrap_plain(function: Function, start: Callable[[], Any]) -> Function:
    """Wrap a function whose arguments and result no field reads."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            if spans.buffer is OFF:
                return await function(*args, **kwargs)
            with start():
                return await waited(function(*args, **kwargs))

        return counts_awaits(awaited)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if spans.buffer is OFF:
            return function(*args, **kwargs)
        with start():
            return function(*args, **kwargs)

    return called


def _wrap_reading(function: Function, probe: "Probe") -> Function:
    reads_at_end = bool(probe.exit_locals or probe.wants_result)
    if inspect.iscoroutinefunction(function):
        begin, leaving = _ends(function, probe.counted())

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            if spans.current_buffer() is OFF:
                return await function(*args, **kwargs)
            with begin(args, kwargs) as run:
                result = await waited(function(*args, **kwargs))
                if reads_at_end:
                    _hand_over(run, leaving, args, kwargs, result)
                return result

        return counts_awaits(awaited)

    begin, leaving = _ends(function, probe)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if spans.current_buffer() is OFF:
            return function(*args, **kwargs)
        with begin(args, kwargs) as run:
            result = function(*args, **kwargs)
            if reads_at_end:
                _hand_over(run, leaving, args, kwargs, result)
            return result

    return called


def _wrap_generator(function: Function, probe: "Probe") -> Function:
    begin, leaving = _ends(function, probe)
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def iterated_async(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            with begin(args, kwargs) as run:
                _hand_over(run, leaving, args, kwargs)
                items = function(*args, **kwargs)
                try:
                    item = await items.asend(None)
                    while True:
                        try:
                            sent = yield run.item(item)
                        except GeneratorExit:
                            await items.aclose()
                            raise
                        except BaseException as thrown:
                            item = await items.athrow(thrown)
                        else:
                            item = await items.asend(sent)
                except StopAsyncIteration:
                    return

        return iterated_async

    @functools.wraps(function)
    def iterated(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with begin(args, kwargs) as run:
            _hand_over(run, leaving, args, kwargs)
            items = function(*args, **kwargs)
            try:
                item = items.send(None)
                while True:
                    try:
                        sent = yield run.item(item)
                    except GeneratorExit:
                        items.close()
                        raise
                    except BaseException as thrown:
                        item = items.throw(thrown)
                    else:
                        item = items.send(sent)
            except StopIteration as stop:
                return stop.value

    return iterated


def _hand_over(run: Any, leaving: "Picker", args: Any, kwargs: Any, result: Any = None) -> None:
    try:
        run.leave_result(result, *leaving(args, kwargs))
    except BaseException:
        log_swallowed_now("reading the fields of a call")


def _ends(function: Function, probe: "Probe") -> "tuple[Callable[[Any, Any], Any], Picker]":
    """Return two functions: one begins a run from a call's arguments, one picks those read at its end."""
    # Imported here for the same reason as in _decorate.
    from sglang_instrument.patching.probes.arguments import picker
    from sglang_instrument.patching.probes.region_spans import SKIPPED

    entering = picker(function, probe.enter_locals)

    def begin(args: Any, kwargs: Any) -> Any:
        try:
            return probe(*entering(args, kwargs))
        except BaseException:
            spans.drop_record("beginning a span")
            return SKIPPED

    return begin, picker(function, probe.exit_locals)
