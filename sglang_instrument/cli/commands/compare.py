"""Compare two runs, and tell differences from noise."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, Final

from sglang_instrument.cli.tables import print_json, print_line, print_table, reading
from sglang_instrument.errors import InstrumentError

HELP: Final = """\
Compare run B with run A over the steps that both have; steps are matched by their number.

    sglang-instrument compare logs/before logs/after
    sglang-instrument compare logs/main logs/branch --fail-if "p99 > 1.1x"    # exit code 1 if true

B / A    ratio of the means over the steps
95 %     its interval, by resampling the steps; if 1 lies in it, the difference is noise

--fail-if "METRIC > Nx" (or <) fails if the ratio is beyond N and the difference is not noise. Metrics:
duration, busy, p50, p99, max, tail, tokens_per_sec, and each phase (seconds a step).

--json prints {"a", "b", "metrics": [{"metric", "steps", "one", "other", "ratio", "low", "high", "noise"}],
"failed": [CONDITION]}."""

_CONDITION: Final = re.compile(r"\s*(\w+)\s*([<>])\s*([0-9.]+)\s*x?\s*$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    parser.add_argument("a", metavar="A", type=Path, help="the run to compare with, such as the one before")
    parser.add_argument("b", metavar="B", type=Path, help="the run to compare, such as the one after")
    parser.add_argument(
        "--fail-if", action="append", default=[], metavar="CONDITION", help="such as 'p99 > 1.1x'; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the comparison; return 1 if a condition holds."""
    from sglang_instrument.analysis.answers.compare import comparison_table
    from sglang_instrument.analysis.run.opening import open_run

    conditions = [_condition(text) for text in args.fail_if]
    with reading() as progress:
        first, second = open_run(args.a, progress), open_run(args.b, progress)
        rows = comparison_table(first.digest, second.digest).to_dicts()
    if not rows:
        raise InstrumentError(f"{first.folder} and {second.folder} have no step in common")
    failed = [
        text for text, condition in zip(args.fail_if, conditions, strict=True) if _holds(condition, rows)
    ]
    if args.json:
        print_json({"a": str(first.folder), "b": str(second.folder), "metrics": rows, "failed": failed})
        return int(bool(failed))
    shown = [
        (
            row["metric"],
            f"{row['one']:,.4g}",
            f"{row['other']:,.4g}",
            f"{row['ratio']:.3f}",
            f"{row['low']:.3f} .. {row['high']:.3f}",
            "noise" if row["noise"] else "more" if row["ratio"] > 1 else "less",
        )
        for row in rows
    ]
    title = f"{second.folder} against {first.folder}: {rows[0]['steps']} steps in common"
    print_table(("metric", "A", "B", "B / A", "95 %", "B has"), shown, title=title)
    for text in failed:
        print_line(f"failed: {text}")
    return int(bool(failed))


def _condition(text: str) -> tuple[str, str, float]:
    from sglang_instrument.analysis.answers.compare import METRICS

    found = _CONDITION.match(text)
    if found is None or found[1] not in METRICS:
        raise InstrumentError(f"--fail-if {text!r}: must be like 'p99 > 1.1x'; metrics: {', '.join(METRICS)}")
    return found[1], found[2], float(found[3])


def _holds(condition: tuple[str, str, float], rows: list[dict[str, Any]]) -> bool:
    metric, relation, limit = condition
    for row in rows:
        if row["metric"] == metric and not row["noise"]:
            return bool(row["ratio"] > limit if relation == ">" else row["ratio"] < limit)
    return False
