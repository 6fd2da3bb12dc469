"""Play a world of servers behind a router with faults, and ask the verdict."""

from collections.abc import Sequence
from pathlib import Path

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import findings_of
from sglang_instrument.testing.world.faults import FAULTS
from sglang_instrument.testing.world.faults.fault import WorldFault
from sglang_instrument.testing.world.play import play, walls, write_world
from sglang_instrument.testing.world.rollout.shape import WorldShape


def found_in(
    folder: Path, shape: WorldShape, faults: Sequence[str] = (), size: int = 2
) -> tuple[list[Finding], list[WorldFault]]:
    """Return the findings of a world with faults, and the faults.

    Args:
        folder: Where its log is written.
        shape: The world.
        faults: Names of `FAULTS`.
        size: Which of their sizes they have, 0 to 2.
    """
    for name in faults:
        shape = FAULTS[name].needs(shape)
    usual = walls(play(shape)) if faults else {}
    planted = [WorldFault(name, FAULTS[name], FAULTS[name].sizes[size], shape, usual) for name in faults]
    write_world(folder, play(shape, planted))
    return findings_of(open_run(folder, cached=False), over=True), planted
