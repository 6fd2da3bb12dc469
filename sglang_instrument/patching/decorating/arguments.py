"""Pick arguments of a call by name, bound as Python binds them."""

import ast
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from types import FunctionType
from typing import Any, Final, cast

from sglang_instrument.patching.tables.field_functions import UNBOUND
from sglang_instrument.recording.safety.guard import reraise_if_programs_own

Values = tuple[Any, ...]
Picker = Callable[[Values, Mapping[str, Any]], Values]

_LISTS: Final = {
    Parameter.POSITIONAL_ONLY: "posonlyargs",
    Parameter.POSITIONAL_OR_KEYWORD: "args",
    Parameter.KEYWORD_ONLY: "kwonlyargs",
}


def parameters_of(function: Callable[..., Any]) -> Mapping[str, Parameter]:
    """Return the parameters of a callable; none if it has no signature, like many built-in ones."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def picker(function: Callable[..., Any], names: tuple[str, ...]) -> Picker:
    """Return a function that picks the arguments `names` from a call's positional and keyword arguments.

    It returns `UNBOUND` for a name that is not a parameter, and for every name if the call does not fit.
    """
    if not names:
        return lambda args, kwargs: ()
    bound = _build(parameters_of(function), names)
    unbound = (UNBOUND,) * len(names)

    def pick(args: Values, kwargs: Mapping[str, Any]) -> Values:
        try:
            return bound(*args, **kwargs)
        except BaseException:  # the call itself raises next
            reraise_if_programs_own()
            return unbound

    return pick


def _build(parameters: Mapping[str, Parameter], names: tuple[str, ...]) -> Callable[..., Values]:
    """Build `def pick(<parameters>): return (<names>)`: `Signature.bind` takes 20 times as long."""
    module = ast.parse("def pick(): return ()")
    function = cast("ast.FunctionDef", module.body[0])
    arguments = function.args
    for parameter in parameters.values():
        argument = ast.arg(parameter.name)
        if parameter.kind is Parameter.VAR_POSITIONAL:
            arguments.vararg = argument
        elif parameter.kind is Parameter.VAR_KEYWORD:
            arguments.kwarg = argument
        else:
            getattr(arguments, _LISTS[parameter.kind]).append(argument)
    # The compiler needs one entry per keyword-only argument; the values are set on the function below.
    arguments.kw_defaults = [None] * len(arguments.kwonlyargs)
    picked = [name if name in parameters else "__sglang_unbound" for name in names]
    result = ast.Tuple([ast.Name(name, ast.Load()) for name in picked], ast.Load())
    function.body = [ast.Return(result)]
    namespace: dict[str, Any] = {"__sglang_unbound": UNBOUND}
    code = compile(ast.fix_missing_locations(module), "<sglang_instrument arguments>", "exec")
    exec(code, namespace)  # noqa: S102 - a tree built here from names, not a text
    pick = cast("FunctionType", namespace["pick"])
    defaults = {p.name: p.default for p in parameters.values() if p.default is not Parameter.empty}
    keyword_only = {p.name for p in parameters.values() if p.kind is Parameter.KEYWORD_ONLY}
    pick.__defaults__ = tuple(value for name, value in defaults.items() if name not in keyword_only)
    pick.__kwdefaults__ = {name: value for name, value in defaults.items() if name in keyword_only}
    return pick
