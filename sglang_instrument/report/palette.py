"""Give each phase one colour and one name, everywhere: in figures, in the report and in traces."""

from __future__ import annotations

from typing import Final

#: The palette of Okabe and Ito, which colour-blind people can distinguish; related phases differ in
#: lightness. Waiting is light grey.
PHASE_COLOURS: Final[dict[str, str]] = {
    "step": "#68717d",
    "request": "#7d8694",
    "turn": "#939caa",
    "preprocess": "#009e73",
    "generate": "#0072b2",
    "tool": "#e69f00",
    "interaction": "#f0e442",
    "reward": "#cc79a7",
    "postprocess": "#56b4e9",
    "barrier": "#cfd5dc",
    "broadcast": "#8c564b",
    "cache": "#b89a72",
    "weights": "#5b3a8c",
    "engine": "#00467a",
    "loop": "#d55e00",
    "other": "#a39887",
}

#: The order in which figures stack phases: generation at the bottom, waiting for others on top.
PHASE_ORDER: Final = (
    *("generate", "engine", "tool", "interaction", "reward", "preprocess", "postprocess"),
    *("cache", "weights", "broadcast", "loop", "turn", "request", "step", "other", "barrier"),
)

#: The names of phases in texts; of spans that contain others, the time that no nested span covers.
PHASE_WORDS: Final[dict[str, str]] = {
    "step": "step itself",
    "request": "request itself",
    "turn": "turn itself",
    "generate": "generation",
    "engine": "engine",
    "preprocess": "preprocessing",
    "postprocess": "postprocessing",
    "barrier": "waiting at barrier",
    "loop": "event loop",
    "weights": "weights update",
}


def colour_of(phase: str) -> str:
    """Return the colour of a phase; an unknown phase has that of "other"."""
    return PHASE_COLOURS.get(phase, PHASE_COLOURS["other"])


def word_for(phase: str) -> str:
    """Return the name of a phase in texts."""
    return PHASE_WORDS.get(phase, phase)
