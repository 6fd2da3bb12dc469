"""Show how long responses are, how long they take, and which rewards short and long ones get."""

from __future__ import annotations

import argparse
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.cli import select
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading

HELP: Final = """\
Show the lengths of the responses by step, and the rewards of short and long ones.

    sglang-instrument lengths logs/gsm8k_600
    sglang-instrument lengths logs/gsm8k_600 --step 67
    sglang-instrument lengths logs/gsm8k_600 --speculation      # tokens a verification, by step and by length

--json prints {"folder", "lengths": [{"step", "validate", "requests", "min", "mean", "p95", "max", "cut",
"tokens_per_sec", "reward"}], "rewards": [{"decile", "requests", "from_tokens", "to_tokens", "mean_sec",
"reward", "low", "high"}]} and, with --speculation, "speculation": [{"step", "validate", "replies", "tokens",
"verifications", "accepted"}], "by_length": [{"decile", "from_tokens", "to_tokens", "replies", "tokens",
"verifications", "accepted"}]."""

_LENGTHS: Final = (
    Column("step", "its number"),
    Column("requests", "how many with a known length", "count"),
    Column("min", "tokens of the shortest response", "count", gives_way=1),
    Column("mean", "mean tokens of a response", "count"),
    Column("p95", "95 % of the responses have at most so many tokens", "count"),
    Column("max", "tokens of the longest response", "count"),
    Column("cut", 'share of the responses that reached a cap (finish reason "length")', "share"),
    Column("tokens/s", "all tokens by the step's time", "count"),
    Column("reward", "mean reward", "number"),
)
_REWARDS: Final = (
    Column("tokens", "a tenth of the responses, the shortest first: its shortest and its longest"),
    Column("requests", "how many", "count"),
    Column("mean", "mean duration of a request", "time"),
    Column("reward", "mean reward", "number"),
    Column("low", "begin of its 95 % interval", "number"),
    Column("high", "end of its 95 % interval", "number"),
)
_OF_REPLIES: Final = (
    Column("replies", "how many: a reply is an engine call of a turn", "count"),
    Column("tokens", "of these replies", "count"),
    Column("verifications", "passes of the model that checked drafted tokens", "count"),
    Column(
        "accepted", "tokens a verification, with the one that the model writes itself: 1 is none", "number"
    ),
)
_SPECULATION: Final = (Column("step", "its number"), *_OF_REPLIES)
_BY_LENGTH: Final = (
    Column("tokens of a reply", "a tenth of the replies, the shortest first: its shortest and its longest"),
    *_OF_REPLIES,
)
TABLES: Final = {
    "responses by step": _LENGTHS,
    "rewards by length": _REWARDS,
    "--speculation: by step": _SPECULATION,
    "--speculation: by length": _BY_LENGTH,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lengths`."""
    select.add_arguments(parser)
    parser.add_argument(
        "--speculation", action="store_true", help="how many tokens speculative decoding accepts"
    )


def run(args: argparse.Namespace) -> int:
    """Print lengths by step and rewards by length."""
    from sglang_instrument.analysis.answers.lengths import (
        length_table,
        reward_by_length,
        speculation_by_length,
        speculation_table,
    )

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        steps = select.steps_of(opened, args)
        chosen = opened.digest.filter(select.chosen(args, steps))
        lengths, rewards = length_table(chosen).to_dicts(), reward_by_length(chosen).to_dicts()
        speculation: dict[str, list[dict[str, Any]]] = {}
        if args.speculation:
            speculation = {
                "speculation": speculation_table(chosen).to_dicts(),
                "by_length": speculation_by_length(chosen).to_dicts(),
            }
    if args.json:
        print_json({"folder": str(opened.folder), "lengths": lengths, "rewards": rewards, **speculation})
        return 0
    if speculation:
        _print_speculation(f"{opened.name}{select.named(steps, validate=args.validate)}", **speculation)
        return 0
    names = ("step", "requests", "min", "mean", "p95", "max", "cut", "tokens_per_sec", "reward")
    rows = [tuple(row[name] for name in names) for row in lengths]
    where = select.named(steps, validate=args.validate)
    print_table(_LENGTHS, rows, title=f"{opened.name}{where}: tokens of the responses")
    if not rewards:
        print_line("no request has a reward in its record")
        return 0
    tenths = [
        (
            f"{row['from_tokens']:,} - {row['to_tokens']:,}",
            *(row[name] for name in ("requests", "mean_sec", "reward", "low", "high")),
        )
        for row in rewards
    ]
    print_table(_REWARDS, tenths, title="\nreward by length, in tenths of the requests")
    return 0


def _print_speculation(name: str, speculation: list[dict[str, Any]], by_length: list[dict[str, Any]]) -> None:
    numbers = ("replies", "tokens", "verifications", "accepted")
    if not speculation:
        print_line(
            "no reply has the number of its verifications: SGLang reports spec_verify_ct in meta_info where "
            "speculative decoding is on (--speculative-algorithm)"
        )
        return
    rows = [tuple(row[one] for one in ("step", *numbers)) for row in speculation]
    print_table(_SPECULATION, rows, title=f"{name}: speculative decoding")
    tenths = [
        (f"{row['from_tokens']:,} - {row['to_tokens']:,}", *(row[one] for one in numbers))
        for row in by_length
    ]
    print_table(_BY_LENGTH, tenths, title="\nby length, in tenths of the replies")
