"""Forecast when the whole training ends, in hours and GPU hours, and what a cap on responses would change."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.changes.forecast import CAPS_FROM_NOW, MILESTONES
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, MISSING, Key
from sglang_instrument.cli.numbers import percent
from sglang_instrument.cli.tables import print_json, print_line, print_rows, print_told, reading

if TYPE_CHECKING:
    from sglang_instrument.analysis.outlook.whole_run import Forecasted

HELP: Final = """\
Forecast when the training ends: after how many hours and GPU hours, with an 80 % interval. Level, growth and
scatter of the step times are learnt from the steps so far; validations and checkpoints come as they came.

    sglang-instrument forecast logs/gsm8k_600 --steps 500
    sglang-instrument forecast logs/gsm8k_600 --steps 500 --gpus 16

    gsm8k_600: 380 of 500 steps are to come: they end in 14.2 h (80 %: 12.9 .. 16.1 h), 227 GPU hours
    step  ends at (UTC)     in h  80 % interval  step s
    158   2026-06-01 20:40  1.31   1.24 .. 1.39    124
    ...
    cap on a response  cut %  ends in h  saves h
                 3210      2       12.8      1.4

Without --steps, the trainer's settings say how many steps there are, if they were recorded."""

TABLES: Final = (MILESTONES, CAPS_FROM_NOW)
_GROWTH: Final = {
    "step_sec": Key("number", "by which share step times grew over the steps so far; 0.2 is 20 %"),
    "response_tokens": Key("number", "the same of the mean response tokens; null where not known"),
}
ANSWER: Final = {
    "folder": FOLDER,
    "sentence": Key("string", "the answer in words"),
    "last_step": Key("integer", "the last complete step"),
    "steps": Key("integer", "how many steps the training has"),
    "steps_left": Key("integer", "how many are to come"),
    "from_us": Key("integer", "the end of the last complete step, in Unix microseconds"),
    "left_sec": Key("number", "seconds from there to the end: the median"),
    "low_sec": Key("number", "begin of the 80 % interval"),
    "high_sec": Key("number", "end of it"),
    "gpus": Key("integer", "how many GPUs the training has; null if not known"),
    "gpu_hours": Key("number", "GPU hours to the end: the median; null if the GPUs are not known"),
    "growth": Key(_GROWTH, "what grew in the steps so far"),
    "milestones": Key(MILESTONES),
    "caps": Key(CAPS_FROM_NOW),
    "missing": MISSING,
    "assumptions": Key("array", "sentences"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `forecast`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=select.LOGS_HELP)
    parser.add_argument("--steps", type=_positive, metavar="N", help="how many steps the training has")
    parser.add_argument("--gpus", type=_positive, metavar="N", help="how many GPUs it has")
    parser.add_argument("--json", action="store_true", help="print JSON")
    select.add_ray(parser)


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 1,000,000, got {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Print when the training ends."""
    from sglang_instrument.analysis.outlook.whole_run import forecast_run

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        forecasted = forecast_run(opened, args.steps, args.gpus)
    if args.json:
        print_json({"folder": str(opened.folder), **in_json(forecasted)})
        return 0
    print_line(f"{opened.name}: {forecasted.sentence}", "bold")
    print_rows(MILESTONES, forecasted.milestones, title="milestones")
    for name, words in (("step_sec", "step times"), ("response_tokens", "response tokens")):
        share = forecasted.growth[name]
        if share is not None:
            verb = "grew" if share >= 0 else "fell"
            print_line(f"{words} {verb} by {percent(abs(share))} % over the steps so far")
    if forecasted.caps:
        print_rows(CAPS_FROM_NOW, forecasted.caps, title="\na cap on responses from now on; simulated")
    for sentence in forecasted.missing:
        print_told("not recorded", sentence)
    for sentence in forecasted.assumptions:
        print_line(sentence, "dim")
    return 0


def in_json(forecasted: Forecasted) -> dict[str, Any]:
    """Return what `--json` prints of a forecast, without the folder."""
    names = (
        "last_step",
        "steps",
        "steps_left",
        "from_us",
        "left_sec",
        "low_sec",
        "high_sec",
        "gpus",
        "growth",
    )
    return {
        "sentence": forecasted.sentence,
        **{name: getattr(forecasted, name) for name in names},
        "gpu_hours": forecasted.gpu_hours(),
        "milestones": MILESTONES.in_json(forecasted.milestones),
        "caps": CAPS_FROM_NOW.in_json(forecasted.caps),
        "missing": forecasted.missing,
        "assumptions": list(forecasted.assumptions),
    }
