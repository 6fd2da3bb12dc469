"""Read what objects store, and run no code of theirs: no property, `__getattr__` or lazy module answers."""

from collections.abc import Mapping
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any, Final

# The descriptors of `type` itself: a metaclass may override what `kind.__mro__` answers.
_MRO_OF: Final = type.__dict__["__mro__"].__get__
_ENTRIES_OF: Final = type.__dict__["__dict__"].__get__
#: Fields of C structs and slots: to read them runs no Python code.
_STORING: Final = (MemberDescriptorType, GetSetDescriptorType)
_MISSING: Final = object()


def is_class(thing: Any) -> bool:
    """Return whether `thing` is a class; its own `__class__` is not asked."""
    return type in _MRO_OF(type(thing))


def entries(thing: Any) -> Mapping[str, Any]:
    """Return the `__dict__` of an object, a class or a module; an empty one if it has none."""
    if is_class(thing):
        own_entries: Mapping[str, Any] = _ENTRIES_OF(thing)
        return own_entries
    descriptor = class_entry(type(thing), "__dict__")
    if type(descriptor) not in _STORING:
        return {}
    stored = descriptor.__get__(thing)
    return stored if type(stored) is dict else {}  # a subclass may have methods of its own


def class_entry(kind: type, name: str) -> Any:
    """Return the entry of a class, or of the base class that defines it; None if there is none."""
    for base in _MRO_OF(kind):
        entry = _ENTRIES_OF(base).get(name, _MISSING)
        if entry is not _MISSING:
            return entry
    return None


def stored_attribute(thing: Any, name: str) -> Any:
    """Return an attribute that is stored in the object or its class, or None; run no code to compute one.

    A method is returned as its class has it: not bound.
    """
    value = entries(thing).get(name, _MISSING)
    if value is not _MISSING:
        return value
    entry = class_entry(thing if is_class(thing) else type(thing), name)
    if type(entry) in _STORING:
        return _in_slot(entry, thing)
    is_method = callable(entry) or issubclass(type(entry), classmethod)
    return entry if is_method or class_entry(type(entry), "__get__") is None else None


def answers_itself(thing: Any) -> bool:
    """Return whether Python code of its class answers for attributes, as in a mock or an RPC stub."""
    names = ("__getattr__", "__getattribute__")
    return any(type(class_entry(type(thing), name)) is FunctionType for name in names)


def special_method(owner: Any, name: str) -> Any:
    """Return a special method as Python binds it: from the class, whatever the object itself stores.

    Returns:
        The bound method; None if the class has none.
    """
    kind = type(owner)
    entry = _ENTRIES_OF(kind).get(name)
    if type(entry) is FunctionType:  # the usual case, which costs a fifth
        return MethodType(entry, owner)
    entry = class_entry(kind, name)
    if entry is None:
        return None
    bind = class_entry(type(entry), "__get__")
    return entry if bind is None else bind(entry, owner, kind)


def _in_slot(slot: Any, thing: Any) -> Any:
    try:
        return slot.__get__(thing)
    except Exception:  # an empty slot; a slot of the class's own class; a C type that refuses
        return None
