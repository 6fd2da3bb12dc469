"""Show the tokens that were generated and thrown away, by reason."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.tables.training.waste import WASTE
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, MISSING, Key
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading

HELP: Final = """\
Show how many tokens were generated and thrown away, by reason and by step of the rollout; `whatif --refill`
estimates what refilling single samples in place of whole groups would save.

    sglang-instrument waste logs/gsm8k_600
    sglang-instrument waste logs/gsm8k_600 --step 12-20 --json

    step  generated  used %  waiting %  aborted %  filtered %  over sampled %  stale %
    12       97,280      78          0        2.1          14             5.9        0"""

TABLES: Final = (WASTE,)
_ENGINE: Final = {
    "requests": Key("integer", "requests of the engines, validation included"),
    "generated_tokens": Key("integer", "of all their replies"),
    "aborted_tokens": Key("integer", "of these, those of requests that were aborted"),
    "abandoned_requests": Key("integer", "those that ended without an answer, whose tokens are not known"),
    "retractions": Key("integer", "how often a request was taken back"),
    "computed_again_tokens": Key("integer", "those that the engines had to compute again for them"),
}
ANSWER: Final = {
    "folder": FOLDER,
    "steps": Key(WASTE),
    "total": Key("object", "the same over all steps; null without a step"),
    "engine": Key(_ENGINE, "what the engines' own processes logged; null without their logs"),
    "missing": MISSING,
}


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
        fates = waste.with_engine_tokens(opened, sample_fates(opened.digest))
        if args.step or args.worker is not None:
            fates = select.of_steps(opened, fates, args)
        steps = waste.waste_table(fates, opened.digest)
        total = waste.totals(steps)
        engine = waste.engine_waste(opened)
        missing = waste.missing_of(fates, opened.digest, engine)
    rows = steps.to_dicts()
    if args.json:
        answer = {"steps": WASTE.in_json(rows), "total": total, "engine": engine, "missing": missing}
        print_json({"folder": str(opened.folder), **answer})
        return 0
    if total is not None and len(rows) > 1:
        rows.append({"step": "all", **total})
    print_rows(WASTE, rows, title=f"{opened.name}: tokens by what became of them")
    for sentence in (*waste_words(total, engine), *missing):
        print_line(sentence)
    return 0
