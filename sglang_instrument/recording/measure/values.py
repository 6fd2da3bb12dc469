"""Reduce a value, when it is recorded, to a small copy that a line can hold."""

import enum
import math
from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter, methodcaller
from typing import Any, Final

from sglang_instrument import native
from sglang_instrument.addresses import without_user
from sglang_instrument.recording.safety.exception_origins import call, name_of_type
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.recording.safety.shown_types import is_shown
from sglang_instrument.recording.safety.traced_values import is_traced, unseen

Identifier = str | int

#: Types whose values need no reducing; an integer over 64 bits is repaired when its record does not encode.
SCALARS: Final = frozenset({float, bool, type(None), int})
LONGEST_TEXT: Final = 256  # characters of a string: names and numbers are logged, not texts
_LONGEST_REPR: Final = 256
_TRIES: Final = 3  # to copy a collection before another thread changes it
_LONGEST_KEY: Final = 16  # entries of a tuple that is a dict's key
_LONGEST_ARRAY: Final = 64  # numbers of a numpy array; longer ones are described
_LONGEST_LIST: Final = 4096  # entries, nested ones included; a step records the list of its response lengths
_DEEPEST: Final = 3  # levels of nested collections that are copied: more than any field of the vocabulary has
_COLLECTIONS: Final[tuple[Any, ...]] = (dict, list, tuple, set, frozenset)
_BYTES: Final[tuple[Any, ...]] = (bytes, bytearray, memoryview)
LONGEST_ID: Final = 256  # characters
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


def reduce(extra: dict[str, Any]) -> dict[str, Any]:
    """Return `extra` with each value reduced; the same dict if no value needs it."""
    for key, value in extra.items():
        kind = type(value) if type(key) is str else None
        if kind is int:
            if _INT_MIN <= value <= _INT_MAX:
                continue
        elif kind is str:
            if len(value) <= LONGEST_TEXT and "@" not in value:
                continue
        elif kind is float or kind is bool or value is None:
            continue
        return {str.__str__(key): reduce_value(value) for key, value in extra.items()}
    return extra


def reduce_value(value: Any) -> Any:
    """Return `value` as a number, string, bool, None, or a short list or dict of these; never raise.

    numpy and CPU torch scalars become numbers, enums their value, a tensor on a device
    `tensor(cuda:0, f32, [3, 4])` without being read, and anything else its type's name, or for few types
    (see `shown_types`) a repr of at most 256 characters. Addresses lose their user and password. A value that
    torch is tracing is described without an operation that the tracer sees.
    """
    kind = type(value)  # compared, not looked up in a dict: its metaclass may not be hashable
    if kind is float or kind is bool or value is None or (kind is int and _INT_MIN <= value <= _INT_MAX):
        return value
    if kind is str:
        return _short_text(value, LONGEST_TEXT)
    return _reduce_guarded(value, 0, _LONGEST_LIST)


def text(value: Any) -> str:
    """Return a name, a phase or a role as a plain str, not a subclass."""
    reduced = value if type(value) is str else reduce_value(value)
    return reduced if type(reduced) is str else str(reduced)


def integer(value: Any) -> int | None:
    """Return a step, worker or turn of any numeric type as an int; None if that is impossible."""
    number = value if type(value) is int else _to_int(reduce_value(value))
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _to_int(reduced: Any) -> int | None:
    try:
        return int(reduced)
    except (TypeError, ValueError, OverflowError):
        reraise_if_programs_own()
        return None


def identifier(value: Any) -> Identifier:
    """Return a request id as a short string or a number: every line of the request repeats it."""
    if type(value) is str and len(value) <= LONGEST_ID:
        return value
    reduced = reduce_value(value)
    return reduced if type(reduced) is int else str(reduced)[:LONGEST_ID]


def flag(value: Any, otherwise: bool) -> bool:
    """Return the truth value of a number or string; `otherwise` for any other value."""
    reduced = reduce_value(value)
    known = type(reduced) in (bool, int, float) or issubclass(type(value), str)
    return bool(reduced) if known else otherwise


def make_encodable(value: Any) -> Any:
    """Return a reduced value in a form that always encodes; used when a record did not encode.

    NaN and infinities become null, integers over 64 bits and non-string keys strings, and lone
    surrogates are replaced.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if _INT_MIN <= value <= _INT_MAX else _digits(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {make_encodable(str(key)): make_encodable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [make_encodable(entry) for entry in value]
    return make_encodable(_short_repr(value))


def _reduce_guarded(value: Any, depth: int, room: int) -> Any:
    try:
        return _reduce_other(value, depth, room)
    except BaseException as error:  # the value's own code failed: a __repr__, a property, even its __class__
        reraise_if_programs_own()
        return f"<{name_of_type(type(value))}: {name_of_type(type(error))}>"


def _reduce_other(value: Any, depth: int, room: int) -> Any:
    """Reduce a value by its type: what calls the value's own code goes through `call`.

    Not by isinstance(), which reads the value's `__class__`.
    """
    kind = type(value)
    if issubclass(kind, enum.Enum):  # `_value_` is the same as .value, without calling its descriptor
        return _entry(call(getattr, value, "_value_"), depth, room)
    if issubclass(kind, _COLLECTIONS):
        return _reduce_collection(value, depth, room)
    if issubclass(kind, str):  # a subclass, numpy.str_ among them
        return reduce_value(str.__str__(value))
    if issubclass(kind, int):
        number = int.__int__(value)
        return number if _INT_MIN <= number <= _INT_MAX else _digits(number)
    if issubclass(kind, float):
        return float.__float__(value)
    if issubclass(kind, _BYTES):
        return f"<{_built_in(kind, _BYTES).__len__(value)} bytes>"
    module = call(getattr, kind, "__module__")
    package = module.partition(".")[0] if type(module) is str else ""
    if package in ("numpy", "torch"):
        return _reduce_array(value, package == "torch", depth, room)
    return _short_repr(value)


def _built_in(kind: type, classes: tuple[Any, ...]) -> Any:
    """Return the built-in class of a value's type: a subclass's methods are the program's code."""
    return next(built_in for built_in in classes if issubclass(kind, built_in))


def _reduce_collection(value: Any, depth: int, room: int) -> Any:
    """Copy a collection, at most `room` entries in all; nested entries share it equally."""
    kind = _built_in(type(value), _COLLECTIONS)
    size = kind.__len__(value)
    if depth >= _DEEPEST or room < 1:  # a cycle ends here, too
        return f"<{name_of_type(type(value))} of {size}>"
    share = (room - 1) // max(size, 1)
    if kind is dict:
        items = first_entries(room, lambda: iter(dict.items(value)))
        return {_key(key): _entry(entry, depth, share) for key, entry in items}
    reduced = [_entry(entry, depth, share) for entry in first_entries(room, lambda: kind.__iter__(value))]
    return [*reduced, f"... {size} in all"] if size > room else reduced


def first_entries(room: int, begin: Callable[[], Iterator[Any]]) -> list[Any]:
    """Return the first entries of a collection that other threads may change."""
    # list() of an islice runs in C and keeps the GIL, unless a garbage collection runs Python code meanwhile.
    for _ in range(_TRIES):
        try:
            return list(call(list, islice(begin(), room)))
        except RuntimeError:
            reraise_if_programs_own()
    return list(islice(begin(), room))


def _entry(value: Any, depth: int, room: int) -> Any:
    kind = type(value)
    if kind is float or kind is bool or value is None or (kind is int and _INT_MIN <= value <= _INT_MAX):
        return value
    if kind is str:
        return _short_text(value, _LONGEST_REPR)
    return _reduce_guarded(value, depth + 1, room)


def _short_text(value: str, longest: int) -> str:
    if "@" in value:
        value = without_user(value[: 4 * longest])  # cut first, but not within an address
    return value if len(value) <= longest else value[:longest] + "..."


def _key(key: Any) -> str:
    if issubclass(type(key), int):
        return _digits(int.__int__(key))
    text = key if type(key) is str else str(_entry(key, _DEEPEST - 2, _LONGEST_KEY))
    return text[:_LONGEST_REPR]


def _reduce_array(value: Any, of_torch: bool, depth: int, room: int) -> Any:
    """Reduce a numpy or torch value: a scalar to a number, anything larger to a description."""
    if is_traced(value):
        return _describe_traced(value)
    shape = _attribute(value, "shape", None)
    if shape is None:
        return _short_repr(value)  # a dtype, a device: always short
    shape = call(tuple, shape)
    if of_torch and not _is_at_hand(value):
        return _describe(value, shape)
    if len(shape) == 0:
        return _reduce_scalar(call(methodcaller("item"), value))
    if not of_torch and len(shape) == 1 and type(shape[0]) is int and shape[0] <= _LONGEST_ARRAY:
        return _reduce_collection(call(methodcaller("tolist"), value), depth, room)
    return _describe(value, shape)


def _attribute(value: Any, name: str, otherwise: Any) -> Any:
    # getattr() with a default would swallow an AttributeError of a signal handler, too.
    try:
        return call(getattr, value, name)
    except AttributeError:
        reraise_if_programs_own()
        return otherwise


def _is_at_hand(tensor: Any) -> bool:
    """Return whether a tensor's numbers can be read directly from this process's memory.

    False for subclasses: a FakeTensor has no content, and reading a DTensor is a collective call.
    """
    named = name_of_type(type(tensor)) in ("Tensor", "Parameter")
    return named and bool(call(attrgetter("device.type"), tensor) == "cpu")


def _reduce_scalar(value: Any) -> Any:
    return value if type(value) in (int, float, bool, str) else _short_repr(value)


def _describe(value: Any, shape: tuple[Any, ...]) -> str:
    dtype = str.__str__(call(str, _attribute(value, "dtype", "?")))
    dtype = dtype.removeprefix("torch.").replace("float", "f").replace("int", "i")
    device = call(str, _attribute(value, "device", "cpu"))
    return f"tensor({device}, {dtype}, {call(str, list(shape))})"


def _describe_traced(value: Any) -> str:
    context = unseen(value)
    if context is None:  # a proxy, or a symbol: reading it would add to the graph
        return f"<{name_of_type(type(value))}>"
    with context:
        return _describe(value, call(tuple, _attribute(value, "shape", ())))


def _short_repr(value: Any) -> str:
    # Looked up under `call`, because a metaclass may define `__hash__`.
    shown = call(_REPRS.get, type(value)) or (repr if is_shown(type(value)) else _name_of_type)
    text = str.__str__(call(shown, value))
    return text if len(text) <= _LONGEST_REPR else text[: _LONGEST_REPR - 3] + "..."


def _name_of_type(value: Any) -> str:
    return name_of_type(type(value))


def _digits(value: int) -> str:
    """Return an integer as text; a huge one in hexadecimal, which Python converts fast, and cut."""
    return str(value) if value.bit_length() < _LONGEST_REPR * 3 else hex(value)[:_LONGEST_REPR]


_REPRS: Final[dict[type, Callable[[Any], str]]] = {
    complex: str,
    range: repr,
    type: lambda kind: str(kind.__qualname__),
}

native.use_compiled(globals(), "reduce", "reduce_value")
