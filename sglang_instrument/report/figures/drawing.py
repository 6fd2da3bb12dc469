"""Draw the figures of a run as PNG, SVG or PDF, each from the tables of `analysis`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import polars as pl
from matplotlib import rc_context
from matplotlib.figure import Figure

from sglang_instrument.analysis.answers.steps import step_table
from sglang_instrument.analysis.changes.run_names import dated_names_of
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.report.figures import caps, lengths, requests, steps, turns
from sglang_instrument.report.figures.parts import STYLE, Choice, NothingToDrawError
from sglang_instrument.safe_files.output import writing_output

#: The figures by name: each function returns one, or raises NothingToDrawError.
FIGURES: Final[dict[str, Callable[[Choice], Figure]]] = {
    "overview": steps.overview,
    "shares": steps.shares,
    "lengths": lengths.lengths,
    "caps": caps.caps,
    "workers": steps.workers,
    "cdf": requests.cdf_by_step,
    "cdf-workers": requests.cdf_by_worker,
    "slowest": requests.slowest,
    "turns": turns.turns,
    "turn-counts": turns.turn_counts_by_step,
    "turn-durations": turns.durations_by_turns,
}


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
    names = () if other is None else dated_names_of(run, other)
    return Choice(run, digest, step, worker, validate, limit, beside, names)


def figure_of(choice: Choice, name: str) -> Figure:
    """Return the figure of `FIGURES` with this name, or raise NothingToDrawError."""
    with rc_context(STYLE):
        return FIGURES[name](choice)


def _is_validation(validate: bool) -> pl.Expr:
    return pl.col("validate") == validate


def draw(
    choice: Choice, folder: Path, names: Sequence[str], suffix: str = "png", dpi: int = 150
) -> Iterator[tuple[str, Path | str]]:
    """Write figures into a folder, one after another.

    Args:
        choice: What to draw.
        folder: Where to write; created if missing.
        names: Which figures, of `FIGURES`.
        suffix: png, svg or pdf.
        dpi: Dots per inch of a png.

    Yields:
        The name of each figure, and its file, or why there is nothing to draw.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        try:
            with rc_context(STYLE):
                figure = figure_of(choice, name)
                target = folder / f"{name}.{suffix}"
                # No date in the file: the same run gives the same bytes.
                dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
                with writing_output(target) as file:
                    metadata = dates.get(suffix)
                    figure.savefig(file, format=suffix, dpi=dpi, facecolor="white", metadata=metadata)
            yield name, target
        except NothingToDrawError as reason:
            yield name, str(reason)
