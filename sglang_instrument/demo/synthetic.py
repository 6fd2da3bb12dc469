"""Generate the synthetic run of the README: one step is three times slower, for a known cause."""

from pathlib import Path

from sglang_instrument.testing.causes.plateau import Plateau
from sglang_instrument.testing.synthetic import synthetic_run


def write(folder: Path) -> None:
    """Write steps 65 to 69 of eight workers with 512 requests each.

    In step 67, 109 requests of worker 0 hang in the engine call of their second turn, from 22 s to 165 s
    after the start of generation, so worker 0 reaches the barrier long after the other seven.
    """
    synthetic_run(
        folder,
        steps=5,
        first_step=65,
        workers=8,
        requests=512,
        seed=67,
        causes=[Plateau(67, 0, start_sec=22.0, end_sec=165.0, requests=109, turn=1, slowdown=1.04)],
    )
