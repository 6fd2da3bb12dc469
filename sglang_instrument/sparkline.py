"""Draw numbers as a line of blocks."""

from collections.abc import Sequence
from typing import Final

_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], top: float) -> str:
    """Return a block a value, as high as its share of `top`; a space for nothing."""
    return "".join(_block(value / top) if top > 0 else " " for value in values)


def _block(share: float) -> str:
    return _BLOCKS[min(len(_BLOCKS) - 1, int(share * len(_BLOCKS)))] if share > 0 else " "
