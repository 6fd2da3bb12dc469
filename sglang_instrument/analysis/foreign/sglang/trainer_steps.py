"""Give the lines of a server the trainer's steps, where both stand in one driver's log.

verl prints a step when it has ended, so that a server's lines belong to the step that is printed next.
"""

import polars as pl

from sglang_instrument.analysis.foreign.records.console_steps import PATTERN, console_steps, step_number
from sglang_instrument.analysis.foreign.records.metric_parts import StepTimes, step_rows


def printed_steps(lines: pl.DataFrame) -> tuple[pl.DataFrame, dict[int, StepTimes]]:
    """Return lines with their `trainer_step`, and what was printed of each step.

    Args:
        lines: `file` and `line`, in the order of the files.

    Returns:
        The lines, and the steps. Without lines of steps, or in several files, whose order is not known,
        `trainer_step` is null and no step is returned.
    """
    is_step = lines["line"].str.contains(PATTERN)
    untold = lines.with_columns(trainer_step=pl.lit(None, pl.Int64))
    if not is_step.any() or lines["file"].n_unique() > 1:
        return untold, {}
    texts = lines.filter(is_step)["line"].to_list()
    numbers = [step_number(text) or 0 for text in texts]
    steps = console_steps(texts)
    if not steps:
        return untold, {}
    printed = pl.Series([*numbers, numbers[-1] + 1], dtype=pl.Int64)
    before = is_step.cast(pl.Int64).cum_sum() - is_step.cast(pl.Int64)
    return lines.with_columns(trainer_step=printed.gather(before)), steps


def trainer_rows(steps: dict[int, StepTimes], batches: pl.DataFrame) -> pl.DataFrame:
    """Return the steps and their parts: the rollout of a step begins with the first line of a server in it.

    Args:
        steps: What was printed of each step.
        batches: `step` and `start_us` of the servers' lines.
    """
    firsts = dict(batches.group_by("step").agg(pl.col("start_us").min()).iter_rows())
    begins: list[int] = []
    end_us = min(firsts.values(), default=0)
    for number, step in steps.items():
        first_us = firsts.get(number)
        begin_us = end_us if first_us is None else first_us - step.before_generation_us
        begins.append(begin_us)
        end_us = begin_us + step.duration_us
    return step_rows(steps, begins)
