"""Find the engines of the rollout that begins, from the trainer's objects on the call stack."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from sglang_instrument.profilers.engines import is_engine
from sglang_instrument.profilers.in_training.frame_locals import values_of
from sglang_instrument.profilers.trainers import addresses_of, names_of, router_of
from sglang_instrument.recording.safety.static_lookup import stored_attribute

_MOST_FRAMES: Final = 30


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
        engines = _in_frame(frame)
        if engines:
            return engines
        frame = frame.f_back
    return EnginesFound()


def _in_frame(frame: FrameType) -> EnginesFound:
    for thing in values_of(frame, names_of("locals")):
        engines = _of(thing)
        if engines:
            return engines
        for held in names_of("attributes"):
            inner = stored_attribute(thing, held)
            engines = _of(inner) if inner is not None else EnginesFound()
            if engines:
                return engines
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
