"""Draw the length curve: seconds that caps on responses would save, against the responses that they cut."""

from __future__ import annotations

from typing import Any, Final

from matplotlib.figure import Figure

from sglang_instrument.analysis.advice.caps import cap_table
from sglang_instrument.errors import InstrumentError
from sglang_instrument.report.figures.parts import INK, Choice, NothingToDrawError, new_figure
from sglang_instrument.report.palette import PART_COLOURS

_SAVED: Final = PART_COLOURS["engine"]
_REWARD: Final = "#7a5195"
_MARKED: Final[Any] = {"marker": "o", "markersize": 3.5}


def caps(choice: Choice) -> Figure:
    """Draw what caps on the tokens of a response save, which share they cut, and the reward at risk."""
    try:
        table = cap_table(choice.run, "tokens")
    except InstrumentError as reason:
        raise NothingToDrawError(str(reason)) from None
    if table.is_empty():
        raise NothingToDrawError("no request logs its response tokens")
    figure, above = new_figure(
        "What a cap on responses would save",
        "Simulated on the recorded requests, not measured. Bands: the 80 % interval of the saving, the 95 % "
        "interval of the reward.",
        height=7.0,
    )
    above.remove()
    saved, cut, reward = figure.subplots(3, 1, sharex=True, height_ratios=[2, 1, 1])
    numbers = table["cap"].to_list()
    seconds = table["saves_sec"].to_list()
    if not table["low"].null_count():
        saved.fill_between(numbers, table["low"].to_list(), table["high"].to_list(), color=_SAVED, alpha=0.15)
    saved.plot(numbers, seconds, color=_SAVED, linewidth=1.8, **_MARKED)
    saved.set_ylabel("s a step saved")
    cut.plot(numbers, [100 * share for share in table["cut_share"]], color=INK, linewidth=1.6, **_MARKED)
    cut.set_ylabel("% cut")
    known = table.drop_nulls("cut_reward")
    reward.plot(
        known["cap"].to_list(), known["cut_reward"].to_list(), color=_REWARD, label="of the cut", **_MARKED
    )
    sure = known.drop_nulls("cut_reward_at_least")
    least, most = (sure[f"cut_reward_at_{end}"].to_list() for end in ("least", "most"))
    reward.fill_between(sure["cap"].to_list(), least, most, color=_REWARD, alpha=0.15, linewidth=0)
    if (mean := table["mean_reward"][0]) is not None:
        reward.axhline(mean, color=INK, linewidth=0.8, linestyle="--", label="of all")
        reward.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    reward.set_ylabel("reward")
    for row in table.filter("is_knee").iter_rows(named=True):
        saved.annotate(
            f"knee: {row['cap']:,.0f}", (row["cap"], row["saves_sec"]), (6, 10), textcoords="offset points"
        )
        for axes in (saved, cut, reward):
            axes.axvline(row["cap"], color=INK, linewidth=0.8, linestyle=":")
    reward.set_xlabel("cap on the tokens of a response")
    return figure
