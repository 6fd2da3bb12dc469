"""Draw steps: durations and times to the next step, phases, and what each worker of one step did."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
from matplotlib.figure import Figure

from sglang_instrument.analysis.answers.steps import step_table, worker_table
from sglang_instrument.report.figures.parts import (
    FAINT,
    INK,
    Choice,
    NothingToDrawError,
    new_figure,
    seconds_text,
)
from sglang_instrument.report.palette import PART_COLOURS, part_of
from sglang_instrument.schema import PHASES

_OUTLIER: Final = 1.5  # times the median
_SEEN: Final = 5e-4  # share of a step below which a colour cannot be seen
_MARKED: Final = 5  # outliers that are named


def overview(choice: Choice) -> Figure:
    """Draw the duration of each step's rollout, and the time to the next step."""
    # The time to the next step ends where a validation begins.
    steps = step_table(choice.run.digest).filter(validate=choice.validate).drop_nulls("duration_sec")
    if steps.is_empty():
        raise NothingToDrawError("no step has a duration yet")
    figure, axes = new_figure(
        f"{len(steps)} {'validations' if choice.validate else 'steps'}: rollout, and the time to the next",
        "Lower line: the rollout of the slowest worker. Upper line: from its start to the start of the next "
        "step or validation. Between them: training, weights, saving.",
    )
    numbers, took = steps["step"].to_list(), steps["duration_sec"].to_list()
    if steps["interval_sec"].count():
        interval = [float("nan") if sec is None else sec for sec in steps["interval_sec"]]
        between = {"color": PART_COLOURS["between steps"], "linewidth": 1.4}
        axes.plot(numbers, interval, marker="o", markersize=3, label="to the next step", **between)
        axes.fill_between(numbers, took, interval, label="between steps", alpha=0.25, **between)
    axes.plot(numbers, took, color=INK, linewidth=1.8, marker="o", markersize=3.5, label="rollout")
    _draw_validations(axes, choice)
    _mark_outliers(axes, steps)
    axes.set(xlabel="step", ylabel="seconds")
    axes.set_ylim(bottom=0)
    _whole_numbers(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _draw_validations(axes: Any, choice: Choice) -> None:
    """Draw validations in grey, at their step's number: they are not training steps."""
    if choice.validate:
        return
    rows = step_table(choice.run.digest.filter(pl.col("validate"))).drop_nulls("duration_sec")
    if len(rows):
        axes.scatter(
            *(rows["step"], rows["duration_sec"]), color=FAINT, marker="D", s=18, label="validation", zorder=3
        )


def _mark_outliers(axes: Any, steps: pl.DataFrame) -> None:
    usual: Any = steps["duration_sec"].median()
    far = steps.filter(pl.col("duration_sec") > _OUTLIER * usual).sort("duration_sec", descending=True)
    for step, took in far.head(_MARKED).select("step", "duration_sec").iter_rows():
        axes.annotate(
            f"step {step}: {seconds_text(took)}, {took / usual:.1f} x the median",
            *((step, took),),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
            fontweight="bold",
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
        )


def shares(choice: Choice) -> Figure:
    """Draw the parts of each step, in percent of all workers' time."""
    steps = step_table(choice.digest).drop_nulls("duration_sec")
    if steps.is_empty():
        raise NothingToDrawError("no step has a duration yet")
    figure, axes = new_figure(
        "Where the time of each step went",
        "All workers' time. Each instant counts once, for the part at work: a step adds up to 100 %.",
    )
    numbers = steps["step"].to_list()
    below = pl.zeros(len(steps), eager=True)
    for part, share in _present(steps).items():
        percent = share * 100
        style = {"color": PART_COLOURS[part], "label": part}
        axes.bar(numbers, percent.to_list(), bottom=below.to_list(), width=0.86, **style)
        below = below + percent
    axes.set(xlabel="step", ylabel="% of all workers' time", ylim=(0, max(100.0, *below)))
    axes.grid(visible=False, axis="x")
    _whole_numbers(axes)
    _legend(axes)
    return figure


def workers(choice: Choice) -> Figure:
    """Draw what each worker of a step did: phases that add up to its duration."""
    rows = worker_table(choice.digest).filter(step=choice.step).drop_nulls("duration_sec")
    if choice.worker is not None:
        rows = rows.filter(worker=choice.worker)
    if rows.is_empty():
        raise NothingToDrawError(f"no worker has a duration in {choice.step_word}")
    rows = rows.sort("busy_sec", "worker", descending=[True, False])
    figure, axes = new_figure(
        f"The workers of {choice.step_word}, busiest first",
        "Each instant counts once, for the part at work; light grey is waiting for the others at a barrier.",
        height=max(3.0, 1.6 + 0.3 * len(rows)),
    )
    positions = list(range(len(rows)))
    left = pl.zeros(len(rows), eager=True)
    for part, share in _present(rows).items():
        sec = share * rows["duration_sec"]
        style = {"color": PART_COLOURS[part], "label": part}
        axes.barh(positions, sec.to_list(), left=left.to_list(), height=0.72, **style)
        left = left + sec
    for row, (busy, end) in enumerate(zip(rows["busy_sec"], left, strict=True)):
        axes.text(end, row, f"  busy {seconds_text(busy)}", va="center", fontsize=8)
    axes.set_yticks(positions, [f"worker {worker}" for worker in rows["worker"]])
    axes.set(xlabel="seconds since the step began", xlim=(0, max(left) * 1.14 or 1))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    _legend(axes)
    return figure


def _present(rows: pl.DataFrame) -> dict[str, pl.Series]:
    """Return the shares of the parts that are large enough to be seen, in the order of the stack."""
    shares: dict[str, pl.Series] = {part: pl.zeros(len(rows), eager=True) for part in PART_COLOURS}
    for phase in PHASES:
        shares[part_of(phase)] += rows[f"share_{phase}"]
    return {part: share for part, share in shares.items() if (share > _SEEN).any()}


def _legend(axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _whole_numbers(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
