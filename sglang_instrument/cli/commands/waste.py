"""Show the tokens that were generated and thrown away, by reason."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.cli import select
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading

HELP: Final = """\
Show how many tokens were generated and thrown away, by reason and by step of the rollout; `whatif --refill`
estimates what refilling single samples in place of whole groups would save.

    sglang-instrument waste logs/gsm8k_600
    sglang-instrument waste logs/gsm8k_600 --step 12-20 --json

--json prints {"folder", "steps": [{"step", "requests", "generated", "used", "waiting", "unknown", "aborted",
"filtered", "over_sampled", "stale", "truncated", "other", "wasted", "uncounted", "cut", "without_variance"}],
"total": the same over all steps, "engine": {"requests", "generated", "aborted", "abandoned", "retractions",
"computed_again"} or null, "missing": [sentences]}. All but "requests", "abandoned", "retractions" and
"uncounted" are tokens. Used, waiting, unknown and the reasons add up to "generated"."""

_STEPS: Final = (
    Column("step", "the step of the rollout"),
    Column("generated", "tokens of all replies, each counted once", "count"),
    Column("used", "share of them that the trainer took", "share"),
    Column("waiting", "share that no step has taken yet", "share", gives_way=5),
    Column("aborted", "share of requests that were aborted or failed", "share"),
    Column("filtered", "share of groups that a filter rejected", "share"),
    Column("over-sampled", "share of samples that were done, and that later steps passed over", "share"),
    Column("stale", "share of samples that were too old", "share"),
    Column(
        "truncated",
        "share of samples that were thrown away because they hit their limit",
        "share",
        gives_way=2,
    ),
    Column("other", "share of samples that were thrown away for another reason", "share", gives_way=1),
    Column("unknown", "share of which the trainer logs nothing", "share", gives_way=3),
    Column("no variance", "share in groups that were used, with equal rewards", "share", gives_way=4),
)
TABLES: Final = {"steps": _STEPS}
_SHARES: Final = (
    *("used", "waiting", "aborted", "filtered", "over_sampled", "stale", "truncated", "other", "unknown"),
    "without_variance",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `waste`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=select.LOGS_HELP)
    select.add_step(parser, "only these steps of the rollout: 12 or 12-20; repeatable")
    parser.add_argument("--worker", type=int, metavar="R", help="only this worker")
    parser.add_argument("--json", action="store_true", help="print JSON")
    select.add_ray(parser)
    parser.set_defaults(validate=False)


def run(args: argparse.Namespace) -> int:
    """Print the tokens of each step by what became of them."""
    from sglang_instrument.analysis.answers.asynchronous import waste
    from sglang_instrument.analysis.answers.asynchronous.fates import sample_fates
    from sglang_instrument.analysis.answers.asynchronous.words import waste_words

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        rows = waste.with_engine_tokens(opened, sample_fates(opened.digest))
        if args.step or args.worker is not None:
            rows = select.of_steps(opened, rows, args)
        steps = waste.waste_table(rows, opened.digest)
        total = waste.totals(steps)
        engine = waste.engine_waste(opened)
        missing = waste.missing_of(rows, opened.digest, engine)
    if args.json:
        told = {"steps": steps.to_dicts(), "total": total, "engine": engine, "missing": missing}
        print_json({"folder": str(opened.folder), **told})
        return 0
    shown = [_cells(str(row["step"]), row) for row in steps.to_dicts()]
    if total is not None and len(shown) > 1:
        shown.append(_cells("all", total))
    print_table(_STEPS, shown, title=f"{opened.name}: tokens by what became of them")
    for sentence in (*waste_words(total, engine), *missing):
        print_line(sentence)
    return 0


def _cells(name: str, row: dict[str, Any]) -> tuple[Any, ...]:
    whole = row["generated"]
    return (name, whole, *(row[one] / whole if whole and row[one] is not None else None for one in _SHARES))
