"""Draw the distribution of requests' durations, and what the slowest requests did over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl
from matplotlib import colormaps
from matplotlib.figure import Figure

from sglang_instrument.analysis.answers.requests import cdf_table, request_table
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.timing.wall_time import self_intervals
from sglang_instrument.report.figures.parts import (
    FAINT,
    INK,
    SECOND_RUN,
    Choice,
    NothingToDrawError,
    new_figure,
    seconds_text,
)
from sglang_instrument.report.palette import PART_COLOURS, PART_OF_EVENT, colour_of, part_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_POINTS: Final = 2_000  # of a curve; more cannot be seen
_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
_WIDE: Final = 30.0  # if the longest duration is this many times the median, the axis is logarithmic
_SEEN: Final = 1e-3  # share of a bar below which a colour cannot be seen
_NAMED: Final = 12  # most curves that the legend names


def cdf_by_step(choice: Choice) -> Figure:
    """Draw the distribution of all requests' durations, and below it that of each step."""
    requests = _requests(choice)
    everyone = cdf_table(requests.with_columns(all=pl.lit(1)), ["all"]).row(0, named=True)
    figure, axes = new_figure(
        f"How long {len(requests):,} requests took, in {requests['step'].n_unique()} steps",
        "Black: all of them. Each coloured line is a step, early ones dark. "
        "A line that flattens at the top shows a tail, for which all others wait.",
    )
    steps = requests["step"].unique().sort().to_list()
    colours = colormaps["viridis"]
    for number, step in enumerate(steps):
        named = f"step {step}" if len(steps) <= _NAMED else None
        shade = colours(0.92 * number / max(1, len(steps) - 1))
        _draw_curve(axes, requests.filter(step=step)["duration_sec"], color=shade, linewidth=0.9, label=named)
    whole = f"A: {choice.names[0]}" if choice.names else "all requests"
    _draw_curve(axes, requests["duration_sec"], color=INK, linewidth=2.2, label=whole)
    _draw_other(axes, choice)
    for name, share in _QUANTILES.items():
        value = everyone[f"{name}_sec"]
        axes.plot([value, value], [0, share], color=FAINT, linewidth=0.8, linestyle="--", zorder=1)
        axes.plot([value], [share], marker="o", markersize=4, color=INK, zorder=4)
    _draw_numbers(axes, everyone)
    _finish_cdf(axes, everyone)
    return figure


def cdf_by_worker(choice: Choice) -> Figure:
    """Draw the distribution of the requests' durations of each worker of a step."""
    requests = _requests(choice).filter(step=choice.step)
    if requests.is_empty():
        raise NothingToDrawError(f"no request ended in {choice.step_word}")
    table = cdf_table(requests, ["worker"]).sort("p99_sec", descending=True)
    figure, axes = new_figure(
        f"How long the requests of each worker took, {choice.step_word}",
        f"{len(requests):,} requests. The workers with the highest p99 first, the first one in black; a line "
        "far to the right is the one that the others wait for.",
    )
    colours = colormaps["viridis"]
    for number, row in enumerate(table.iter_rows(named=True)):
        p50, p99 = seconds_text(row["p50_sec"]), seconds_text(row["p99_sec"])
        label = f"worker {row['worker']}: p50 {p50}, p99 {p99}"
        style = {"color": colours(0.9 * number / max(1, len(table) - 1)), "linewidth": 1.1}
        if number == 0:
            style = {"color": INK, "linewidth": 2.2, "zorder": 3}
        mine = requests.filter(worker=row["worker"])["duration_sec"]
        _draw_curve(axes, mine, label=label if number < _NAMED else None, **style)
    everyone = cdf_table(requests.with_columns(all=pl.lit(1)), ["all"]).row(0, named=True)
    _finish_cdf(axes, everyone)
    return figure


def slowest(choice: Choice) -> Figure:
    """Draw the slowest requests, each as a bar of the phases that it was in over time."""
    requests = _requests(choice).filter(step=choice.step)
    top = requests.sort("duration_sec", "request_id", descending=[True, False]).head(choice.limit)
    if top.is_empty():
        raise NothingToDrawError(f"no request ended in {choice.step_word}")
    figure, axes = new_figure(
        f"The {len(top)} slowest of {len(requests):,} requests, {choice.step_word}",
        "From each request's start. The colour shows the part that the innermost span belongs to; "
        "ticks are the starts of turns.",
        height=max(3.0, 1.6 + 0.27 * len(top)),
    )
    of_workers = {worker: moments_of_worker(choice, worker) for worker in top["worker"].unique().to_list()}
    seen: dict[str, None] = {}
    for row, request in enumerate(top.iter_rows(named=True)):
        moments = of_workers[request["worker"]]
        seen |= dict.fromkeys(_draw_request(axes, choice, row, request, moments))
        turns, tokens = request["turns"], request["response_tokens"]
        facts = [
            f"{turns} turn{'s' if turns > 1 else ''}" if turns else "",
            f"{tokens:,} tokens" if tokens is not None else "",
        ]
        text = ", ".join([seconds_text(request["duration_sec"]), *filter(None, facts)])
        axes.text(request["duration_sec"], row, f"  {text}", va="center", fontsize=7.5)
    names = [
        f"w{request['worker']}  {_short(request['request_id'])}" for request in top.iter_rows(named=True)
    ]
    axes.set_yticks(range(len(top)), names, fontsize=7.5, family="DejaVu Sans Mono")
    parts = {part_of(phase) for phase in seen}
    for part in sorted(parts, key=list(PART_COLOURS).index):
        axes.barh([0], [0], color=PART_COLOURS[part], label=part)
    axes.set(xlabel="seconds since the request began", xlim=(0, top["duration_sec"][0] * 1.34))
    axes.set_ylim(len(top) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _draw_request(
    axes: Any, choice: Choice, row: int, request: dict[str, Any], moments: pl.DataFrame
) -> list[str]:
    """Draw a request as a bar of its phases over time; return the phases that can be seen."""
    pieces = moments_of(moments, request)
    for phase, of_phase in pieces.group_by("phase", maintain_order=True):
        bars = list(of_phase.select("from_sec", length=pl.col("to_sec") - pl.col("from_sec")).iter_rows())
        axes.broken_barh(bars, (row - 0.36, 0.72), facecolors=colour_of(str(phase[0])), linewidth=0)
    mine = choice.digest.turns.filter(
        request_id=request["request_id"], worker=request["worker"], step=choice.step
    )
    begun = ((mine["start_us"] - request["start_us"]) / 1e6).to_list()
    axes.vlines(begun, row - 0.46, row + 0.46, color=INK, linewidth=0.7)
    long = pl.col("to_sec") - pl.col("from_sec") > _SEEN * request["duration_sec"]
    return pieces.filter(long)["phase"].unique(maintain_order=True).to_list()


def moments_of_worker(choice: Choice, worker: int) -> pl.DataFrame:
    """Return what was at work in the requests of a worker in the step: request_id, phase, from_us, to_us.

    Where an event belongs to another part than its phase, `phase` is that part (`PART_OF_EVENT`).
    A span is at work while no span inside it runs, so that no time is drawn twice.
    """
    spans = choice.run.read_spans(choice.step, worker, choice.validate)
    part = pl.col("event").cast(pl.String).replace_strict(PART_OF_EVENT, default=None)
    asked = spans.select("span", "request_id", phase=pl.coalesce(part, pl.col("counts_for").cast(pl.String)))
    return self_intervals(spans).join(asked.drop_nulls("request_id"), on="span").sort("from_us", "to_us")


def moments_of(moments: pl.DataFrame, request: dict[str, Any]) -> pl.DataFrame:
    """Return the moments of one request: phase, from_sec and to_sec since its start, in order."""
    begun, ended = request["start_us"], request["end_us"]
    mine = moments.filter(
        (pl.col("request_id") == request["request_id"])
        & (pl.col("to_us") > begun)
        & (pl.col("from_us") < ended)
    )
    return mine.select(
        "phase", from_sec=(pl.col("from_us") - begun) / 1e6, to_sec=(pl.col("to_us") - begun) / 1e6
    )


def _requests(choice: Choice) -> pl.DataFrame:
    requests = request_table(choice.digest).drop_nulls("step")
    if choice.worker is not None:
        requests = requests.filter(worker=choice.worker)
    if requests.is_empty():
        raise NothingToDrawError("no request has ended yet")
    return requests


def _draw_curve(axes: Any, durations: pl.Series, **style: Any) -> None:
    """Draw the share of requests that took at most a time, by points that can be distinguished."""
    ordered = durations.sort()
    count = len(ordered)
    every: Iterable[int] = range(count)
    if count > _POINTS:
        every = [point * (count - 1) // (_POINTS - 1) for point in range(_POINTS)]
    values = ordered.gather(list(every)).to_list()
    axes.step([values[0], *values], [0.0, *((point + 1) / count for point in every)], where="post", **style)


def _draw_other(axes: Any, choice: Choice) -> None:
    """Draw the second run, if there is one, as a dashed line."""
    if choice.other is None:
        return
    requests = _of_digest(choice.other)
    if len(requests):
        label = f"B: {choice.names[1]}"
        _draw_curve(axes, requests, color=SECOND_RUN, linewidth=2.2, linestyle="--", label=label)


def _of_digest(digest: Digest) -> pl.Series:
    return request_table(digest)["duration_sec"].drop_nulls()


def _draw_numbers(axes: Any, row: dict[str, Any]) -> None:
    names = ("mean", "p50", "p90", "p95", "p99", "p99_9", "max")
    values = {name.replace("_", "."): seconds_text(row[f"{name}_sec"]) for name in names}
    lines = [f"{name:<6}{value:>9}" for name, value in values.items()]
    axes.text(
        *(1.02, 0.0, "\n".join(lines)),
        transform=axes.transAxes,
        va="bottom",
        family="DejaVu Sans Mono",
        fontsize=8.5,
    )


def _finish_cdf(axes: Any, everyone: dict[str, Any]) -> None:
    if everyone["p50_sec"] > 0 and everyone["max_sec"] > _WIDE * everyone["p50_sec"]:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(left=0)
    axes.set(xlabel="seconds", ylabel="share of requests done", ylim=(0, 1.01))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _short(request_id: str) -> str:
    """Return an id short enough to fit beside a bar; the end, which differs between ids, is kept."""
    return request_id if len(request_id) <= 18 else f"{request_id[:6]}…{request_id[-11:]}"
