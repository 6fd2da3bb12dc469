"""Give each part of a step's time one colour, in figures, in the report and on the live page."""

from typing import Final

#: The palette of Okabe and Ito, which colour-blind people can distinguish; related parts differ in lightness.
#: Waiting is light grey. The order is that of stacks: work at the bottom, waiting for others on top.
PART_COLOURS: Final[dict[str, str]] = {
    "engine": "#0072b2",
    "tool": "#e69f00",
    "interaction": "#f0e442",
    "environment": "#7f7a2c",
    "reward": "#cc79a7",
    "preprocess": "#009e73",
    "postprocess": "#56b4e9",
    "cache": "#b89a72",
    "weights": "#5b3a8c",
    "broadcast": "#8c564b",
    "between steps": "#a48bc4",
    "late start": "#5f6f52",
    "blocked loop": "#d55e00",
    "waiting for own requests": "#9fb4c7",
    "unaccounted": "#9aa3b0",
    "other": "#a39887",
    "barrier": "#cfd5dc",
}

#: On dark paper, waiting is dark grey, and what would glare or vanish there is dimmed or lightened.
DARK_COLOURS: Final[dict[str, str]] = {
    **PART_COLOURS,
    "interaction": "#cfc436",
    "environment": "#a39d45",
    "weights": "#8063b5",
    "waiting for own requests": "#5d7082",
    "unaccounted": "#636c79",
    "barrier": "#414853",
}
