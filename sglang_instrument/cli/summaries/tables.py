"""Print the tables of `summary`: a row a step, or a step's workers and its ledger; or give them as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.answers.json_pieces import JsonRows
from sglang_instrument.analysis.tables.rollout.ledger import LEDGER
from sglang_instrument.analysis.tables.rollout.steps import STEPS
from sglang_instrument.analysis.tables.rollout.workers import WORKERS
from sglang_instrument.cli import select
from sglang_instrument.cli.numbers import duration, percent
from sglang_instrument.cli.summaries import steps as steps_printed
from sglang_instrument.cli.summaries.ledger import print_ledger
from sglang_instrument.cli.tables import print_line
from sglang_instrument.schema import PHASES

if TYPE_CHECKING:
    import polars as pl

_SHOWN: Final = 12  # rows; more leave no room for the rest on one screen

_Row = dict[str, Any]


@dataclass(frozen=True)
class StepTables:
    """The rows of `summary.step_tables` that were chosen.

    Attributes:
        name: Of the run.
        workers_in_run: How many workers it has.
        validations: How many validation steps it has.
        of_steps: Of `step_table`.
        workers: Of `worker_table`.
        spent: Of `step_ledger`.
        spent_by_workers: Of `worker_ledger`.
    """

    name: str
    workers_in_run: int
    validations: int
    of_steps: pl.DataFrame
    workers: pl.DataFrame
    spent: pl.DataFrame
    spent_by_workers: pl.DataFrame

    @classmethod
    def of(
        cls,
        name: str,
        workers: int,
        tables: Sequence[pl.DataFrame],
        validate: bool,
        chosen: Sequence[int] | None,
    ) -> StepTables:
        """Return the rows of training, or of validations; of some steps, or of all (None)."""
        validations = tables[0].filter(validate=True)["step"].n_unique()
        tables = [table.filter(select.within(chosen), validate=validate) for table in tables]
        return cls(name, workers, validations, *tables)

    @cached_property
    def steps(self) -> list[_Row]:
        """The rows of `of_steps`."""
        return self.of_steps.to_dicts()

    def as_json(self, chosen: Sequence[int] | None) -> _Row:
        """Return them for `--json`; the ledger of each worker with chosen steps only."""
        spent = {"steps": self.spent, **({} if chosen is None else {"workers": self.spent_by_workers})}
        return {
            "steps": JsonRows(STEPS.each_in_json(map(_with_phases, _rows(self.of_steps)))),
            "workers": JsonRows(WORKERS.each_in_json(map(_with_phases, _rows(self.workers)))),
            "ledger": {name: JsonRows(LEDGER.each_in_json(_rows(rows))) for name, rows in spent.items()},
        }


def print_tables(tables: StepTables, validate: bool, chosen: Sequence[int] | None) -> None:
    """Print the workers of the chosen step if it is one, else the steps."""
    if chosen and len(chosen) == 1:
        _print_step(f"{tables.name}{select.named(chosen, validate=validate)}", tables)
    else:
        _print_steps(tables, validate, chosen)


def _rows(table: pl.DataFrame) -> Iterator[_Row]:
    """Return the rows of a table one by one, for a list of all rows of a ledger can be a gigabyte."""
    return table.iter_rows(named=True)


def _with_phases(row: _Row) -> _Row:
    columns = {key: value for key, value in row.items() if not key.startswith("share_")}
    return {**columns, "phases": {phase: row[f"share_{phase}"] for phase in PHASES if row[f"share_{phase}"]}}


def _print_steps(tables: StepTables, validate: bool, chosen: Sequence[int] | None) -> None:
    steps = tables.steps
    if validate and not steps:
        print_line(f"{tables.name}: this run has no validation; without --validate: its training steps")
        return
    shown = _slowest_and_newest(steps) if chosen is None else steps
    spent, waits = _by_part(tables.spent, "step"), _by_part(tables.spent_by_workers, "step")
    requests = [row["requests"] for row in steps if row["requests"] is not None]
    counted = (
        many(len(steps), "validation step" if validate else "step"),
        many(tables.workers_in_run, "worker"),
        many(sum(requests), "request") if requests else "no request logged",
    )
    steps_printed.print_steps(f"{tables.name}: {', '.join(counted)}", shown, spent, waits)
    if len(shown) < len(steps):
        print_line(
            f"{len(shown)} of {len(steps)} steps are shown, the slowest and the last; --json prints all"
        )
    timed = [row for row in steps if row["duration_sec"]]
    if timed:
        print_line(_slowest(timed))
    if spent:
        print_line(_unaccounted(spent))
        if len(shown) > 1 and (last := [row["step"] for row in shown if row["interval_sec"] is None]):
            steps_are = f"step {last[0]}" if len(last) == 1 else f"steps {', '.join(map(str, last))}"
            print_line(f"{steps_are}: no step follows, so the shares are of the time until its own end")
    if tables.validations and not validate:
        steps_are = "step is" if tables.validations == 1 else "steps are"
        print_line(f"{tables.validations} validation {steps_are} not shown: --validate")


def many(number: int, word: str) -> str:
    """Return a number and its noun, such as "2 steps"."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _print_step(title: str, tables: StepTables) -> None:
    spent = _by_part(tables.spent_by_workers, "worker")
    steps_printed.print_workers(title, list(_rows(tables.workers)), spent)
    wall = sum(row["sec"] for row in _rows(tables.spent))
    title = f"\nwhat its {duration(wall)}, until the next step began, were spent on"
    print_ledger(title, list(_rows(tables.spent)), list(_rows(tables.spent_by_workers)))


def _by_part(ledger: pl.DataFrame, key: str) -> dict[int, dict[str, float]]:
    """Return the seconds of each part, by step or by worker."""
    sums: dict[int, dict[str, float]] = {}
    for row in _rows(ledger):
        parts = sums.setdefault(row[key], {})
        parts[row["part"]] = parts.get(row["part"], 0.0) + row["sec"]
    return sums


def _slowest_and_newest(steps: list[_Row]) -> list[_Row]:
    """Return the steps that fit one screen, in order: the last four, and the slowest of the others."""
    if len(steps) <= _SHOWN:
        return steps
    by_duration = sorted(steps[:-4], key=lambda row: float(row["duration_sec"]), reverse=True)
    return sorted([*by_duration[: _SHOWN - 4], *steps[-4:]], key=lambda row: int(row["step"]))


def _slowest(steps: list[_Row]) -> str:
    slowest = max(steps, key=lambda row: float(row["duration_sec"]))
    step, so_far = slowest["step"], " so far (unended)" if slowest["unended"] else ""
    times = slowest["duration_sec"] / statistics.median(row["duration_sec"] for row in steps)
    shown = f"{times:.1f} x the median; --step {step} shows its workers and parts"
    return f"slowest: step {step}, {duration(slowest['duration_sec'])}{so_far}, {shown}"


def _unaccounted(spent: Mapping[int, Mapping[str, float]]) -> str:
    """Return how much of the steps' wall time no part of the ledger explains."""
    unknown = {step: parts.get("unaccounted", 0.0) for step, parts in spent.items()}
    whole = {step: sum(parts.values()) for step, parts in spent.items()}
    worst = max(whole, key=lambda step: unknown[step] / (whole[step] or 1.0))
    share = percent(sum(unknown.values()) / (sum(whole.values()) or 1.0))
    most = percent(unknown[worst] / (whole[worst] or 1.0))
    return f"unaccounted: {share} % of the steps' wall time, at most {most} % (step {worst})"
