"""Compare two runs, and tell differences from noise."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.cli import select
from sglang_instrument.cli.columns import NOTHING
from sglang_instrument.cli.commands.settings_tables import DIFFERENCES, json_of, print_differences
from sglang_instrument.cli.numbers import durations, percent, significant
from sglang_instrument.cli.tables import print_json, print_line, print_table, print_told, reading
from sglang_instrument.errors import InstrumentError

if TYPE_CHECKING:
    from sglang_instrument.analysis.changes.compare import Comparison, Condition

HELP: Final = """\
Compare run B with run A, step by step: is B slower, where, and are there enough steps to tell?

    sglang-instrument compare logs/before logs/after
    sglang-instrument compare logs/main logs/branch --fail-if "engine > 1.05x"

Metrics that do not depend on which replies the model drew: engine (seconds a token, at equal lengths and
concurrency), tool, interaction (a turn), reward (a request), preprocess, postprocess, broadcast, cache,
weights, between (a step). Metrics that do: duration, tokens_per_sec, tokens, p50, p99, tail.
Equal runs are called different, in any metric, in nominally 3 % of comparisons.

--fail-if "METRIC > Nx" (or <) asks whether the ratio lies beyond N. Exit codes: 0 no condition holds; 1 one
holds; 2 no comparison; 3 too few steps to tell, or a metric that was not measured: for a condition, or
without conditions for every metric. It never passes with too few steps, and says how many would do.

--json prints {"a", "b", "steps_a", "steps_b", "left_out_a", "left_out_b", "settings": [{"roles",
"source", "name", "a": [values], "b": [values]}: those that differ], "cold_a", "cold_b", "paired", "metrics":
[{"metric", "unit", "steps", "one", "other", "ratio", "low", "high", "verdict", "needed"}], "conditions":
[{"condition", "outcome", "ratio", "low", "high", "needed"}]}. outcome: holds, does not hold, too few steps,
not measured."""

_METRICS: Final = (
    Column("metric", "what is compared"),
    Column("of", "what A and B are counted by: a token, a turn ...", gives_way=2),
    Column("A", "mean over the steps of A"),
    Column("B", "mean over the steps of B"),
    Column("B / A", "ratio of the means"),
    Column("interval", "of the ratio; the verdict comes from it", gives_way=1),
    Column(
        "verdict",
        "B is higher, lower, the same (the interval lies within 10 %), or too few steps to tell; only in A, "
        "only in B: the other run has no call of that kind",
        styles={"higher": "red", "lower": "green", "same": "dim"},
    ),
    Column("steps needed", "of each run, to tell a difference of 10 % in 4 of 5 cases", gives_way=3),
)
TABLES: Final = {"settings that differ": DIFFERENCES, "metrics": _METRICS}
_STYLES: Final = {"slower": "bold red", "faster": "bold green", "same": "bold green", "undecided": "bold"}
_CONDITION: Final = re.compile(r"\s*(\w+)\s*([<>])\s*([0-9]*\.?[0-9]+)\s*x?\s*$")
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
    from sglang_instrument.analysis.settings.differences import differing_settings
    from sglang_instrument.analysis.settings.recorded import settings_of

    conditions = [_condition(text) for text in args.fail_if]
    with reading() as progress:
        first, second = select.open_logs(args, args.a, progress), select.open_logs(args, args.b, progress)
        compared = compare_runs(first, second)
    for opened, its_steps in ((first, compared.steps), (second, compared.other_steps)):
        if not its_steps:
            raise InstrumentError(f"{opened.folder}: no training step has a record yet")
    settings, other_settings = settings_of(first.home), settings_of(second.home)
    differences = differing_settings(settings, other_settings)
    rows = compared.table.to_dicts()
    condition_rows = compared.outcomes(conditions)
    if args.json:
        steps = {"steps_a": compared.steps, "steps_b": compared.other_steps}
        left_out = {"left_out_a": compared.left_out, "left_out_b": compared.other_left_out}
        cold = {"cold_a": compared.cold, "cold_b": compared.other_cold}
        answer = {"paired": compared.paired, "metrics": rows, "conditions": condition_rows}
        answer["settings"] = json_of(differences)
        print_json({"a": first.logs, "b": second.logs, **steps, **left_out, **cold, **answer})
    else:
        print_differences(differences, bool(settings and other_settings))
        _print(f"{second.name} against {first.name}", compared, rows, condition_rows)
    if condition_rows:
        outcomes = {condition["outcome"] for condition in condition_rows}
        return 1 if "holds" in outcomes else 3 if outcomes & {_TOO_FEW, _NOT_MEASURED} else 0
    return 0 if any(row["verdict"] in _TOLD for row in rows) else 3


def _print(
    title: str, compared: Comparison, rows: list[dict[str, Any]], condition_rows: list[dict[str, Any]]
) -> None:
    from sglang_instrument.analysis.changes.conclusion import conclusion_of
    from sglang_instrument.analysis.changes.metrics import counted_by

    shown = [
        (
            row["metric"],
            counted_by(row["metric"]),
            *_in_one_unit(row),
            NOTHING if row["ratio"] is None else f"{row['ratio']:.3f}",
            _interval(row),
            row["verdict"],
            _needed(row),
        )
        for row in rows
    ]
    print_table(_METRICS, shown, title=title)
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


def _in_one_unit(row: dict[str, Any]) -> list[str]:
    """Return the values of A and B with their unit: rows are different quantities."""
    values = [row["one"], row["other"]]
    if row["unit"].startswith("s "):
        return durations(values)
    if row["unit"] == "share":
        return [NOTHING if value is None else f"{percent(value)} %" for value in values]
    return [NOTHING if value is None else significant(value) for value in values]


def _interval(row: dict[str, Any]) -> str:
    return NOTHING if row["low"] is None else f"{significant(row['low'])} .. {significant(row['high'])}"


def _needed(row: dict[str, Any]) -> str:
    if row["needed"] is not None:
        return f"{row['needed']:,}"
    if row["ratio"] is None:
        return NOTHING
    return "2 or more" if row["low"] is None else "over 10,000"


def _condition(text: str) -> Condition:
    from sglang_instrument.analysis.changes.compare import Condition
    from sglang_instrument.analysis.changes.metrics import METRICS

    match = _CONDITION.match(text)
    if match is None or match[1] not in METRICS or not float(match[3]):
        raise InstrumentError(
            f"--fail-if {text!r}: must be like 'engine > 1.05x'; metrics: {', '.join(METRICS)}"
        )
    return Condition(match[1], match[2] == ">", float(match[3]))
