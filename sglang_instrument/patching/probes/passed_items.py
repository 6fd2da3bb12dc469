"""Count the items of a generator that another generator passes on by `yield from`."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sglang_instrument.patching.pickling import Reduced, reduce_with_stand_in


class PassedItems(map):  # type: ignore[type-arg]
    """The items of an iterator: `map(run.item, items)`.

    Only C code runs between the two generators, so tracebacks and recursion depth stay the same. What is sent
    or thrown goes to the iterator itself; the item that it answers is not counted.
    """

    __slots__ = ()

    @property
    def send(self) -> Callable[[Any], Any]:
        """The iterator's own `send`."""
        send: Callable[[Any], Any] = self._items.send
        return send

    @property
    def throw(self) -> Callable[..., Any]:
        """The iterator's own `throw`."""
        throw: Callable[..., Any] = self._items.throw
        return throw

    @property
    def close(self) -> Callable[[], None]:
        """The iterator's own `close`."""
        close: Callable[[], None] = self._items.close
        return close

    @property
    def _items(self) -> Any:
        return map.__reduce__(self)[1][1]  # its arguments: the function and the iterator


class _PassItems(partial[Any]):
    """A constant of rewritten code; without this package it unpickles as what passes its second argument."""

    def __reduce__(self) -> Reduced:
        return reduce_with_stand_in("lambda take, items: items", _pass_items)


#: Called with `run.item` and what a generator yields from.
PASS_ITEMS: Final = _PassItems(PassedItems)


def _pass_items() -> _PassItems:
    return PASS_ITEMS
