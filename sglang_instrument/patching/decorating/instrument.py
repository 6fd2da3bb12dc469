"""The decorator `instrument`.

It returns a copy of the function, which is as the function is: only `install()` gives the copy rewritten
code, like a table's target, and `uninstall()` takes it away again. What cannot be rewritten gets a wrapper.
"""

from collections.abc import Callable, Mapping
from functools import partialmethod, singledispatchmethod
from types import FunctionType
from typing import Any, Final, TypeVar, cast, overload

from sglang_instrument.errors import InstrumentError, TargetError
from sglang_instrument.patching.decorating.functions import decorated_copy
from sglang_instrument.patching.decorating.notes import Decoration
from sglang_instrument.recording.measure.values import text
from sglang_instrument.recording.safety.notices import log_swallowed
from sglang_instrument.schema import Phase

#: Descriptors that cannot be called themselves, but give an instance its method.
_METHODS: Final = (partialmethod, singledispatchmethod)

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
    below `staticmethod` and `classmethod`. It returns a copy of a function and leaves the function itself as
    it is. Before `install()` the copy runs as if it were not decorated.

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
        return _decorate_guarded(event, None, Decoration("", None, (), (), None))
    name = None if event is None else str.__str__(event)
    named = None if phase is None else cast("Phase", text(phase))
    asked = Decoration("", named, tuple((fields or {}).items()), tuple((bind or {}).items()), sync)
    return lambda target: _decorate_guarded(target, name, asked)


def _decorate_guarded(target: Any, event: str | None, asked: Decoration) -> Any:
    """Decorate a target; return it undecorated if inspecting it raises."""
    try:
        return _decorate(target, event, asked)
    except InstrumentError:  # a mistake in the program's text: its author must see it
        raise
    except BaseException as error:
        log_swallowed("decorating a function", error)
        return target


def _decorate(target: Any, event: str | None, asked: Decoration) -> Any:
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(_decorate(target.__func__, event, asked))
    if not (callable(target) or isinstance(target, _METHODS)) or issubclass(type(target), type):
        raise TargetError(f"instrument must decorate a function or method, got {target!r}")
    name = event or getattr(target, "__name__", None)
    if name is None:
        raise TargetError(f"instrument needs the name of an event: {target!r} has no __name__")
    decoration = asked._replace(event=name)
    made = decorated_copy(target, decoration) if type(target) is FunctionType else None
    if made is not None:
        return made
    # Imported here: it imports the field compiler and wrapt, which few processes need.
    from sglang_instrument.patching.decorating.wrappers import wrap_decorated

    return wrap_decorated(target, decoration)
