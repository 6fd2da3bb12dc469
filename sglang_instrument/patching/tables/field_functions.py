"""Measure the value of a field expression, such as its size, total or percentiles, without changing it.

These functions never read a value on a device: that would synchronise the GPU. They raise `Unreadable`, and
the reader leaves the field out.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from sglang_instrument.patching.pickling import Reduced, reduce_with_stand_in
from sglang_instrument.patching.tables.request_header import named_header
from sglang_instrument.prompt_prefixes import prefix_hashes
from sglang_instrument.recording.safety.traced_values import is_traced

Measure = Callable[[Any], Any]

_NUMBERS: Final = frozenset({int, float, bool})
SIZED: Final = frozenset({str, list, dict, tuple})
_ON_HOST: Final = _NUMBERS | SIZED | {type(None)}


#: Attributes of tensors; reading them may be seen by code that traces a tensor's operations.
OF_TENSORS: Final = frozenset({"shape", "dtype", "device", "ndim", "data", "grad", "requires_grad", "T"})


class Unreadable(LookupError):  # noqa: N818 - the reader catches it and leaves the field out
    """The value cannot be measured without reading a device, consuming an iterator or changing a mapping."""


class _Unbound:
    """Stand for a local that has no value yet; no field can be read from it."""

    def __bool__(self) -> bool:
        raise Unreadable("unbound local")

    def __repr__(self) -> str:
        return "UNBOUND"

    def __reduce__(self) -> Reduced:
        return reduce_with_stand_in("None", _unbound)


UNBOUND: Final = _Unbound()


def _unbound() -> _Unbound:
    return UNBOUND


def elements(value: Any) -> Any:
    """Return what `[*]` iterates over: the values of a mapping, the elements of another sized value.

    Raises:
        Unreadable: `value` has no length; iterating would take the items away from the program.
    """
    kind = type(value)
    if kind is list or kind is tuple:  # faster than asking isinstance(value, Mapping)
        return value
    if kind is dict or isinstance(value, Mapping):
        return value.values()
    _refuse_traced(value)
    if not hasattr(type(value), "__len__"):
        raise Unreadable(f"{type(value).__name__} has no length")
    return value


def chosen(values: Any, flags: Any) -> Any:
    """Return those of `values` for which the element of `flags` at the same place is true.

    Raises:
        Unreadable: One of the two has no length, or an element of `flags` is on a device.
        ValueError: Their lengths differ.
    """
    pairs = zip(elements(values), elements(flags), strict=True)
    return [value for value, flag in pairs if flag is not None and truth(flag)]  # the first test saves calls


def attribute(value: Any, name: str) -> Any:
    """Return an attribute that a tensor may have.

    Raises:
        Unreadable: torch is tracing the value.
    """
    _refuse_traced(value)
    return getattr(value, name)


def key(value: Any, name: str | int) -> Any:
    """Return `value[name]`, but never make a `defaultdict` add the entry."""
    _refuse_traced(value)
    if hasattr(type(value), "__missing__") and name not in value:
        raise Unreadable(f"no key {name!r}")
    return value[name]


def size(value: Any) -> int:
    """Return the last dimension of a tensor or array, the length of anything else."""
    if type(value) in SIZED:  # saves the lookup of an attribute that they lack
        return len(value)
    _refuse_traced(value)
    shape = getattr(value, "shape", None)
    return int(shape[-1]) if shape is not None and len(shape) else len(value)


def total(value: Any) -> Any:
    """Return a number unchanged, else the sum of a tensor, an array or a sized collection of numbers."""
    if isinstance(value, (int, float)):
        return value
    _on_host(value)
    return value.sum().item() if hasattr(value, "sum") else sum(elements(value))


def number(value: Any) -> Any:
    """Return a number unchanged; turn an array or tensor of one element into a plain number.

    Raises:
        Unreadable: The value is not a number, but a string, a mapping or None, for example.
    """
    if isinstance(value, (int, float)):
        return value
    _on_host(value)
    if not hasattr(value, "item") or getattr(value, "size", None) is None:
        raise Unreadable(f"{type(value).__name__} is not a number")
    return value.item()


def numbers(value: Any) -> dict[str, Any]:
    """Return the numbers in a mapping by name; leave out all other values.

    Raises:
        Unreadable: The mapping holds no number.
    """
    numbers_by_name = {
        str(name): number for name, number in value.items() if isinstance(number, (int, float))
    }
    if not numbers_by_name:
        raise Unreadable("no numbers")
    return numbers_by_name


def unique(values: Any) -> list[Any]:
    """Return each different element once, in the order of their first appearance."""
    _on_host(values)
    return list(dict.fromkeys(elements(values)))


def known(value: Any, registry: Any) -> Any:
    """Return a name if `registry` has it, else "unknown": a model may call a tool by any text.

    Args:
        value: The name, or several that `[*]` gave.
        registry: A collection of names, or a mapping by name.
    """
    if type(value) is list:
        return [known(item, registry) for item in value]
    return value if isinstance(value, str) and value in registry else "unknown"


def minus(amount: int) -> Measure:
    """Return a function that subtracts `amount` from a number."""
    return lambda value: number(value) - amount


def truth(value: Any) -> bool:
    """Return `bool(value)`; for a collection, whether it has any element."""
    _on_host(value)
    return bool(value)


def falsehood(value: Any) -> bool:
    """Return whether the value is 0, empty, false or None."""
    return not truth(value)


def any_true(values: list[Any]) -> bool:
    """Return whether any of the values is true."""
    if _ON_HOST.issuperset(map(type, values)):  # runs in C: an engine asks this of each batch of answers
        return any(values)
    return any(map(truth, values))


def none_true(values: list[Any]) -> bool:
    """Return whether none of the values is true."""
    return not any_true(values)


def pick(record: Mapping[str, Any], names: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return fields of a record under new names; `names` are (new, old) pairs. Leave out missing fields."""
    return {new: record[old] for new, old in names if old in record}


def sizes(values: list[Any]) -> Any:
    """Return the size of each value that `[*]` gave; of a list of numbers, return its length."""
    return len(values) if _numeric(values) else [size(value) for value in values]


def totals(values: list[Any]) -> Any:
    """Return the sum of a list of numbers; of a list of collections, return one total for each."""
    return sum(values) if _numeric(values) else [total(value) for value in values]


def total_if_any(values: Any) -> Any:
    """Return the total of one or more values.

    Raises:
        Unreadable: there is no value.
    """
    if hasattr(values, "__len__") and not len(values):
        raise Unreadable("nothing to add up")
    return totals(values) if isinstance(values, list) else total(values)


def some(values: Any) -> Any:
    """Return one or more values unchanged.

    Raises:
        Unreadable: there is no value.
    """
    if not len(values):
        raise Unreadable("no values")
    return values


def mean(values: Any) -> float:
    """Return the arithmetic mean, 0 if there are no values."""
    numbers = _numbers(values)
    return sum(numbers) / len(numbers) if numbers else 0


def minimum(values: Any) -> Any:
    """Return the smallest number, 0 if there are no values."""
    return min(_numbers(values), default=0)


def maximum(values: Any) -> Any:
    """Return the largest number, 0 if there are no values."""
    return max(_numbers(values), default=0)


def percentile(rank: int) -> Measure:
    """Return a function that computes the `rank`-th percentile by linear interpolation, as numpy does."""

    def measure(values: Any) -> Any:
        ordered = sorted(_numbers(values))
        if not ordered:
            return 0
        place = (len(ordered) - 1) * rank / 100
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return round(ordered[below] + (ordered[above] - ordered[below]) * (place - below), 9)

    return measure


def over(limit: int) -> Measure:
    """Return a function that counts the numbers above `limit`."""
    return lambda values: sum(number > limit for number in _numbers(values))


#: Functions by name: (for one value, for the list that `[*]` gave).
_FIXED: Final[dict[str, tuple[Measure, Measure]]] = {
    "size": (size, sizes),
    "total": (total, totals),
    "sum": (total_if_any, total_if_any),
    "count": (lambda value: size(some(value)), lambda values: size(some(values))),
    "number": (number, lambda values: [number(value) for value in values]),
    "numbers": (numbers, lambda values: [numbers(value) for value in values]),
    "unique": (unique, unique),
    "named_header": (named_header, named_header),
    "prefix_hashes": (prefix_hashes, prefix_hashes),
    "any": (truth, any_true),
    "not": (falsehood, none_true),
    "mean": (mean, mean),
    "min": (minimum, minimum),
    "max": (maximum, maximum),
}
_NUMBERED: Final[dict[str, Callable[[int], Measure]]] = {"p": percentile, "over": over, "minus": minus}

#: Functions that need more than a value: the region's duration, or whether a value exists.
NEEDS_CONTEXT: Final = ("percent", "missing")
NAMES: Final = (*sorted(_FIXED), *NEEDS_CONTEXT, "pNN", "overNN", "minusNN")


def measure_named(name: str) -> tuple[Measure, Measure] | None:
    """Return the function `name` for one value and for the list that `[*]` gave; None if unknown."""
    if name in _FIXED:
        return _FIXED[name]
    match = re.fullmatch(r"(p|over|minus)(\d+)", name, re.ASCII)
    if match is None or (match[1] == "p" and int(match[2]) > 100):
        return None
    measure = _NUMBERED[match[1]](int(match[2]))
    return measure, measure


def percent(values: Any, duration_sec: float) -> float:
    """Return the total of `values` as a percentage of `duration_sec`, with two decimals.

    Raises:
        Unreadable: there is no value.
    """
    if type(values) is not float:
        values = sum(_numbers(some(values))) if isinstance(values, list) else float(total(values))
    return round(100 * values / duration_sec, 2) if duration_sec else 0.0


def _numeric(values: list[Any]) -> bool:
    if _NUMBERS.issuperset(map(type, values)):  # runs in C: lists are long and usually hold numbers
        return True
    return all(isinstance(value, (int, float)) for value in values)


def _numbers(values: Any) -> list[Any]:
    if type(values) is list and _NUMBERS.issuperset(map(type, values)):
        return values
    _on_host(values)
    if hasattr(values, "tolist"):  # a tensor or an array: one call for all elements
        values = values.tolist()
    return [value if isinstance(value, (int, float)) else size(value) for value in elements(values)]


def _on_host(value: Any) -> None:
    if type(value) in _ON_HOST:
        return
    _refuse_traced(value)
    device = getattr(value, "device", None)
    # The device of a numpy 2 array is the string "cpu"; a torch device has a type.
    if device is not None and getattr(device, "type", device) != "cpu":
        raise Unreadable(f"{type(value).__name__} on {device}")


def _refuse_traced(value: Any) -> None:
    if is_traced(value):
        raise Unreadable(f"torch is tracing a {type(value).__name__}")
