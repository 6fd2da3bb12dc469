"""Reduce a value, when it is recorded, to a small copy that a line can hold."""

import enum
import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from sglang_instrument import native
from sglang_instrument.addresses import without_user
from sglang_instrument.recording.measure.shown_types import is_shown
from sglang_instrument.recording.safety.guard import name_of_type, reraise_if_programs_own

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
    (see `shown_types`) a repr of at most 256 characters. Addresses lose their user and password.
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
    try:
        number = value if type(value) is int else int(reduce_value(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -(2**63) <= number < 2**63 else None


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
    kind = type(value)
    if issubclass(kind, enum.Enum):
        return _entry(value._value_, depth, room)  # the same as .value, without calling its descriptor
    if isinstance(value, dict | list | tuple | set | frozenset):
        return _reduce_collection(value, depth, room)
    if isinstance(value, str):  # a subclass, numpy.str_ among them
        return reduce_value(str.__str__(value))
    if isinstance(value, int):
        number = int.__int__(value)
        return number if _INT_MIN <= number <= _INT_MAX else _digits(number)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if kind.__module__.partition(".")[0] in ("numpy", "torch"):
        return _reduce_array(value, depth, room)
    return _short_repr(value)


def _reduce_collection(value: Any, depth: int, room: int) -> Any:
    """Copy a collection, at most `room` entries in all; nested entries share it equally."""
    # Call the methods of the built-in class: a subclass's methods are the program's code.
    kind = next(kind for kind in _COLLECTIONS if isinstance(value, kind))
    size = kind.__len__(value)
    if depth >= _DEEPEST or room < 1:  # a cycle ends here, too
        return f"<{type(value).__name__} of {size}>"
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
            return list(islice(begin(), room))
        except RuntimeError:
            continue
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
    if isinstance(key, int):
        return _digits(int.__int__(key))
    text = key if type(key) is str else str(_entry(key, _DEEPEST - 2, _LONGEST_KEY))
    return text[:_LONGEST_REPR]


def _reduce_array(value: Any, depth: int, room: int) -> Any:
    """Reduce a numpy or torch value: a scalar to a number, anything larger to a description."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return _short_repr(value)  # a dtype, a device: always short
    of_torch = type(value).__module__.startswith("torch")
    if of_torch and not _is_at_hand(value):
        return _describe(value)
    if len(shape) == 0:
        return _reduce_scalar(value.item())
    if not of_torch and len(shape) == 1 and shape[0] <= _LONGEST_ARRAY:
        return _reduce_collection(value.tolist(), depth, room)
    return _describe(value)


def _is_at_hand(tensor: Any) -> bool:
    """Return whether a tensor's numbers can be read directly from this process's memory.

    False for subclasses: a FakeTensor has no content, and reading a DTensor is a collective call.
    """
    return type(tensor).__name__ in ("Tensor", "Parameter") and tensor.device.type == "cpu"


def _reduce_scalar(value: Any) -> Any:
    return value if type(value) in (int, float, bool, str) else _short_repr(value)


def _describe(value: Any) -> str:
    dtype = str(getattr(value, "dtype", "?")).removeprefix("torch.").replace("float", "f").replace("int", "i")
    return f"tensor({getattr(value, 'device', 'cpu')}, {dtype}, {list(value.shape)})"


def _short_repr(value: Any) -> str:
    shown: Callable[[Any], str] = repr if is_shown(type(value)) else _name_of_type
    text = str.__str__(_REPRS.get(type(value), shown)(value))
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
