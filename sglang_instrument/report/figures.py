"""Draw the figures of a run as PNG, SVG or PDF, each from the tables of `analysis`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

from sglang_instrument.analysis.digest import Digest
from sglang_instrument.analysis.run import Run
from sglang_instrument.analysis.steps import step_table

INK: Final = "#1c2530"
FAINT: Final = "#8a94a3"
ACCENT: Final = "#0072b2"
SECOND: Final = "#d55e00"

#: In force wherever a figure is made or written; nobody's own settings of matplotlib leak in, or out.
_STYLE: Final[Any] = {
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
    "svg.fonttype": "none",  # words stay words: they can be searched, and are small
}


class NothingToDrawError(Exception):
    """The log does not hold what a figure shows; the text says what is missing."""


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
        other: The digest of a second run, laid under the first where a figure compares.
    """

    run: Run
    digest: Digest
    step: int
    worker: int | None = None
    validate: bool = False
    limit: int = 20
    other: Digest | None = None

    @property
    def step_word(self) -> str:
        """How titles call the step."""
        return f"{'validation at step' if self.validate else 'step'} {self.step}"


def choose(
    run: Run,
    step: int | None = None,
    worker: int | None = None,
    validate: bool = False,
    limit: int = 20,
    other: Run | None = None,
) -> Choice:
    """Choose what to draw; without `step`, the figures of one step show the one that took longest."""
    digest = run.digest.filter(_is_validation(validate)).of_workers()
    if step is None:
        steps = step_table(digest).drop_nulls("duration_sec").sort("duration_sec", "step")
        step = int(steps["step"][-1]) if len(steps) else 0
    beside = None if other is None else other.digest.filter(_is_validation(validate)).of_workers()
    return Choice(run, digest, step, worker, validate, limit, beside)


def _is_validation(validate: bool) -> Any:
    import polars as pl

    return pl.col("validate") == validate


def makers() -> dict[str, Callable[[Choice], Figure]]:
    """Return the figures by name: each makes one, or raises NothingToDrawError."""
    from sglang_instrument.report import figures_of_requests, figures_of_steps, figures_of_turns

    return {
        "overview": figures_of_steps.overview,
        "shares": figures_of_steps.shares,
        "workers": figures_of_steps.workers,
        "cdf": figures_of_requests.cdf_by_step,
        "cdf-workers": figures_of_requests.cdf_by_worker,
        "slowest": figures_of_requests.slowest,
        "turns": figures_of_turns.turns,
        "turn-counts": figures_of_turns.turn_counts_by_step,
    }


def draw(
    choice: Choice, folder: Path, names: Sequence[str], suffix: str = "png", dpi: int = 150
) -> Iterator[tuple[str, Path | str]]:
    """Write figures into a folder, one after another.

    Args:
        choice: What to draw.
        folder: Where; it is made if missing.
        names: Which, of `makers`.
        suffix: png, svg or pdf.
        dpi: Dots an inch, of a png.

    Yields:
        The name of each, and the file it went to, or why there is nothing to draw.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        try:
            with rc_context(_STYLE):
                figure = makers()[name](choice)
                target = folder / f"{name}.{suffix}"
                # No date in the file: the same run gives the same bytes.
                dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
                figure.savefig(target, dpi=dpi, facecolor="white", metadata=dates.get(suffix))
            yield name, target
        except NothingToDrawError as reason:
            yield name, str(reason)


def new_figure(title: str, note: str, width: float = 10.0, height: float = 5.0) -> tuple[Figure, Any]:
    """Return a figure and its axes, with a title, and under it a line that says how to read it."""
    figure = Figure(figsize=(width, height), layout="constrained")
    layout: Any = figure.get_layout_engine()
    layout.set(rect=(0.01, 0.01, 0.98, 1 - 0.62 / height))
    figure.text(0.015, 1 - 0.14 / height, title, fontsize=13, fontweight="bold", va="top")
    figure.text(0.015, 1 - 0.40 / height, note, fontsize=9, color="#5b6675", va="top")
    return figure, figure.subplots()


def seconds_text(value: float) -> str:
    """Return seconds as titles and labels say them."""
    if value >= 100:
        return f"{value:,.0f} s"
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms"
