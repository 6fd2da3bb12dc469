"""Draw response lengths from step to step: shortest, mean and longest, the reward, and tokens per second."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
from matplotlib.figure import Figure

from sglang_instrument.analysis.answers.lengths import length_table
from sglang_instrument.report.figures.parts import INK, Choice, NothingToDrawError, new_figure
from sglang_instrument.report.palette import PART_COLOURS

_REWARD: Final = "#7a5195"
_SPEED: Final = PART_COLOURS["engine"]
_MARKED: Final[Any] = {"marker": "o", "markersize": 3.5}


def lengths(choice: Choice) -> Figure:
    """Draw the lengths of the responses, the mean reward and the throughput of each step."""
    table = length_table(choice.digest).drop_nulls("step")
    if table.is_empty():
        raise NothingToDrawError("no request logs its response tokens")
    kind = "validations" if choice.validate else "steps"
    figure, above = new_figure(
        f"Response lengths, reward and throughput of {len(table)} {kind}",
        "Line: the mean. Band: from the shortest to the longest response. Throughput: tokens of all "
        "responses by the step's time.",
        height=7.0,
    )
    above.remove()
    length, reward, speed = figure.subplots(3, 1, sharex=True, height_ratios=[2, 1, 1])
    numbers = table["step"].to_list()
    shortest, longest = (table[f"{end}_tokens"].to_list() for end in ("min", "max"))
    length.fill_between(numbers, shortest, longest, color=INK, alpha=0.12, linewidth=0)
    length.plot(numbers, longest, color=INK, linewidth=0.8, linestyle="--", label="longest")
    length.plot(numbers, table["mean_tokens"].to_list(), color=INK, linewidth=1.8, label="mean", **_MARKED)
    length.plot(numbers, shortest, color=INK, linewidth=0.8, linestyle=":", label="shortest")
    length.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _draw_line(reward, numbers, table["reward"], "mean reward", _REWARD)
    _draw_line(speed, numbers, table["tokens_per_sec"], "tokens/s", _SPEED)
    length.set_ylabel("response tokens")
    length.set_ylim(bottom=0)
    speed.set_ylim(bottom=0)
    speed.set_xlabel("step")
    speed.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _draw_line(axes: Any, steps: list[int], values: pl.Series, label: str, colour: str) -> None:
    axes.set_ylabel(label)
    if values.null_count() == len(values):
        axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", va="center", color="#5b6675")
        return
    axes.plot(steps, values.to_list(), color=colour, linewidth=1.6, **_MARKED)
