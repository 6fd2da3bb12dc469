"""Let a person choose a step and a worker, and name the nearest ones where the run has no such step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sglang_instrument.errors import LogError

LOGS_HELP: Final = "the experiment's folder, logs/EXPERIMENT"

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.digest import Digest
    from sglang_instrument.analysis.run.opening import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all commands have that read a run."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=LOGS_HELP)
    parser.add_argument("--step", type=int, metavar="N", help="only this step")
    parser.add_argument("--validate", action="store_true", help="validation steps instead of training steps")
    parser.add_argument("--json", action="store_true", help="print JSON")


def of_steps(
    run: Run, table: pl.DataFrame, args: argparse.Namespace, digest: Digest | None = None
) -> pl.DataFrame:
    """Return the rows of `table` for the chosen steps and worker.

    Args:
        run: The run.
        table: Rows with `step`, `validate` and `worker`.
        args: The command's arguments.
        digest: As for `demand`.

    Raises:
        LogError: There is no such step or worker.
    """
    demand(run, args, digest)
    chosen = table.filter(validate=args.validate).drop_nulls("step")
    if args.step is not None:
        chosen = chosen.filter(step=args.step)
    worker = getattr(args, "worker", None)
    return chosen if worker is None else chosen.filter(worker=worker)


def demand(run: Run, args: argparse.Namespace, digest: Digest | None = None) -> None:
    """Refuse a step or a worker that is not in the run.

    Args:
        run: The run.
        args: The command's arguments.
        digest: The tables to choose from: `run.digest`, the default, or `run.everything`.

    Raises:
        LogError: There is no such step or worker. The message names the nearest.
    """
    there = (run.digest if digest is None else digest).steps.filter(validate=args.validate)
    kind = "validation step" if args.validate else "step"
    if args.step is not None:
        _demand(run, kind, args.step, there["step"])
        there = there.filter(step=args.step)
    worker = getattr(args, "worker", None)
    if worker is not None:
        _demand(run, "worker", worker, there["worker"])


def _demand(run: Run, kind: str, wanted: int, there: pl.Series) -> None:
    numbers = there.unique().sort().to_list()
    if wanted in numbers:
        return
    if not numbers:
        raise LogError(f"{run.folder}: no {kind} has a record yet")
    nearest = sorted(sorted(numbers, key=lambda number: abs(number - wanted))[:3])
    offer = ", ".join(map(str, nearest))
    raise LogError(f"{run.folder}: no {kind} {wanted}; there are {len(numbers)}, the nearest: {offer}")
