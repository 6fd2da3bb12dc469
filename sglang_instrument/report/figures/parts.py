"""Give all figures what they share: the choice of data, colours and sizes, a new figure with its title."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.run.opening import Run

INK: Final = "#1c2530"
FAINT: Final = "#8a94a3"
SECOND_RUN: Final = "#a3195b"  # no part of a step has it

#: matplotlib's settings while a figure is made and written; the user's settings are neither used nor changed.
STYLE: Final[Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.parse_math": False,  # a request id may hold dollars
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#b9c0ca",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e9ee",
    "grid.linewidth": 0.8,
    "xtick.color": "#4d5866",
    "ytick.color": "#4d5866",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "sglang-instrument",
    "svg.fonttype": "none",  # text stays text: it can be searched, and is small
}


class NothingToDrawError(Exception):
    """The log lacks the data of a figure; the text says what is missing."""


@dataclass(frozen=True)
class Choice:
    """What of a run to draw.

    Attributes:
        run: The run.
        digest: Of the training steps, or of the validation.
        step: The step of the figures of one step: the one asked for, else the one that took longest.
        worker: The worker that was asked for.
        validate: Whether validation is drawn.
        limit: How many of the slowest requests.
        other: The digest of a second run, B, which the cdf draws beside the first, A.
        names: The names of both runs, for the legend; empty without a second one.
    """

    run: Run
    digest: Digest
    step: int
    worker: int | None = None
    validate: bool = False
    limit: int = 20
    other: Digest | None = None
    names: tuple[str, ...] = ()

    @property
    def step_word(self) -> str:
        """The step as titles name it."""
        return f"{'validation at step' if self.validate else 'step'} {self.step}"


class _InlineFigure(Figure):
    """A figure that a notebook shows without `%matplotlib inline`."""

    def _repr_png_(self) -> bytes:
        with BytesIO() as png, rc_context(STYLE):
            self.savefig(png, format="png", dpi=100, facecolor="white")
            return png.getvalue()


def new_figure(title: str, note: str, width: float = 10.0, height: float = 5.0) -> tuple[Figure, Any]:
    """Return a figure and its axes, with a title, and under it a line that says how to read it."""
    figure = _InlineFigure(figsize=(width, height), layout="constrained")
    layout: Any = figure.get_layout_engine()
    layout.set(rect=(0.01, 0.01, 0.98, 1 - 0.62 / height))
    figure.text(0.015, 1 - 0.14 / height, title, fontsize=13, fontweight="bold", va="top")
    figure.text(0.015, 1 - 0.40 / height, note, fontsize=9, color="#5b6675", va="top")
    return figure, figure.subplots()


def seconds_text(value: float) -> str:
    """Return seconds with a unit, for titles and labels."""
    if value >= 100:
        return f"{value:,.0f} s"
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms"
