"""Tell the tools of turns by name, so that a turn is compared with others that called the same tools.

The digest keeps no names of tools. They are read from the log again, and only where a finding hangs on them.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

import polars as pl

from sglang_instrument.analysis.executors.batches import weight
from sglang_instrument.analysis.ledger.ledger import STEP_OF_WORKER
from sglang_instrument.analysis.run.opening import Run

_TURN: Final = [*STEP_OF_WORKER, "request_id", "turn"]
_FEWEST: Final = 8  # turns with the same tools; of fewer, the median of all tools stays the usual time
_MAD: Final = 1.4826  # a normal distribution's standard deviation, in median absolute deviations
_LEAST_SPREAD: Final = 0.05
_MOST_STEPS: Final = 24  # that are read; in longer runs, besides those in question, evenly spaced ones

_MOST_BYTES: Final = 32 * 2**20  # of text that is read at once: its records take about as much memory


def usual_by_tool(run: Run, calls: pl.DataFrame, steps: Collection[int]) -> pl.DataFrame:
    """Return calls with the `usual_sec` of their tools' names, and how widely their times scatter.

    Args:
        run: The run.
        calls: `Evidence.calls`.
        steps: The steps in question.

    Returns:
        The calls; usual_sec: the median of the turns that called the same tools; spread: the robust standard
        deviation of the logarithm of their times. The calls themselves where there are no two names.
    """
    named = tools_of_turns(run, calls, steps)
    if named["tools"].n_unique() < 2:
        return calls
    key = ["kind", "tools"]
    known = (pl.col("kind") == "tool") & pl.col("tools").is_not_null() & (pl.len().over(key) >= _FEWEST)
    usual = pl.when(known).then(pl.col("sec").median().over(key)).otherwise("usual_sec")
    named = named.with_columns(usual_sec=usual, known=known)
    off = (pl.col("sec") / pl.col("usual_sec")).log().abs()
    spread = pl.when("known").then(_MAD * off.median().over(key))
    return named.with_columns(spread=spread.clip(lower_bound=_LEAST_SPREAD)).drop("tools", "known")


def tools_of_turns(run: Run, calls: pl.DataFrame, steps: Collection[int]) -> pl.DataFrame:
    """Return calls with the names of the tools that their turns called, as `tools`: null where none is known.

    Args:
        run: The run.
        calls: As `Evidence.calls`.
        steps: The steps in question; of a long run, some others are read besides.
    """
    return calls.join(_names(run, _some_steps(calls, steps)), on=_TURN, how="left", maintain_order="left")


def _some_steps(calls: pl.DataFrame, steps: Collection[int]) -> list[int]:
    every = calls["step"].unique().sort()
    spaced = every.gather_every(max(1, -(-len(every) // _MOST_STEPS)))
    return sorted({*steps, *spaced})


def _names(run: Run, steps: list[int]) -> pl.DataFrame:
    """Return the names of tools of the turns of some steps, whose records are read some steps at a time."""
    names = [_names_in(run.read_records(some)) for some in _in_turn(run, steps)]
    return pl.concat(names or [_names_in(run.read_records([]))], how="vertical")


def _in_turn(run: Run, steps: list[int]) -> Iterator[list[int]]:
    """Yield some steps after the other, whose logs hold so much text that it fits into memory well."""
    of_step = Counter[int]()
    for file in run.files:
        if file.place is not None and file.place.step is not None:
            of_step[file.place.step] += weight(file)
    some, text = list[int](), 0
    for step in steps:
        if some and text + of_step[step] > _MOST_BYTES:
            yield some
            some, text = [], 0
        some.append(step)
        text += of_step[step]
    if some:
        yield some


def _names_in(records: pl.DataFrame) -> pl.DataFrame:
    tools = records.filter(pl.col("phase").cast(pl.String) == "tool").drop_nulls(
        ["tool", "request_id", "turn"]
    )
    name = pl.col("tool").cast(pl.String).unique().sort().str.join(", ")
    return tools.group_by(_TURN).agg(tools=name)
