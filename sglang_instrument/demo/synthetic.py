"""Write made-up runs to look at: the one of the README, or one with any cause that tests plant."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sglang_instrument.testing.causes.plateau import Plateau
from sglang_instrument.testing.kinds import KINDS, sized
from sglang_instrument.testing.run_shape import RunShape
from sglang_instrument.testing.synthetic import write_run

if TYPE_CHECKING:
    from sglang_instrument.testing.causes.base import Cause

_LONGER: Final = 0.5  # the share by which a planted cause makes its step longer

Planned = tuple[RunShape, "Cause"]


def step_67() -> Planned:
    """Return steps 65 to 69 of eight workers with 512 requests each.

    In step 67, 109 requests of worker 0 hang in the engine call of their second turn, from 22 s to 165 s
    after the start of generation, so worker 0 reaches the barrier long after the other seven.
    """
    shape = RunShape(steps=5, first_step=65, workers=8, requests=512, seed=67)
    return shape, Plateau(67, 0, start_sec=22.0, end_sec=165.0, requests=109, turn=1, slowdown=1.04)


def with_cause(name: str, seed: int) -> Planned:
    """Return ten steps of four workers with 48 requests each, and a cause of `KINDS` in one of them."""
    kind = KINDS[name]
    shape = kind.shape(seed)
    return shape, sized(kind, shape, _LONGER)


def write(
    folder: Path, planned: Planned | None = None, wrote: Callable[[int], object] = lambda step: None
) -> None:
    """Write a planned run, `step_67()` by default; call `wrote` with the number of each written step."""
    shape, cause = planned or step_67()
    write_run(folder, shape, [cause], wrote)


@contextmanager
def progress(steps: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows each written step on stderr: a terminal keeps one line, a file gets all."""
    begin, end = ("\r\033[K", "") if sys.stderr.isatty() else ("", "\n")
    done = count(1)

    def wrote(step: int) -> None:
        sys.stderr.write(f"{begin}step {step} is written, {next(done)} of {steps}{end}")
        sys.stderr.flush()

    yield wrote
    sys.stderr.write(begin)
