"""List the experiments below a folder, or the runs of one experiment: steps, trend, size, verdict."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from shlex import quote
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.run.launches import EXPERIMENTS, LAUNCHES
from sglang_instrument.cli.answer import Key
from sglang_instrument.cli.commands.settings_tables import setting_words
from sglang_instrument.cli.tables import print_json, print_line, print_rows, progress_line
from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.analysis.settings.recorded import Value
    from sglang_instrument.analysis.verdict.verdict import Verdict

HELP: Final = """\
List the experiments below a folder, or the runs (launches) of one experiment, the newest last.

    sglang-instrument runs                       # experiments in logs/, or SGLANG_INSTRUMENT_LOG_DIR
    sglang-instrument runs logs/gsm8k_600        # its runs, with their ids
    sglang-instrument summary logs/gsm8k_600@20261123T0815      # open an older run by the begin of its id
    sglang-instrument runs --sort mem_fraction_static --setting tp_size   # by a setting, and beside another
    sglang-instrument runs --sort median_step_sec                         # by a column: the fastest first

A setting is named by the end of its name: tp_size, rollout.n. Runs without it come last.

    logs       runs  begun               size  steps  workers  median step s  slowdown %  cause
    gsm8k_400     1  2026-11-21 09:12  1.1 GB    400        8           38.4         1.2  -
    gsm8k_600     2  2026-11-23 08:15  1.6 GB    612        8           41.9        11.0  engine, step 67"""

_FEWEST: Final = 6  # steps; the halves of fewer differ by chance
_SORTED_BY: Final = ("begun_us", "bytes", "steps", "workers", "median_step_sec", "slowdown_share")
TABLES: Final = (EXPERIMENTS, LAUNCHES)
ANSWER: Final = {
    "folder": Key("string", "the folder of experiments, or of one"),
    "runs": Key(EXPERIMENTS, "a row is an experiment of the folder, or a launch of the one experiment"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `runs`."""
    parser.add_argument(
        "logs", metavar="LOGS", type=Path, nargs="?", help="folder of experiments, or of one (default: logs)"
    )
    parser.add_argument(
        "--sort", metavar="NAME", help=f"sort by a setting, or by a column: {', '.join(_SORTED_BY)}"
    )
    parser.add_argument(
        "--setting", metavar="NAME", action="append", default=[], help="show a setting; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


_FACTS: Final = (
    *("run_id", "runs", "begun_us", "bytes", "steps", "workers"),
    *("median_step_sec", "slowdown_share"),
    *("verdict", "cause"),
)


def run(args: argparse.Namespace) -> int:
    """Print a row for each experiment, or for each run of one."""
    folder = args.logs or Path(os.environ.get("SGLANG_INSTRUMENT_LOG_DIR") or "logs")
    by_setting = [args.sort] if args.sort is not None and args.sort not in _SORTED_BY else []
    names = list(dict.fromkeys([*by_setting, *args.setting]))
    with progress_line() as say:
        rows = []
        for path in _listed(folder):
            say(f"reading: {path}")
            rows.append(_row(path, names))
    for name in names:
        if not any(row["settings"][name] for row in rows):
            columns = ", ".join(_SORTED_BY)
            raise LogError(
                f"no run has a setting {name!r}; the table `settings` of `sql` has their names; "
                f"columns to sort by: {columns}"
            )
    rows.sort(key=lambda row: (row["begun_us"] or 0, row["logs"]))
    if args.sort is not None:
        rows.sort(key=lambda row: _order(_sorted_by(row, args.sort)))
    if args.json:
        print_json({"folder": str(folder), "runs": EXPERIMENTS.in_json(rows)})
    else:
        _print(folder, rows, names)
    return 0


def _sorted_by(row: dict[str, Any], name: str) -> Value:
    """Return what a row is sorted by: its cell of a column, or the most frequent value of a setting."""
    if name in _SORTED_BY:
        cell: Value = row[name]
        return cell
    return next(iter(row["settings"][name]), None)


def _order(value: Value) -> tuple[int, float, str]:
    """Return the place of a value: numbers, then words, then nothing."""
    if value is None:
        return 2, 0.0, ""
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")


def _listed(folder: Path) -> Sequence[Path]:
    """Return what other commands open: the experiments in a folder, or the runs of one experiment.

    Raises:
        LogError: There is no such folder, or no experiment in it.
    """
    from sglang_instrument.analysis.reading.folders import is_run_folder
    from sglang_instrument.analysis.run.experiments import experiments_in, find_run, unreadable_in
    from sglang_instrument.analysis.run.logged_runs import runs_of_trainers
    from sglang_instrument.analysis.run.opening import Run

    if not (folder.is_dir() and not is_run_folder(folder) and experiments_in(folder)):
        folder = find_run(folder)
        runs = runs_of_trainers(Run.open(folder).files)
        return [Path(f"{folder}@{run_id}") for run_id in runs] or [folder]
    return [folder / name for name in (*experiments_in(folder), *unreadable_in(folder))]


def _row(path: Path, names: Sequence[str]) -> dict[str, Any]:
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.analysis.verdict.verdict import judge

    try:
        opened = Run.open(path)
        verdict = judge(opened)
    except (LogError, OSError) as error:  # a file may hold any text as an id
        settings: dict[str, list[Value]] = {name: [] for name in names}
        row = {"logs": str(path), **dict.fromkeys(_FACTS), "error": str(error)}
        return {**row, "settings": settings} if names else row
    facts = (*_of_log(opened), *_of_steps(opened), verdict.sentence, _cause(verdict))
    row = {"logs": str(path), **dict(zip(_FACTS, facts, strict=True)), "error": None}
    return {**row, "settings": _settings(opened, names)} if names else row


def _settings(opened: Run, names: Sequence[str]) -> dict[str, list[Value]]:
    """Return the values of settings by the names that were asked for."""
    from sglang_instrument.analysis.settings.main_settings import values_of
    from sglang_instrument.analysis.settings.recorded import settings_of_run

    settings = settings_of_run(opened)
    return {name: values_of(settings, name) for name in names}


def _of_log(opened: Run) -> tuple[str | None, int, int | None, int]:
    """Return the newest run, the number of runs, when the newest began, and the bytes of all."""
    from sglang_instrument.analysis.run.logged_runs import runs_of_trainers

    runs = runs_of_trainers(opened.files)
    written = sum(file.size for file in opened.files if file.pruned_us is None)
    if not runs:
        first: Any = opened.digest.steps["start_us"].min()
        return None, 1, first, written
    return runs[-1], len(runs), opened.files.begins[runs[-1]], written


def _of_steps(opened: Run) -> tuple[int, int, float | None, float | None]:
    """Return the number of steps and of workers, the median time of a step that ended, and the slowdown."""
    from sglang_instrument.analysis.answers.steps import step_table

    steps = step_table(opened.digest).filter(validate=False)
    ended = steps.filter(~steps["unended"].fill_null(value=False))["duration_sec"].drop_nulls().to_list()
    return len(steps), len(opened.worker_ranks), median(ended) if ended else None, slowdown_of(ended)


def slowdown_of(took: Sequence[float]) -> float | None:
    """Return by what share the later half of the steps took longer than the first half; None for few."""
    if len(took) < _FEWEST:
        return None
    half = len(took) // 2
    first = median(took[:half])
    return median(took[-half:]) / first - 1 if first else None


def _cause(verdict: Verdict) -> str | None:
    """Return the first finding as a word with its place; None without findings."""
    if not verdict.findings:
        return None
    first = verdict.findings[0]
    step = "" if first.step is None else f" {'validation' if first.validate else 'step'} {first.step}"
    worker = "" if first.worker is None else f" worker {first.worker}"
    return f"{first.cause}{',' if step or worker else ''}{step}{worker}"


def _print(folder: Path, rows: list[dict[str, Any]], names: Sequence[str]) -> None:
    # Whether these are the runs of one experiment, not several experiments.
    of_one = any(row["run_id"] and row["logs"].endswith(f"@{row['run_id']}") for row in rows)
    asked = [
        Column(name, "a setting", cell=lambda row, name=name: setting_words(row["settings"][name]))  # type: ignore[misc]
        for name in names
    ]
    print_rows(LAUNCHES if of_one else EXPERIMENTS, rows, title=str(folder), more=asked)
    for row in rows:
        if row["error"]:
            print_line(row["error"])
    shared = next((row["logs"] for row in rows if (row["runs"] or 1) > 1), None)
    if shared is not None:
        command = f"sglang-instrument runs {quote(shared)}"
        print_line(f"several runs share a folder; their ids, to open one: `{command}`")
    elif of_one:
        print_line(f"open one in any command: `sglang-instrument summary {quote(rows[0]['logs'])}`")
