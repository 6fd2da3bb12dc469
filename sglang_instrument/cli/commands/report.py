"""Write the report of a run: one HTML file that needs nothing else."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument import __version__
from sglang_instrument.cli import select
from sglang_instrument.cli.tables import print_json, print_line, progress_line, reading
from sglang_instrument.errors import InstrumentError
from sglang_instrument.extras import install_extra

if TYPE_CHECKING:
    from sglang_instrument.analysis.executors.executor import Progress
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.report.html.overview import Overview

HELP: Final = """\
Write a run as one HTML file, from the verdict to the single event. It needs no network and no server: open it
in a browser, mail it, print it.

    sglang-instrument report logs/gsm8k_600 -o gsm8k_600.html
    sglang-instrument report logs/before logs/after -o both.html      # the second run beside the first
    sglang-instrument report logs/gsm8k_600 --step 67 --step 68       # these steps with a timeline
    sglang-instrument report logs/gsm8k_600 --traces logs/gsm8k_600/profiles      # also what the GPUs did

The charts show all steps. The timeline shows each span of some: those given by --step, otherwise the steps
with a finding and the slowest ones, as many as --spans allows. Of a log too large to be read at once, the
verdict, the steps and the lengths are of all steps, and all else is of some, which the page says.

--json prints {"path", "bytes", "steps": [those with a timeline; v4 is the validation at step 4]}."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `report`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=select.LOGS_HELP)
    parser.add_argument("other", metavar="OTHER", type=Path, nargs="?", help="a second run to compare with")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: EXPERIMENT.html")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    select.add_step(parser, "give this step, or these (60-67), a timeline; repeatable")
    parser.add_argument("--spans", type=int, metavar="N", help="most spans in the timeline (250,000)")
    parser.add_argument(
        "--traces", type=Path, metavar="DIR", help="the engines' traces: adds a section of kernels"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    select.add_ray(parser)


def run(args: argparse.Namespace) -> int:
    """Write the report and print its path."""
    try:
        from sglang_instrument.report.html.build import write_report
        from sglang_instrument.report.html.chosen import MOST_SPANS
    except ModuleNotFoundError as missing:
        raise InstrumentError(f"report needs {missing.name}: {install_extra('report')}") from missing
    most = MOST_SPANS if args.spans is None else args.spans
    if most < 0:
        raise InstrumentError(f"--spans must be at least 0, got {most}")
    with reading() as progress:
        opened, overview = _opened(args, progress)
        other = None if args.other is None else select.open_logs(args, args.other, progress)
    path = Path(f"{opened.folder.absolute().name}.html") if args.output is None else args.output
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InstrumentError(f"-o {path}: must be a file in an existing folder, such as report.html")
    if path.exists() and not args.force:
        raise InstrumentError(f"{path} exists; --force overwrites it")
    traces = None if args.traces is None else _traced(args.traces, opened)
    try:
        with progress_line() as stage:
            written = write_report(
                *(opened, path),
                overview=overview,
                other=other,
                traces=traces,
                steps=_steps(opened, args.step or ()),
                most_spans=most,
                version=__version__,
                stage=stage,
            )
    except OSError as error:
        raise InstrumentError(f"-o {path}: cannot be written: {error.strerror}") from error
    if args.json:
        print_json({"path": str(written.path), "bytes": written.bytes, "steps": written.steps})
        return 0
    full = ", ".join(written.steps)
    timelines = f"; with a timeline: step {full}" if full else ""
    print_line(f"{written.path}: {written.bytes / 1e6:.1f} MB{timelines}")
    return 0


def _opened(args: argparse.Namespace, progress: Progress) -> tuple[Run, Overview | None]:
    """Return the run, or the steps of a large one that are read in detail with an overview of all."""
    from sglang_instrument.analysis.existing import existing_numbers
    from sglang_instrument.analysis.long_runs.pieces import large_run
    from sglang_instrument.analysis.long_runs.some_steps import only_steps, open_steps, steps_worth_reading
    from sglang_instrument.analysis.long_runs.summary import summarise
    from sglang_instrument.report.html.overview import Overview

    long = None if args.other is not None else large_run(args.logs, args.ray, by_step=True)
    if long is None:
        return select.open_logs(args, args.logs, progress), None
    summary = summarise(long, progress)
    trained = summary.rows.filter(validate=False)["step"]
    asked = [step for few in args.step or () for step in existing_numbers(summary.name, "step", few, trained)]
    chosen = steps_worth_reading(long, summary, asked)
    part = open_steps(long, summary, chosen.steps)
    vars(args).update(lost=summary.lost, opened=[part])
    return part, Overview.of_long(long, summary, part, only_steps(part, chosen.spread))


def _steps(opened: Run, asked: Sequence[range]) -> list[int]:
    """Return the steps with a timeline: single numbers as they are, those of a range that the run has."""
    recorded = set(opened.everything.steps["step"].drop_nulls())
    return [step for steps in asked for step in steps if len(steps) == 1 or step in recorded]


def _traced(folder: Path, opened: Run) -> dict[str, Any]:
    """Return what the profilers of the run's engines saw."""
    from sglang_instrument.cli.traces_beside_run import beside_run, trace_rows
    from sglang_instrument.traces.answers import analyse

    with reading("MB") as progress:
        analysis = analyse(folder, progress=lambda done, all_: progress(done >> 20, all_ >> 20))
        return trace_rows(analysis, beside_run(analysis, opened))
