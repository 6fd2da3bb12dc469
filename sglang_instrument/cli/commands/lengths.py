"""Show how long responses are, how long they take, and which rewards short and long ones get."""

from __future__ import annotations

import argparse
from typing import Final

from sglang_instrument.cli import select
from sglang_instrument.cli.numbers import NOTHING, count, percent, seconds
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading

HELP: Final = """\
Show the lengths of the responses by step, and the rewards of short and long ones.

    sglang-instrument lengths logs/gsm8k_600
    sglang-instrument lengths logs/gsm8k_600 --step 67

cut %    share of the responses that reached a cap (finish reason "length")
reward   mean of each tenth of the responses, the shortest first, with its 95 % interval

--json prints {"folder", "lengths": [{"step", "validate", "requests", "min", "mean", "p95", "max", "cut",
"tokens_per_sec", "reward"}], "rewards": [{"decile", "requests", "from_tokens", "to_tokens", "mean_sec",
"reward", "low", "high"}]}."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lengths`."""
    select.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print lengths by step and rewards by length."""
    import polars as pl

    from sglang_instrument.analysis.answers.lengths import length_table, reward_by_length
    from sglang_instrument.analysis.run.opening import open_run

    with reading() as progress:
        opened = open_run(args.logs, progress)
        select.demand(opened, args)
        chosen = opened.digest.filter(pl.col("validate") == args.validate)
        if args.step is not None:
            chosen = chosen.filter(pl.col("step") == args.step)
        lengths, rewards = length_table(chosen).to_dicts(), reward_by_length(chosen).to_dicts()
    if args.json:
        print_json({"folder": str(opened.folder), "lengths": lengths, "rewards": rewards})
        return 0
    rows = [
        (
            str(row["step"]),
            count(row["requests"]),
            count(row["min"]),
            f"{row['mean']:,.0f}",
            f"{row['p95']:,.0f}",
            count(row["max"]),
            percent(row["cut"]),
            NOTHING if row["tokens_per_sec"] is None else f"{row['tokens_per_sec']:,.0f}",
            _reward(row["reward"]),
        )
        for row in lengths
    ]
    columns = ("step", "requests", "min", "mean", "p95", "max", "cut %", "tokens/s", "reward")
    print_table(columns, rows, title=f"{opened.name}: tokens of the responses")
    if not rewards:
        print_line("no request has a reward in its record")
        return 0
    tenths = [
        (
            f"{row['from_tokens']:,} - {row['to_tokens']:,}",
            count(row["requests"]),
            seconds(row["mean_sec"]),
            _reward(row["reward"]),
            f"{_reward(row['low'])} .. {_reward(row['high'])}",
        )
        for row in rewards
    ]
    title = "\nreward by length, in tenths of the requests"
    print_table(("tokens", "requests", "mean s", "reward", "95 %"), tenths, title=title)
    return 0


def _reward(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"
