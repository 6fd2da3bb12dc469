"""Make the probe of a decorated function from a region, and check its fields against the signature."""

from collections.abc import Callable, Mapping
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any

from sglang_instrument.errors import TableError
from sglang_instrument.patching.places.anchors import Anchors
from sglang_instrument.patching.probes.arguments import parameters_of
from sglang_instrument.patching.probes.probe import Probe, build_probe
from sglang_instrument.patching.tables.field_language import BINDABLE, Expression, parse
from sglang_instrument.patching.tables.regions import Origin, Region
from sglang_instrument.schema import Phase


def probe_of_call(
    function: Callable[..., Any],
    event: str,
    phase: Phase | None,
    fields: Mapping[str, str],
    bind: Mapping[str, str],
    sync: bool | None,
) -> Probe:
    """Return the probe for the calls of a decorated function.

    The probe reads fields of arguments when the call begins, because the function may change its arguments.
    It reads fields that mention `result` (in a generator, `item`) when the call ends.

    Raises:
        TableError: An expression is not in the language, names an unknown argument or binds an unknown id.
    """
    generator = isgeneratorfunction(function) or isasyncgenfunction(function)
    where = f"instrument({event!r})"
    for name in bind:
        if name not in BINDABLE:
            raise TableError(f"{where}: only {', '.join(BINDABLE)} can be bound, got {name!r}")
    known = parameters_of(function)
    leaving = {name: parse(text, "item" if generator else "exit") for name, text in fields.items()}
    binding = {name: parse(text, "enter") for name, text in bind.items()}
    for expression in [*leaving.values(), *binding.values()]:
        _check(where, expression, known)
    region = Region(
        origin=Origin(where, 0, 0),
        event=event,
        anchors=Anchors(),
        enter={name: text for name, text in fields.items() if not leaving[name].roots},
        exit={name: text for name, text in fields.items() if leaving[name].roots},
        bind=bind,
        generator=generator,
        sync=sync,
        phase=phase,
    )
    return build_probe(region)


def _check(where: str, expression: Expression, known: Mapping[str, object]) -> None:
    for name in expression.locals:
        if name not in known:
            there = ", ".join(known) or "not known"
            raise TableError(f"{where}: {expression.text!r}: no argument {name!r}; the arguments are {there}")
