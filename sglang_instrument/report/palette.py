"""Give each part of a step's time one name and one colour, in figures and in the report.

The names are those of the ledger (docs/reference/numbers.md). Spans belong to phases; the phases of one part
share its name and colour.
"""

from __future__ import annotations

from typing import Final

from sglang_instrument.analysis.ledger import deciding_paths as ledger
from sglang_instrument.part_colours import DARK_COLOURS as DARK_COLOURS
from sglang_instrument.part_colours import PART_COLOURS as PART_COLOURS
from sglang_instrument.schema import PHASES

#: Events that belong to another part than their phase. The ledger knows blocks of the event loop apart.
PART_OF_EVENT: Final[dict[str, str]] = {**ledger.PART_OF_EVENT, "event_loop_block": "blocked loop"}
#: What a span's number in the timeline stands for: its phase, or the part of its event.
COLOURED: Final[tuple[str, ...]] = (*PHASES, *PART_OF_EVENT.values())


def part_of(phase: str) -> str:
    """Return the part of a step's time that spans of a phase belong to; of an unknown phase, "other".

    Parts belong to themselves, so the values of `PART_OF_EVENT` may stand for phases.
    """
    part = ledger.PART_OF_PHASE.get(phase, phase)
    return part if part in PART_COLOURS else "other"


def colour_of(phase: str) -> str:
    """Return the colour of a phase or part on light paper."""
    return PART_COLOURS[part_of(phase)]


def as_css() -> str:
    """Return the colours as CSS variables, such as --part-blocked-loop, for light and dark paper."""
    rules = []
    for selector, colours in ((":root", PART_COLOURS), (':root[data-theme="dark"]', DARK_COLOURS)):
        named = "".join(f"--part-{part.replace(' ', '-')}:{colour};" for part, colour in colours.items())
        rules.append(f"{selector}{{{named}}}")
    return "\n".join(rules)
