"""Draw turns: how long each takes in the engine, tools and interactions, and how many requests have it."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
from matplotlib import colormaps
from matplotlib.figure import Figure

from sglang_instrument.analysis.answers.turns import turn_durations, turn_table
from sglang_instrument.report.figures.parts import FAINT, INK, Choice, NothingToDrawError, new_figure
from sglang_instrument.report.palette import colour_of

_KINDS: Final = {"engine": "generate", "tool": "tool", "interaction": "interaction"}
_MOST: Final = 12  # requests with more turns share one colour


def turns(choice: Choice) -> Figure:
    """Draw the mean time of each turn in the engine, tools and interactions, and how many requests had it."""
    table = turn_table(choice.digest)
    if table.is_empty():
        raise NothingToDrawError("no turn with a call of the engine yet")
    figure, axes = new_figure(
        f"Time of the first, second ... turn ({max(table['requests']):,} requests)",
        "Bars: the mean over the requests that had this turn. Whiskers: from the median of the engine's "
        "time, a dot, to its p99, a dash.",
    )
    numbers = [turn + 1 for turn in table["turn"]]  # people count from 1
    left = pl.zeros(len(table), eager=True)
    for kind, phase in _KINDS.items():
        mean = table[f"{kind}_sec"] / table["requests"]
        if (mean > 0).any():
            axes.bar(
                numbers, mean.to_list(), bottom=left.to_list(), width=0.7, color=colour_of(phase), label=kind
            )
            left = left + mean
    median, p99 = (table[f"engine_{name}_sec"].to_list() for name in ("p50", "p99"))
    axes.plot(numbers, p99, linestyle="none", marker="_", markersize=14, color=INK, label="engine p99")
    axes.plot(numbers, median, linestyle="none", marker="o", markersize=4, color=INK, label="engine median")
    axes.vlines(numbers, median, p99, color=INK, linewidth=0.8)
    _count_axis(axes, numbers, table["requests"])
    axes.set(xlabel="turn", ylabel="seconds")
    axes.set_xticks(numbers if len(numbers) <= 30 else numbers[:: len(numbers) // 15])
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper left", bbox_to_anchor=(1.14, 1.0))
    return figure


def _count_axis(axes: Any, turns: list[int], requests: pl.Series) -> None:
    """Draw how many requests had each turn, on a second axis."""
    counts = axes.twinx()
    counts.plot(turns, requests.to_list(), color=FAINT, linestyle=":", marker=".", linewidth=1.2)
    counts.set_ylabel("requests that had this turn (dotted)", color=FAINT)
    counts.set_ylim(bottom=0)
    counts.grid(visible=False)
    counts.spines["right"].set_visible(True)


def turn_counts_by_step(choice: Choice) -> Figure:
    """Draw, step by step, how many turns the requests took."""
    requests = choice.digest.requests.drop_nulls(["turns", "step"])
    if requests.is_empty():
        raise NothingToDrawError("the log does not say how many turns requests took")
    requests = requests.with_columns(turns=pl.col("turns").clip(upper_bound=_MOST))
    counts = requests.group_by("step", "turns").agg(requests=pl.len().cast(pl.Int64))
    steps = requests["step"].unique().sort().to_list()
    figure, axes = new_figure(
        f"How many turns {len(requests):,} requests took, step by step",
        "Each bar is a step's requests. A colour that grows or shrinks from step to step shows a model that "
        "learns to use more turns, or fewer.",
    )
    kinds = counts["turns"].unique().sort().to_list()
    below = dict.fromkeys(steps, 0)
    for number, turns_taken in enumerate(kinds):
        mine = dict(counts.filter(turns=turns_taken).select("step", "requests").iter_rows())
        heights = [mine.get(step, 0) for step in steps]
        shade = colormaps["cividis"](number / max(1, len(kinds) - 1))
        share = sum(heights) / len(requests)
        more = "+" if turns_taken == _MOST else ""
        label = f"{turns_taken}{more} turn{'s' if turns_taken != 1 else ''}: {share:.1%}"
        axes.bar(steps, heights, bottom=list(below.values()), width=0.86, color=shade, label=label)
        below = {step: under + height for (step, under), height in zip(below.items(), heights, strict=True)}
    axes.set(xlabel="step", ylabel="requests")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=False, axis="x")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def durations_by_turns(choice: Choice) -> Figure:
    """Draw the mean duration of requests by their number of turns, step by step."""
    table = turn_durations(choice.digest)
    if table.is_empty():
        raise NothingToDrawError("the log does not say how many turns requests took")
    total = pl.col("mean_sec") * pl.col("requests")
    means = (
        table.with_columns(turns=pl.col("turns").clip(upper_bound=_MOST), total=total)
        .group_by("step", "turns")
        .agg(pl.col("total", "requests").sum())
        .with_columns(mean_sec=pl.col("total") / pl.col("requests"))
        .sort("turns", "step")
    )
    figure, axes = new_figure(
        "How long requests took, by their number of turns, step by step",
        "A line: the mean of the requests with so many turns; no dot where a step has none. If all lines "
        "rise, the engine is slower.",
    )
    kinds = means["turns"].unique().sort().to_list()
    steps = means["step"].unique().sort().to_list()
    for number, turns_taken in enumerate(kinds):
        mine = dict(means.filter(turns=turns_taken).select("step", "mean_sec").iter_rows())
        shade = colormaps["cividis"](number / max(1, len(kinds) - 1))
        more = "+" if turns_taken == _MOST else ""
        label = f"{turns_taken}{more} turn{'s' if turns_taken != 1 else ''}"
        values = [mine.get(step, float("nan")) for step in steps]
        axes.plot(steps, values, color=shade, marker="o", markersize=3.5, linewidth=1.4, label=label)
    axes.set(xlabel="step", ylabel="seconds")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
