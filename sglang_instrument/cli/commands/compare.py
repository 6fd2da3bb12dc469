"""Compare two runs, and tell differences from noise."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.changes.compare import (
    CHANGED_PARTS,
    COMPARED_CONDITIONS,
    COMPARED_METRICS,
    DIFFERING_SETTINGS,
    REASONS,
)
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import Key
from sglang_instrument.cli.columns import NOTHING
from sglang_instrument.cli.commands.settings_tables import json_of, print_differences
from sglang_instrument.cli.numbers import durations, percent, significant
from sglang_instrument.cli.tables import print_json, print_line, print_rows, print_told, reading
from sglang_instrument.errors import InstrumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from sglang_instrument.analysis.changes.compare import Comparison, Condition
    from sglang_instrument.analysis.tables.column import Cell
    from sglang_instrument.analysis.tables.table import Row

HELP: Final = """\
Compare run B with run A, step by step: is B slower, where, and are there enough steps to tell?

    sglang-instrument compare logs/before logs/after
    sglang-instrument compare logs/main logs/branch --fail-if "engine > 1.05x"

    metric    of       A        B        B / A  interval      verdict        steps needed
    duration  a step   38.4 s   41.9 s   1.091  1.02 .. 1.17  higher         6
    engine    a token  11.2 ms  11.9 ms  1.063  1.05 .. 1.08  higher         2
    reward    a request  0.41 s   0.41 s   0.998  0.93 .. 1.07  same           4

Metrics that do not depend on which replies the model drew: engine (seconds a token, at equal lengths and
concurrency), tool, interaction (a turn), reward (a request), environment, preprocess, postprocess, broadcast,
cache, weights, between_steps (a step). Metrics that do: duration, tokens_per_sec, response_tokens, p50, p99,
straggler_share. Equal runs are called different, in any metric, in nominally 3 % of comparisons.
Then why: settings, versions, hosts and lengths that differ, by how much of the difference each can carry.

--fail-if "METRIC > Nx" (or <) asks whether the ratio lies beyond N. Exit codes: 0 no condition holds; 1 one
holds; 2 no comparison; 3 too few steps to tell, or a metric that was not measured: for a condition, or
without conditions for every metric. It never passes with too few steps, and says how many would do."""

TABLES: Final = (COMPARED_METRICS, COMPARED_CONDITIONS, CHANGED_PARTS, REASONS, DIFFERING_SETTINGS)
ANSWER: Final = {
    "a": Key("string", "the folder of A"),
    "b": Key("string", "the folder of B"),
    "steps_a": Key("array", "the steps of A that are compared"),
    "steps_b": Key("array", "the steps of B that are compared"),
    "left_out_a": Key("integer", "how many steps of A are left out because B does not have them"),
    "left_out_b": Key("integer", "the same of B"),
    "cold_a": Key("boolean", "whether the first step of A was left out because it was cold"),
    "cold_b": Key("boolean", "the same of B"),
    "paired": Key("boolean", "whether steps are compared in pairs, because their prompts were the same"),
    "metrics": Key(COMPARED_METRICS),
    "conditions": Key(COMPARED_CONDITIONS),
    "settings": Key(DIFFERING_SETTINGS),
    "changes": Key(CHANGED_PARTS),
    "reasons": Key(REASONS),
}
_STYLES: Final = {"slower": "bold red", "faster": "bold green", "same": "bold green", "undecided": "bold"}
_CONDITION: Final = re.compile(r"\s*(\w+)\s*([<>])\s*([0-9]*\.?[0-9]+)\s*x?\s*$")
_HARDLY: Final = 0.03  # of a step of A: no reasons are printed for less
_MOST_PARTS: Final = 4
_TOO_FEW: Final = "too few steps"
_NOT_MEASURED: Final = "not measured"
_TOLD: Final = ("higher", "lower", "same")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    parser.add_argument("a", metavar="A", type=Path, help="the run to compare with, such as the one before")
    parser.add_argument("b", metavar="B", type=Path, help="the run to compare, such as the one after")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="such as 'engine > 1.05x'; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    select.add_ray(parser)


def run(args: argparse.Namespace) -> int:
    """Print the comparison; return 1 if a condition holds, 3 if there are too few steps to tell."""
    from sglang_instrument.analysis.changes.compare import compare_runs
    from sglang_instrument.analysis.changes.why.reasons import change_table, reason_table
    from sglang_instrument.analysis.settings.differences import differing_settings
    from sglang_instrument.analysis.settings.recorded import settings_of_run

    conditions = [_condition(text) for text in args.fail_if]
    with reading() as progress:
        first, second = select.open_logs(args, args.a, progress), select.open_logs(args, args.b, progress)
        compared = compare_runs(first, second)
        compared_steps = (compared.steps, compared.other_steps)
        changes = change_table(first, second, *compared_steps)
        reasons = reason_table(first, second, *compared_steps)
    for opened, its_steps in ((first, compared.steps), (second, compared.other_steps)):
        if not its_steps:
            raise InstrumentError(f"{opened.folder}: no training step has a record yet")
    settings, other_settings = settings_of_run(first), settings_of_run(second)
    differences = differing_settings(settings, other_settings)
    rows = compared.table.to_dicts()
    condition_rows = compared.outcomes(conditions)
    if args.json:
        steps = {"steps_a": compared.steps, "steps_b": compared.other_steps}
        left_out = {"left_out_a": compared.left_out, "left_out_b": compared.other_left_out}
        cold = {"cold_a": compared.cold, "cold_b": compared.other_cold}
        answer = {
            "paired": compared.paired,
            "metrics": COMPARED_METRICS.in_json(rows),
            "conditions": COMPARED_CONDITIONS.in_json(condition_rows),
        }
        settings_rows = json_of(differences)
        runs = {"a": first.logs, "b": second.logs}
        why = {
            "changes": CHANGED_PARTS.in_json(changes.to_dicts()),
            "reasons": REASONS.in_json(reasons.to_dicts()),
        }
        print_json({**runs, **steps, **left_out, **cold, **answer, "settings": settings_rows, **why})
    else:
        print_differences(differences, bool(settings and other_settings))
        _print(f"{second.name} against {first.name}", compared, rows, condition_rows)
        _print_reasons(changes, reasons)
    if condition_rows:
        outcomes = {condition["outcome"] for condition in condition_rows}
        return 1 if "holds" in outcomes else 3 if outcomes & {_TOO_FEW, _NOT_MEASURED} else 0
    return 0 if any(row["verdict"] in _TOLD for row in rows) else 3


def _print(
    title: str, compared: Comparison, rows: list[dict[str, Any]], condition_rows: list[dict[str, Any]]
) -> None:
    from sglang_instrument.analysis.changes.conclusion import conclusion_of
    from sglang_instrument.analysis.changes.metrics import counted_by

    cells: dict[str, Callable[[Row], Cell]] = {
        "of": lambda row: counted_by(row["metric"]),
        "a_mean": lambda row: _in_one_unit(row)[0],
        "b_mean": lambda row: _in_one_unit(row)[1],
        "ratio": lambda row: NOTHING if row["ratio"] is None else f"{row['ratio']:.3f}",
        "interval": _interval,
        "steps_needed": _needed,
    }
    print_rows(COMPARED_METRICS, rows, title=title, cells=cells)
    concluded = conclusion_of(compared)
    print_line(concluded.basis)
    print_told("conclusion", concluded.sentence, _STYLES[concluded.outcome])
    for point in concluded.points:
        print_line(point)
    for condition in condition_rows:
        ratio = (
            "not in both runs"
            if condition["ratio"] is None
            else f"{condition['ratio']:.3f} ({_interval(condition)})"
        )
        if condition["outcome"] == _TOO_FEW:
            print_line(
                f"too few steps: {condition['condition']}: {ratio}; needed: {_needed(condition)} of each run"
            )
        elif condition["outcome"] == _NOT_MEASURED:
            print_line(f"not measured: {condition['condition']}: {ratio}")
        else:
            word = "failed" if condition["outcome"] == "holds" else "passed"
            print_line(f"{word}: {condition['condition']}: {ratio}")


def _print_reasons(changes: pl.DataFrame, reasons: pl.DataFrame) -> None:
    """Print which parts of a step changed, and what can carry that; nothing where steps hardly differ."""
    from sglang_instrument.analysis.changes.why.reasons import reason_words

    whole, usual = (float(changes[name].sum()) for name in ("change_sec", "a_sec"))
    if abs(whole) < _HARDLY * usual:
        return
    parts = [f"{row['change_sec']:+.3g} s {row['part']}" for row in changes.head(_MOST_PARTS).to_dicts()]
    print_told("a step of B", f"{whole:+.3g} s against A: {', '.join(parts)}")
    for sentence in reason_words(reasons):
        print_told("why", sentence)


def _in_one_unit(row: Row) -> list[str]:
    """Return the values of A and B with their unit: rows are different quantities."""
    values = [row["a_mean"], row["b_mean"]]
    if row["unit"].startswith("s "):
        return durations(values)
    if row["unit"] == "share":
        return [NOTHING if value is None else f"{percent(value)} %" for value in values]
    return [NOTHING if value is None else significant(value) for value in values]


def _interval(row: Row) -> str:
    if row["ratio_at_least"] is None:
        return NOTHING
    return f"{significant(row['ratio_at_least'])} .. {significant(row['ratio_at_most'])}"


def _needed(row: Row) -> str:
    if row["steps_needed"] is not None:
        return f"{row['steps_needed']:,}"
    if row["ratio"] is None:
        return NOTHING
    return "2 or more" if row["ratio_at_least"] is None else "over 10,000"


def _condition(text: str) -> Condition:
    from sglang_instrument.analysis.changes.compare import Condition
    from sglang_instrument.analysis.changes.metrics import METRICS

    match = _CONDITION.match(text)
    if match is None or match[1] not in METRICS or not float(match[3]):
        raise InstrumentError(
            f"--fail-if {text!r}: must be like 'engine > 1.05x'; metrics: {', '.join(METRICS)}"
        )
    return Condition(match[1], match[2] == ">", float(match[3]))
