"""Let a person choose steps and a worker, and name the nearest ones where the run has no such step."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.existing import existing_numbers
from sglang_instrument.cli.plain import say
from sglang_instrument.plain_text import listed

LOGS_HELP: Final = "logs/EXPERIMENT, or another log: see `help logs`"
_MOST_NAMED: Final = 4
STEP_HELP: Final = "only this step, or these: 60-67; repeatable"

#: What a dataset has of pruned steps.
OTHER_STEPS: Final = "this answer is of the other steps"
WRITTEN_BEFORE: Final = "their spans are there only if they were written to a dataset before"

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.digests.digest import Digest
    from sglang_instrument.analysis.executors.executor import Progress
    from sglang_instrument.analysis.run.opening import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of all commands that read a run."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=LOGS_HELP)
    add_step(parser, STEP_HELP)
    parser.add_argument("--validate", action="store_true", help="validation steps instead of training steps")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_ray(parser)


def add_ray(parser: argparse.ArgumentParser) -> None:
    """Add --ray, which `open_logs` obeys."""
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="ray",
        help="read it on the nodes of a Ray cluster",
    )


def open_logs(args: argparse.Namespace, logs: Path, progress: Progress, files_alone: bool = False) -> Run:
    """Open a run on this machine, or where --ray says; `files_alone` as for `Run.open`."""
    from sglang_instrument.analysis.answers.engine.gateway_turns import with_gateway_turns
    from sglang_instrument.analysis.run.opening import Run

    run = with_gateway_turns(Run.open(logs, progress, on=args.ray, files_alone=files_alone))
    vars(args).setdefault("opened", []).append(run)
    return run


def losses(args: argparse.Namespace, *, tells_health: bool) -> Iterator[tuple[str, bool]]:
    """Yield sentences on what an answer lacks, and whether files are missing.

    Each node that failed while its files were read; values that fit no column, unless the answer says so.
    """
    opened = getattr(args, "opened", ())
    for run in () if tells_health else opened:
        if run.health.unfit:
            yield f"{run.name}: {run.health.unfit_words()}", False
    lost = [run.executor.lost for run in opened]
    for of_run in [*lost, getattr(args, "lost", {})]:
        for node, paths in of_run.items():
            if paths:
                named = listed(paths, _MOST_NAMED)
                yield f"node {node} died: its {len(paths):,} files are missing: {named}", True
            else:
                yield f"node {node} died; no file is known that only it held", False


def add_step(parser: argparse.ArgumentParser, words: str) -> None:
    """Add --step: a number or a range, repeatable."""
    parser.add_argument("--step", type=_step_range, action="append", metavar="N[-M]", help=words)


def _step_range(text: str) -> range:
    """Return the steps that `12` or `12-20` means."""
    match = re.fullmatch(r"(-?[0-9]+)(?:-(-?[0-9]+))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a step or a range, such as 12 or 12-20, got {text!r}")
    chosen = range(int(match[1]), int(match[2] or match[1]) + 1)
    if not chosen:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return chosen


def of_steps(
    run: Run, table: pl.DataFrame, args: argparse.Namespace, digest: Digest | None = None
) -> pl.DataFrame:
    """Return the rows of `table` for the chosen steps and worker.

    Args:
        run: The run.
        table: Rows with `step`, `validate` and `worker`.
        args: The command's arguments.
        digest: As for `steps_of`.

    Raises:
        LogError: There is no such step or worker.
    """
    steps = steps_of(run, args, digest)
    chosen = table.filter(within(steps), validate=args.validate).drop_nulls("step")
    worker = getattr(args, "worker", None)
    return chosen if worker is None else chosen.filter(worker=worker)


def tell_pruned(run: Run, steps: Sequence[int] | None = None, left: str = OTHER_STEPS) -> None:
    """Say on stderr that an answer of all steps lacks those whose records `prune` deleted."""
    from sglang_instrument.analysis.run.pruned import pruned_words

    gone = [file for file in run.files if not file.has_records and file.place is not None]
    if gone and steps is None:
        say(f"{pruned_words(gone)}: {left}", sys.stderr)


def within(steps: Sequence[int] | None) -> pl.Expr:
    """Return whether a row belongs to the chosen steps."""
    import polars as pl

    return pl.lit(True) if steps is None else pl.col("step").is_in(list(steps))


def chosen(args: argparse.Namespace, steps: Sequence[int] | None) -> pl.Expr:
    """Return whether a row belongs to these steps, to training or validation as chosen, and to --worker."""
    import polars as pl

    worker = getattr(args, "worker", None)
    of_worker = pl.lit(True) if worker is None else pl.col("worker") == worker
    return within(steps) & pl.col("validate").eq(args.validate) & of_worker


def steps_of(run: Run, args: argparse.Namespace, digest: Digest | None = None) -> list[int] | None:
    """Return the chosen steps that the run has, in order; None if all are.

    Args:
        run: The run.
        args: The command's arguments.
        digest: The tables to choose from: `run.digest`, the default, or `run.everything`.

    Raises:
        LogError: There is no such step or worker. The message names the nearest.
    """
    asked = run.digest if digest is None else digest
    rows = asked.requests if asked.steps.is_empty() else asked.steps  # of a dump without times
    steps = steps_among(run.name, rows, args) if args.step else None
    worker = getattr(args, "worker", None)
    if worker is not None:
        workers = rows.filter(within(steps), validate=args.validate)["worker"]
        existing_numbers(run.name, "worker", range(worker, worker + 1), workers)
    return steps


def steps_among(run: str, rows: pl.DataFrame, args: argparse.Namespace) -> list[int]:
    """Return the chosen steps among rows with `step` and `validate`, in order.

    Raises:
        LogError: There is no such step. The message names the run, and the nearest.
    """
    kind = "validation step" if args.validate else "step"
    numbers = rows.filter(validate=args.validate)["step"]
    return sorted({step for wanted in args.step for step in existing_numbers(run, kind, wanted, numbers)})


def named(steps: Sequence[int] | None, *, validate: bool = False) -> str:
    """Return the chosen steps for a title: "", ", step 67", ", steps 3, 5-9", ", validations"."""
    kind = "validation" if validate else "step"
    if steps is None:
        return ", validations" if validate else ""
    stretches: list[list[int]] = []
    for step in steps:
        if stretches and step == stretches[-1][-1] + 1:
            stretches[-1].append(step)
        else:
            stretches.append([step])
    spans = (f"{stretch[0]}-{stretch[-1]}" if len(stretch) > 1 else str(stretch[0]) for stretch in stretches)
    return f", {kind}{'s' if len(steps) > 1 else ''} {', '.join(spans)}"
