"""Open some steps of a run that is too large to be read as a whole, for answers that need single requests."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Final

import polars as pl

from sglang_instrument.analysis.executors.on_ray import SMALL
from sglang_instrument.analysis.long_runs import pieces
from sglang_instrument.analysis.long_runs.pieces import LongRun, Piece, read_piece
from sglang_instrument.analysis.long_runs.reduced import opened_part
from sglang_instrument.analysis.long_runs.summary import LongSummary
from sglang_instrument.analysis.run.opening import Run

_MOST: Final = 12  # steps with a finding, and as many of the slowest
_SPREAD: Final = 256  # steps at equal distances, as far as there is room


@dataclass(frozen=True)
class ChosenSteps:
    """Steps of a long run that together are small enough to be read as a whole.

    Attributes:
        steps: Their numbers, in order.
        spread: Those of them that lie at equal distances: what holds for them holds for the run.
    """

    steps: list[int]
    spread: list[int]


def steps_worth_reading(run: LongRun, summary: LongSummary, asked: Iterable[int]) -> ChosenSteps:
    """Choose steps of a long run, each with the step that follows it, as far as there is room.

    Args:
        run: The run, prepared.
        summary: What its pieces told.
        asked: Steps that are chosen in any case, if the run has them.

    Returns:
        Those that were asked for, the first and the last, those with a finding, the slowest, and others at
        equal distances.
    """
    counting = set(summary.rows["step"])
    numbers = [step for step in run.folders_by_step if step in counting]
    follower = dict(pairwise(numbers))
    wanted = [step for step in asked if step in run.folders_by_step]
    chosen: set[int] = set()
    spread: set[int] = set()
    files = text = 0
    for step, is_spread in chain(((step, False) for step in wanted), _in_order_of_worth(summary, numbers)):
        both = {step, follower.get(step, step)}
        size = run.size_of([name for added in both - chosen for name in run.folders_by_step[added]])
        share = 2 if is_spread else 4  # so that half of the room is for steps at equal distances
        fits = (
            files + size.files <= pieces.MOST_FILES // share
            and text + size.text <= pieces.MOST_BYTES // share
        )
        if is_spread and not fits:
            break
        if fits or step in wanted:
            chosen |= both
            spread |= both if is_spread else set()
            files, text = files + size.files, text + size.text
    return ChosenSteps(sorted(chosen), sorted(spread))


def _in_order_of_worth(summary: LongSummary, numbers: list[int]) -> Iterator[tuple[int, bool]]:
    """Yield steps, and whether they are some at equal distances: these come last."""
    yield from ((step, False) for step in (numbers[0], numbers[-1]))
    named = [finding.step for finding in summary.findings if finding.step is not None]
    slowest = summary.rows.sort("duration_sec", descending=True, nulls_last=True)["step"].to_list()
    for steps in (named, slowest):
        yield from ((step, False) for step in list(dict.fromkeys(steps))[:_MOST])
    apart: float = len(numbers)
    while apart > 1 and len(numbers) / apart <= _SPREAD:  # halves, quarters, eighths
        apart /= 2
        yield from ((numbers[round(place * apart)], True) for place in range(1, round(len(numbers) / apart)))


def only_steps(run: Run, steps: Collection[int]) -> Run:
    """Return a run as if it had only some of its steps."""
    return replace(run, everything=run.everything.filter(pl.col("step").is_in(list(steps))))


def open_steps(run: LongRun, summary: LongSummary, steps: Collection[int]) -> Run:
    """Return a run that has only some steps of a long run.

    Args:
        run: The run, prepared.
        summary: What its pieces told.
        steps: Their numbers. What follows a step that is left out counts as another launch, so that the time
            until the next step is that of the whole run, or nothing.
    """
    folders = [name for step in sorted(steps) for name in run.folders_by_step[step]]
    executor = run.where.executor([*SMALL, *folders])
    part = Piece(None, folders, [], run.pruned_of(folders), run.size_of(folders).files, is_last=False)
    files, digest = read_piece(part, executor, executor.list_files())
    opened = opened_part(executor, files, digest, summary.newest.of_folders(folders))
    digest = opened.everything
    return replace(
        opened, everything=replace(digest, steps=_with_launches(digest.steps, list(run.folders_by_step)))
    )


def _with_launches(steps: pl.DataFrame, numbers: list[int]) -> pl.DataFrame:
    """Number the launches of steps so that one ends wherever a step of the run is left out."""
    read = set(steps["step"])
    stretches: dict[int, int] = {}
    stretch = 0
    for step in numbers:
        stretch += step not in read
        stretches[step] = stretch
    of_stretch = pl.col("step").replace_strict(stretches, default=stretch, return_dtype=pl.Int64)
    launches = pl.struct(of_stretch, pl.col("launch")).rank("dense").cast(pl.Int64)
    return steps.with_columns(launch=launches)
