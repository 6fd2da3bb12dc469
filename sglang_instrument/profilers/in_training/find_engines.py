"""Find the engines of the rollout that begins, from the trainer's objects on the call stack."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from types import FrameType, MemberDescriptorType
from typing import Any, Final

from sglang_instrument.profilers.engines import is_engine
from sglang_instrument.profilers.trainers import addresses_of, names_of, router_of

_MOST_FRAMES: Final = 30
#: A function that calls these may hold the dict of its frame's locals: such frames are not read.
_READERS: Final = frozenset({"locals", "vars"})


@dataclass(frozen=True)
class EnginesFound:
    """The engines that this process can profile.

    Attributes:
        engines: Engines in this process.
        urls: Addresses of servers; router: address of a router that knows them.
    """

    engines: tuple[Any, ...] = ()
    urls: tuple[str, ...] = ()
    router: str | None = None

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.engines or self.urls or self.router)


def find_engines(depth: int, router: str = "") -> EnginesFound:
    """Return the engines that callers reach, the nearest caller first; call and change nothing of theirs.

    Args:
        depth: Our own frames to skip.
        router: Address from the user; if given, frames are not searched.
    """
    if router:
        return EnginesFound(router=router)
    frame: FrameType | None = sys._getframe(depth)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        found = _in_frame(frame)
        if found:
            return found
        frame = frame.f_back
    return EnginesFound()


def _things_in(frame: FrameType) -> list[Any]:
    """Return the frame's locals with the names that we look for, without keeping anything alive."""
    code, wanted = frame.f_code, names_of("locals")
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    if is_function:
        own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        if own.isdisjoint(wanted) or not _READERS.isdisjoint(code.co_names):
            return []
    held = frame.f_locals
    things = [thing for name in wanted if (thing := held.get(name)) is not None]
    if is_function and sys.version_info < (3, 13):
        held.clear()  # the frame keeps this copy; it would keep a batch alive until the function returns
    return things


def _in_frame(frame: FrameType) -> EnginesFound:
    for thing in _things_in(frame):
        found = _of(thing)
        if found:
            return found
        for held in names_of("attributes"):
            inner = stored_attribute(thing, held)
            found = _of(inner) if inner is not None else EnginesFound()
            if found:
                return found
    return EnginesFound()


def _of(thing: Any) -> EnginesFound:
    try:
        if is_engine(thing, stored_attribute):
            return EnginesFound(engines=(thing,))
        router = router_of(thing, stored_attribute)
        if router is not None:
            return EnginesFound(router=router)
        is_text = issubclass(type(thing), str)
        return EnginesFound() if is_text else EnginesFound(urls=tuple(addresses_of(thing, stored_attribute)))
    except Exception:  # an object that cannot be read is not one that we look for
        return EnginesFound()


def stored_attribute(thing: Any, name: str) -> Any:
    """Return an attribute stored in the object or its class, or None; run no code to compute one.

    A property of the trainer's could do anything: wait for another process, raise, start something.
    """
    try:
        held = vars(thing)
    except Exception:  # no __dict__: it has slots, or no attributes
        held = {}
    if name in held:
        return held[name]
    for owner in type(thing).__mro__:
        entry = vars(owner).get(name)
        if isinstance(entry, MemberDescriptorType):
            return _in_slot(entry, thing)
        if entry is not None:
            is_method = callable(entry) or isinstance(entry, classmethod)
            return entry if is_method or not hasattr(type(entry), "__get__") else None
    return None


def _in_slot(slot: MemberDescriptorType, thing: Any) -> Any:
    try:
        return slot.__get__(thing)
    except AttributeError:
        return None
