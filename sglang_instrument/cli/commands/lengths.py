"""Show how long responses are, how long they take, and which rewards short and long ones get."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.responses.lengths import CAPS, LENGTHS, REWARDS_BY_LENGTH
from sglang_instrument.analysis.tables.responses.speculation import SPECULATION, SPECULATION_BY_LENGTH
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, Key
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading
from sglang_instrument.errors import InstrumentError

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

HELP: Final = """\
Show the lengths of the responses by step, and the rewards of short and long ones.

    sglang-instrument lengths logs/gsm8k_600
    sglang-instrument lengths logs/gsm8k_600 --step 67
    sglang-instrument lengths logs/gsm8k_600 --caps        # what each cap would save, and cut; or turns ...
    sglang-instrument lengths logs/gsm8k_600 --speculation      # tokens a verification, by step and by length

    step  requests  min tokens  mean tokens  p95 tokens  max tokens  capped %  tokens/s  reward
    66         640          18          289         811       1,024         4     3,398    0.71
    67         640          21          301         902       1,024         6       911    0.69"""

TABLES: Final = (LENGTHS, REWARDS_BY_LENGTH, CAPS, SPECULATION, SPECULATION_BY_LENGTH)
ANSWER: Final = {
    "folder": FOLDER,
    "lengths": Key(LENGTHS, optional=True),
    "rewards": Key(REWARDS_BY_LENGTH, optional=True),
    "speculation": Key(SPECULATION, optional=True),
    "by_length": Key(SPECULATION_BY_LENGTH, optional=True),
    "caps": Key(CAPS, optional=True),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lengths`."""
    select.add_arguments(parser)
    parser.add_argument(
        "--speculation", action="store_true", help="how many tokens speculative decoding accepts"
    )

    parser.add_argument(
        "--caps",
        choices=("tokens", "turns", "seconds", "samples"),
        nargs="?",
        const="tokens",
        help="what caps on tokens, turns or seconds would save, or more samples than needed",
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
        speculation: list[dict[str, Any]] = []
        by_length: list[dict[str, Any]] = []
        caps = None if args.caps is None else _caps(opened, args)
        if args.speculation:
            speculation = speculation_table(chosen).to_dicts()
            by_length = speculation_by_length(chosen).to_dicts()
    if args.json and caps is not None:
        print_json({"folder": str(opened.folder), "caps": CAPS.in_json(caps)})
        return 0
    if caps is not None:
        print_rows(CAPS, caps, title=f"{opened.name}: caps on {args.caps}: simulated, not measured")
        return 0
    if args.json:
        answer = {"lengths": LENGTHS.in_json(lengths), "rewards": REWARDS_BY_LENGTH.in_json(rewards)}
        if args.speculation:
            answer["speculation"] = SPECULATION.in_json(speculation)
            answer["by_length"] = SPECULATION_BY_LENGTH.in_json(by_length)
        print_json({"folder": str(opened.folder), **answer})
        return 0
    name = f"{opened.name}{select.named(steps, validate=args.validate)}"
    if args.speculation:
        _print_speculation(name, speculation, by_length)
        return 0
    print_rows(LENGTHS, lengths, title=f"{name}: tokens of the responses")
    if rewards:
        title = "\nreward by length, in tenths of the requests"
        print_rows(REWARDS_BY_LENGTH, rewards, title=title)
    else:
        print_line("no request has a reward in its record")
    return 0


def _caps(opened: Run, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of the curve of caps."""
    from sglang_instrument.analysis.advice.caps import cap_table

    if args.step or args.validate or args.speculation:
        raise InstrumentError("--caps is of all training steps: it goes with no other option")
    return cap_table(opened, args.caps).to_dicts()


def _print_speculation(name: str, speculation: list[dict[str, Any]], by_length: list[dict[str, Any]]) -> None:
    if not speculation:
        print_line(
            "no reply has the number of its verifications: SGLang reports spec_verify_ct in meta_info where "
            "speculative decoding is on (--speculative-algorithm)"
        )
        return
    print_rows(SPECULATION, speculation, title=f"{name}: speculative decoding")
    print_rows(SPECULATION_BY_LENGTH, by_length, title="\nby length, in tenths of the replies")
