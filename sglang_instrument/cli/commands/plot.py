"""Draw a run as figures: PNG, SVG or PDF."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sglang_instrument.cli import select
from sglang_instrument.cli.tables import print_json, print_line, reading
from sglang_instrument.errors import InstrumentError
from sglang_instrument.extras import install_extra

HELP: Final = """\
Draw a run as figures, a file each. docs/how-to/figures.md shows them and explains how to read them.

    sglang-instrument plot logs/gsm8k_600 -o figures
    sglang-instrument plot logs/gsm8k_600 -o figures --step 67 --figure slowest --format svg

overview      duration of each step, and the time to the next one
shares        parts of each step, in percent
lengths       shortest, mean and longest response of each step, reward, tokens per second
caps          what caps on responses would save, and cut, with the knee of the curve
cdf           durations of all requests, and of each step's
turns         time of the first, second ... turn
turn-counts   how many turns the requests of each step took
turn-durations   how long requests of 1, 2 ... turns took, step by step
workers, cdf-workers, slowest   one step: --step N, otherwise the longest step; those of a second --step
                                lie in FOLDER/step_N

--json prints {"folder", "step" (of several, a list), "figures": {NAME: "PATH"}, "left_out": {NAME:
"REASON"}}."""

_OF_ONE_STEP: Final = ("workers", "cdf-workers", "slowest")
_FORMATS: Final = ("png", "svg", "pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plot`."""
    select.add_arguments(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FOLDER", help="folder for the files"
    )
    parser.add_argument("--figure", action="append", metavar="NAME", help="only this figure; repeatable")
    parser.add_argument("--worker", type=int, metavar="R", help="only requests of this worker")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="slowest requests (%(default)s)")
    parser.add_argument("--against", type=Path, metavar="LOGS", help="a second run, B: dashed in the cdf")
    parser.add_argument("--format", choices=_FORMATS, default="png", help="file format (%(default)s)")
    parser.add_argument(
        "--dpi", type=int, default=150, metavar="N", help="dots per inch of a png (%(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the figures; return 1 if none could be drawn."""

    try:
        from sglang_instrument.report.figures.drawing import FIGURES, choose, draw
    except ModuleNotFoundError as missing:
        raise InstrumentError(f"plot needs {missing.name}: {install_extra('report')}") from missing

    names = _names(args.figure, list(FIGURES))
    _demand_numbers(args)
    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        steps: Sequence[int | None] = select.steps_of(opened, args) or [None]
        other = select.open_logs(args, args.against, progress) if args.against else None
    choices = [choose(opened, step, args.worker, args.validate, args.limit, other) for step in steps]
    drawn: dict[str, str] = {}
    left_out: dict[str, str] = {}
    try:
        for number, choice in enumerate(choices):
            folder, drawable = args.output, names
            if number:
                folder = args.output / f"step_{choice.step}"
                drawable = [name for name in names if name in _OF_ONE_STEP]
            for name, result in draw(choice, folder, drawable, args.format, args.dpi):
                key = f"{folder.name}/{name}" if number else name
                if isinstance(result, Path):
                    drawn[key] = str(result)
                else:
                    left_out[key] = result
                if not args.json:
                    print_line(str(result) if isinstance(result, Path) else f"{key}: not drawn, {result}")
    except OSError as error:
        raise InstrumentError(f"{args.output} cannot be written: {error.strerror or error}") from error
    if args.json:
        step = choices[0].step if len(choices) == 1 else [choice.step for choice in choices]
        print_json({"folder": str(opened.folder), "step": step, "figures": drawn, "left_out": left_out})
    return 0 if drawn else 1


def _names(asked: list[str] | None, known: list[str]) -> list[str]:
    for name in asked or []:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"the figures are: {', '.join(known)}"
            raise InstrumentError(f"no figure {name!r}; {hint}")
    return list(dict.fromkeys(asked)) if asked else known


def _demand_numbers(args: argparse.Namespace) -> None:
    if args.limit < 1:
        raise InstrumentError(f"--limit must be at least 1, got {args.limit}")
    if not 20 <= args.dpi <= 1200:
        raise InstrumentError(f"--dpi must be from 20 to 1200, got {args.dpi}")
    if args.output.exists() and not args.output.is_dir():
        raise InstrumentError(f"{args.output} is a file; -o takes a folder")
