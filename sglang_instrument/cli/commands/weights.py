"""Show the weight updates by part and server, and from which weights replies and cached prefixes came."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.training.weights import (
    LINEAGE,
    LINEAGE_BY_WEIGHTS,
    UPDATE_SERVERS,
    UPDATES,
)
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, MISSING, Key
from sglang_instrument.cli.tables import print_json, print_line, print_rows, print_told, reading
from sglang_instrument.errors import LogError
from sglang_instrument.whole_commands import whole_commands

if TYPE_CHECKING:
    import polars as pl

HELP: Final = """\
Show each weight update: its parts, its servers, the calls that stood still, the last server.

    sglang-instrument weights logs/gsm8k_600
    sglang-instrument weights logs/gsm8k_600 --update 3     # by server
    sglang-instrument weights logs/gsm8k_600 --lineage      # which weights made replies and cached prefixes

    update  weight version  duration s  pause s  transfer s  stalled calls  stalled s  last server
    1       7                     6.00     0.12        4.80             64        312  scheduler_2_tp0

What the log does not tell is null in JSON, and - in the table."""

TABLES: Final = (UPDATES, UPDATE_SERVERS, LINEAGE_BY_WEIGHTS, LINEAGE)
ANSWER: Final = {
    "folder": FOLDER,
    "updates": Key(UPDATES),
    "findings": Key("array", "the verdict about updates: cause, sentence, advice, evidence"),
    "missing": MISSING,
    "lineage": Key(LINEAGE, optional=True),
}
_SHOWN: Final = 20
_NO_CALL: Final = (
    "no engine call has a lineage: SGLang's own processes record calls and updates (SGLANG_INSTRUMENT=1 in "
    'their environment, `engine_detail` "requests", the default)'
)
_UNKNOWN: Final = (
    "{unknown:,} of {all:,} calls have no lineage: no scheduler that logs its updates served them "
    '(`engine_detail` "requests", the default, records both)'
)
_LIMITS: Final = (
    "the numbers of older tokens are limits: the log does not tell which weights computed each token of the "
    "cache"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `weights`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=select.LOGS_HELP)
    choices = parser.add_mutually_exclusive_group()
    choices.add_argument("--update", type=int, metavar="N", help="this update by server")
    choices.add_argument("--lineage", action="store_true", help="which weights made replies and prefixes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    select.add_ray(parser)


def run(args: argparse.Namespace) -> int:
    """Print the updates, one of them by server, or the lineage of calls."""
    from sglang_instrument.analysis import lineage, weight_updates, weights_findings
    from sglang_instrument.analysis.answers.weights.updates import missing_of
    from sglang_instrument.analysis.verdict.advice import advice_of

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        select.tell_pruned(opened)
        updates, findings = weight_updates(opened), weights_findings(opened)
        calls = lineage(opened) if args.lineage else None
    missing = missing_of(updates)
    if args.update is not None:
        updates = [row for row in updates if row["update"] == args.update] or _no_such(args.update, updates)
    findings = [
        replace(finding, advice=whole_commands(advice_of(finding), str(args.logs))) for finding in findings
    ]
    if args.json:
        findings_json = [
            {name: getattr(finding, name) for name in ("cause", "sentence", "advice", "evidence")}
            for finding in findings
        ]
        more = {} if calls is None else {"lineage": LINEAGE.in_json(calls.to_dicts())}
        print_json(
            {
                "folder": str(opened.folder),
                "updates": UPDATES.in_json(updates),
                "findings": findings_json,
                "missing": missing,
                **more,
            }
        )
        return 0
    if calls is not None:
        _print_lineage(opened.name, calls)
    elif args.update is not None:
        _print_servers(opened.name, updates[0])
    elif updates:
        print_rows(UPDATES, updates, title=f"{opened.name}: weight updates")
        for sentence in missing:
            print_line(sentence)
    else:
        print_line(f"{opened.name}: {missing[0]}")
    for finding in findings:
        print_told("finding", finding.sentence)
        print_told("advice", finding.advice)
    return 0


def _no_such(wanted: int, updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    count_words = f"there are {len(updates)}, counted from 1" if updates else "there are none"
    raise LogError(f"no update {wanted}; {count_words}")


def _print_servers(name: str, update: dict[str, Any]) -> None:
    version = f", version {update['weight_version']}" if update["weight_version"] is not None else ""
    title = f"{name}: update {update['update']}{version}, the last server last"
    print_rows(UPDATE_SERVERS, update["servers"], title=title)


def _print_lineage(name: str, calls: pl.DataFrame) -> None:
    import polars as pl

    from sglang_instrument.analysis import lineage_by_weights

    known = calls.drop_nulls("first_weights")
    if not known.is_empty():
        rows = lineage_by_weights(known).to_dicts()
        print_rows(LINEAGE_BY_WEIGHTS, rows, title=f"{name}: replies by their weights")
    odd = known.filter((pl.col("stale_most") > 0) | pl.col("label_is_wrong"))
    if not odd.is_empty():
        _print_calls(odd)
    if calls.is_empty():
        print_line(f"{name}: {_NO_CALL}")
    elif len(known) < len(calls):
        print_line(_UNKNOWN.format(unknown=len(calls) - len(known), all=len(calls)))
    if (known["stale_least"] != known["stale_most"]).any():
        print_line(_LIMITS)


def _print_calls(odd: pl.DataFrame) -> None:
    more = f", the first {_SHOWN} of {len(odd):,}" if len(odd) > _SHOWN else ""
    title = f"\na prefix of older weights, or a wrong label{more}"
    print_rows(LINEAGE, odd.head(_SHOWN).to_dicts(), title=title)
