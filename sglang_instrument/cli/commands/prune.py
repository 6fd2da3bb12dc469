"""Delete the logs of most steps of a long run, and keep all that they hold in a ninth of the bytes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.cli.columns import size
from sglang_instrument.cli.select import LOGS_HELP
from sglang_instrument.cli.tables import print_json, print_line, progress_line
from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    from sglang_instrument.analysis.long_runs.plan import Plan
    from sglang_instrument.analysis.long_runs.prune import Outcome

HELP: Final = """\
Delete the logs of most steps of a long run. All that they hold stays, as Parquet in about a ninth of the
bytes: every command answers for these steps as before.

    sglang-instrument prune logs/gsm8k_600                               # says what would go, and asks
    sglang-instrument prune logs/gsm8k_600 --keep-steps 500 --keep-slowest 50
    sglang-instrument prune logs/gsm8k_600 --yes                         # asks nothing: for cron
    sglang-instrument prune logs/gsm8k_600 --store                       # only what commands make again

The newest steps keep their logs, so do the slowest ones and those that a finding of the verdict names; of
validations likewise. While the run goes on, so do its newest three steps and those that are not closed.
Files that changed within ten minutes, links, and what is no log stay in any case. Without a terminal and
without --yes, the command only says what would go. What is kept lies in LOGS/.pruned: delete it only to
forget these steps.

--json prints {"folder", "done", "drop": {"steps", "validations", "files", "bytes", "linked_files"}, "keep":
{"newest", "slowest", "named", "in_use", "bytes"}, "left": {PATH: REASON}, "deleted": {"files", "bytes",
"ledger_bytes"} or null}; it deletes only with --yes. --store --json prints {"folder",
"bytes"}. The exit code is 1 if a file could not be deleted."""

_MOST_NAMED: Final = 8
_SURE: Final = "yes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `prune`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=LOGS_HELP)
    parser.add_argument(
        "--keep-steps",
        metavar="N",
        type=_at_least(1),
        default=200,
        help="so many of the newest steps keep their records, at least 1 (default: 200)",
    )
    parser.add_argument(
        "--keep-slowest",
        metavar="N",
        type=_at_least(0),
        default=20,
        help="so many of the slowest steps keep their records (default: 20)",
    )
    parser.add_argument(
        "--store",
        action="store_true",
        help="delete the run's store, which the next command makes again, and no record",
    )
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    parser.add_argument("--json", action="store_true", help="print JSON, and ask nothing")


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"must be a number from {least} on, got {text!r}")
        return value

    return number


def run(args: argparse.Namespace) -> int:
    """Say what would go; delete it if a person, or --yes, says so."""
    from sglang_instrument.analysis.long_runs.plan import plan_prune
    from sglang_instrument.analysis.long_runs.prune import prune

    if args.store:
        return _delete_store(args)
    with progress_line() as say:
        progress = _progress(say)
        plan = plan_prune(args.logs, args.keep_steps, args.keep_slowest, progress)
    if not args.json:
        for line in _planned(plan):
            print_line(line)
    outcome = None
    if plan.drop and (args.yes or (not args.json and _agreed())):
        with progress_line() as say:
            outcome = prune(plan, _progress(say))
    if args.json:
        print_json(_as_json(plan, outcome))
    else:
        for line in _done(plan, outcome):
            print_line(line)
    return int(outcome is not None and bool(outcome.left))


def _delete_store(args: argparse.Namespace) -> int:
    """Delete the store of a run."""
    from sglang_instrument.analysis.run.experiments import find_run
    from sglang_instrument.analysis.store.bounds import delete_stores

    folder = find_run(args.logs)
    try:
        freed = delete_stores(folder)
    except OSError as error:
        raise LogError(f"{folder}: the store stays: {error}") from error
    if args.json:
        print_json({"folder": str(folder), "bytes": freed})
    else:
        print_line(f"{folder}: deleted {size(freed)} of its store; the log is as it was")
    return 0


def _progress(say: Any) -> Any:
    return lambda done, total: say(f"reading: {done:,} of {total:,} files")


def _agreed() -> bool:
    """Ask a person; without a terminal, the answer is no."""
    if not is_terminal():
        return False
    try:
        return input("Type yes to delete these files: ").strip() == _SURE
    except EOFError:
        return False


def is_terminal() -> bool:
    """Return whether a person reads and types."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _planned(plan: Plan) -> Iterator[str]:
    from sglang_instrument.analysis.long_runs.plan import IN_USE, NAMED, NEWEST, SLOWEST

    words = {
        NEWEST: "of the newest",
        SLOWEST: "more of the slowest",
        NAMED: "more that findings name",
        IN_USE: "more that may still be written to",
    }
    why = ", ".join(f"{plan.count(reason):,} {of}" for reason, of in words.items() if plan.count(reason))
    yield f"{plan.run.name}: {_steps([*plan.keep])} keep their logs, {size(plan.kept_bytes)}: {why}"
    if not plan.drop:
        yield "nothing to delete"
        return
    files = f"{len(plan.drop):,} files, {size(plan.freed)}"
    yield f"to delete: the logs of {_steps(plan.steps)}, {files}: {_numbers(plan)}; what they hold stays"
    if plan.linked:
        yield f"{plan.linked:,} of these files have a second name on the disk, which keeps their bytes"
    yield from _left(plan.left)


def _numbers(plan: Plan) -> str:
    from sglang_instrument.analysis.run.pruned import name_steps

    training = [step for step, validate in plan.steps if not validate]
    validations = [step for step, validate in plan.steps if validate]
    return " and ".join(filter(None, (name_steps(False, training), name_steps(True, validations))))


def _steps(steps: list[tuple[int, bool]]) -> str:
    validations = sum(validate for _, validate in steps)
    trained = len(steps) - validations
    words = [f"{trained:,} step{'s' * (trained != 1)}"]
    if validations:
        words.append(f"{validations:,} validation{'s' * (validations != 1)}")
    return " and ".join(words)


def _left(left: dict[str, str]) -> Iterator[str]:
    for path, why in list(left.items())[:_MOST_NAMED]:
        yield f"{path} stays: {why}"
    if len(left) > _MOST_NAMED:
        yield f"and {len(left) - _MOST_NAMED:,} more files stay: --json names them"


def _done(plan: Plan, outcome: Outcome | None) -> Iterator[str]:
    if outcome is None:
        if plan.drop:
            yield "nothing was deleted; --yes deletes without asking"
        return
    yield (
        f"deleted {outcome.files:,} files, {size(outcome.freed)}; "
        f"what they hold takes {size(outcome.kept_bytes)} in {plan.run.folder}/.pruned"
    )
    yield from _left(outcome.left)


def _as_json(plan: Plan, outcome: Outcome | None) -> dict[str, Any]:
    from sglang_instrument.analysis.long_runs.plan import IN_USE, NAMED, NEWEST, SLOWEST

    reasons = {"newest": NEWEST, "slowest": SLOWEST, "named": NAMED, "in_use": IN_USE}
    deleted = outcome and {"files": outcome.files, "bytes": outcome.freed, "ledger_bytes": outcome.kept_bytes}
    return {
        "folder": str(plan.run.folder),
        "done": outcome is not None,
        "drop": {
            "steps": [step for step, validate in plan.steps if not validate],
            "validations": [step for step, validate in plan.steps if validate],
            "files": len(plan.drop),
            "bytes": plan.freed,
            "linked_files": plan.linked,
        },
        "keep": {
            **{name: plan.count(why) for name, why in reasons.items()},
            "bytes": plan.kept_bytes,
        },
        "left": {**plan.left, **(outcome.left if outcome else {})},
        "deleted": deleted,
    }
