"""Show the tokens that were generated and thrown away, by reason."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from sglang_instrument.cli import select
from sglang_instrument.cli.columns import Column
from sglang_instrument.cli.numbers import count, percent
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
    from sglang_instrument.analysis.answers.asynchronous import fates, waste

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        rows = waste.with_engine_tokens(opened, fates.sample_fates(opened.digest))
        if args.step or args.worker is not None:
            rows = select.of_steps(opened, rows, args)
        steps = waste.waste_table(rows, opened.digest)
        total = waste.totals(steps)
        engine = waste.engine_waste(opened)
        missing = waste.missing_of(rows, engine, fates.logs_consumption(opened.digest))
    if args.json:
        told = {"steps": steps.to_dicts(), "total": total, "engine": engine, "missing": missing}
        print_json({"folder": str(opened.folder), **told})
        return 0
    shown = [_cells(str(row["step"]), row) for row in steps.to_dicts()]
    if total is not None and len(shown) > 1:
        shown.append(_cells("all", total))
    print_table(_STEPS, shown, title=f"{opened.name}: tokens by what became of them")
    for sentence in (*_sentences(total, engine), *missing):
        print_line(sentence)
    return 0


def _cells(name: str, row: dict[str, Any]) -> tuple[Any, ...]:
    whole = row["generated"]
    return (name, whole, *(row[one] / whole if whole and row[one] is not None else None for one in _SHARES))


def _sentences(total: dict[str, Any] | None, engine: dict[str, Any] | None) -> list[str]:
    said = []
    if total is not None and total["generated"]:
        said.append(_thrown_away(total))
        if total["cut"]:
            said.append(f"{count(total['cut'])} tokens were used of replies that hit their limit")
    if engine is not None:
        again = engine["computed_again"]
        more = "" if again is None else f", {count(again)} tokens computed again after retractions"
        said.append(
            f"the engines' own logs, validation included: {count(engine['generated'])} tokens in "
            f"{count(engine['requests'])} requests, {count(engine['aborted'])} of them in aborted ones{more}"
        )
    return said


def _thrown_away(total: dict[str, Any]) -> str:
    """Return how many tokens were thrown away; a lower limit where the fate of some is not known."""
    generated, wasted, unknown = (total[name] for name in ("generated", "wasted", "unknown"))
    if unknown and not wasted:
        return f"what became of {count(unknown)} of {count(generated)} generated tokens is not known"
    least = "at least " if unknown else ""
    share = percent(wasted / generated)
    return f"{least}{count(wasted)} of {count(generated)} generated tokens were thrown away: {share} %"
