"""Play small worlds of each family, once each."""

from dataclasses import replace
from functools import cache

from sglang_instrument.testing.world.play import play
from sglang_instrument.testing.world.rollout.shape import WorldShape, draw_shape
from sglang_instrument.testing.world.stage import Stage


def small_shape(family: str, seed: int = 3) -> WorldShape:
    """Return a world of five small steps."""
    shape = draw_shape(family, seed)
    return replace(shape, steps=5, groups=max(2, shape.groups // 3))


@cache
def small_world(family: str, seed: int = 3) -> Stage:
    """Return such a world as it stands at its end."""
    return play(small_shape(family, seed))
