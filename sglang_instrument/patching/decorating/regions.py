"""Make the region of a decorated function, and check its fields against the signature."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sglang_instrument.errors import TableError
from sglang_instrument.patching.decorating.arguments import parameters_of
from sglang_instrument.patching.decorating.notes import Decoration
from sglang_instrument.patching.places.anchors import Anchors
from sglang_instrument.patching.tables.field_language import BINDABLE, Expression, parse
from sglang_instrument.patching.tables.regions import Origin, Region


def region_of_call(function: Callable[..., Any], decoration: Decoration) -> Region:
    """Return the region that is the whole body of a decorated function.

    Its probe reads fields of arguments when the call begins, because the function may change its arguments.
    It reads fields that mention `result` (in a generator, `item`) when the call ends.

    Raises:
        TableError: An expression is not in the language, names an unknown argument or binds an unknown id.
    """
    generator = wants_items(function)
    where = f"instrument({decoration.event!r})"
    fields, bind = dict(decoration.fields), dict(decoration.bind)
    for name in bind:
        if name not in BINDABLE:
            raise TableError(f"{where}: only {', '.join(BINDABLE)} can be bound, got {name!r}")
    leaving = {name: parse(text, "item" if generator else "exit") for name, text in fields.items()}
    expressions = [*leaving.values(), *(parse(text, "enter") for text in bind.values())]
    if expressions:
        known = parameters_of(function)
        for expression in expressions:
            _check(where, expression, known)
    return Region(
        origin=Origin(where, 0, 0),
        event=decoration.event,
        anchors=Anchors(),
        enter={name: text for name, text in fields.items() if not leaving[name].roots},
        exit={name: text for name, text in fields.items() if leaving[name].roots},
        bind=bind,
        generator=generator,
        sync=decoration.sync,
        phase=decoration.phase,
    )


def wants_items(function: Callable[..., Any]) -> bool:
    """Return whether a function is a generator; one under `types.coroutine` is a coroutine."""
    function = called_by(function)
    if inspect.isasyncgenfunction(function):
        return True
    code = getattr(inspect.unwrap(function, stop=_has_code), "__code__", None)
    is_awaited = code is not None and code.co_flags & inspect.CO_ITERABLE_COROUTINE
    return inspect.isgeneratorfunction(function) and not is_awaited


def called_by(target: Any) -> Any:
    """Return the function that a descriptor such as `functools.partialmethod` calls; of others, `target`."""
    return target if callable(target) else getattr(target, "func", target)


def _has_code(function: Any) -> bool:
    return hasattr(function, "__code__")


def _check(where: str, expression: Expression, known: Mapping[str, object]) -> None:
    for name in expression.locals:
        if name not in known:
            arguments = ", ".join(known) or "not known"
            raise TableError(
                f"{where}: {expression.text!r}: no argument {name!r}; the arguments are {arguments}"
            )
