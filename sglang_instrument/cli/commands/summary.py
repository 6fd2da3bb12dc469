"""Show the steps of a run: how long each took and what that was spent on; the verdict; the log's state."""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.engine.server_totals import SERVER_TOTALS, WINDOWS
from sglang_instrument.analysis.tables.rollout.ledger import LEDGER, STEP_PARTS
from sglang_instrument.analysis.tables.rollout.periods import PERIODS
from sglang_instrument.analysis.tables.rollout.steps import STEPS
from sglang_instrument.analysis.tables.rollout.workers import WORKERS
from sglang_instrument.analysis.tables.run.findings import FINDINGS
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, Key
from sglang_instrument.cli.commands import engine_logs
from sglang_instrument.cli.commands.settings_tables import settings_words
from sglang_instrument.cli.log_state import HEALTH
from sglang_instrument.cli.numbers import duration, percent
from sglang_instrument.cli.plain import say
from sglang_instrument.cli.summaries import large_run
from sglang_instrument.cli.summaries import periods as periods_printed
from sglang_instrument.cli.summaries import steps as steps_printed
from sglang_instrument.cli.summaries.ledger import print_ledger
from sglang_instrument.cli.tables import print_json, print_line, print_told, reading
from sglang_instrument.schema import PHASES

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.executors.executor import Progress
    from sglang_instrument.analysis.ledger.deciding_paths import Paths
    from sglang_instrument.analysis.run.opening import Run

HELP: Final = """\
Show the steps of a run: how long each took, its requests, and what its wall time was spent on. The verdict
names what cost most, and what to look at next.

    sglang-instrument summary logs/gsm8k_600
    sglang-instrument summary logs/gsm8k_600 --step 67      # its workers, and the parts that add up to it
    sglang-instrument summary logs/gsm8k_600 --by week      # a row a week of a run of any size; also: day
    sglang-instrument summary logs/servers --window 60      # servers without steps: by windows of a minute

    step  duration s  to next step s  requests  p50 s  p99 s  straggler %  barrier %  engine %  tool %
    66          38.4            41.0       256   11.2   30.9           21         12        78      10
    67         131.0           134.1       256   12.0  124.0           68         43        91       4"""

_NO_ENGINE: Final = 'SGLang\'s own processes logged nothing; engine_detail="requests" records their requests'
_SHOWN: Final = 12  # rows; more leave no room for the rest on one screen
TABLES: Final = (STEPS, WORKERS, LEDGER, STEP_PARTS, PERIODS, SERVER_TOTALS, WINDOWS)
_LEDGER: Final = {
    "steps": Key(LEDGER),
    "workers": Key(LEDGER, "of each worker, with --step", optional=True),
}
_ENGINE: Final = {
    "requests": Key("integer", "how many the engines' own processes logged"),
    "retractions": Key("integer", "how often requests were taken out of the batch to free memory"),
    "shares": Key("object", "shares of queue, prefill and decode in their time; null where not known"),
    "of_others": Key("integer", "requests of other clients, where another run started the servers"),
    "explains": Key("string", "why the first finding took so long; null without it"),
}
ANSWER: Final = {
    "folder": FOLDER,
    "verdict": Key("string", "the verdict in words"),
    "findings": Key(FINDINGS),
    "windows": Key(WINDOWS, optional=True),
    "steps": Key(STEPS, optional=True),
    "workers": Key(WORKERS, optional=True),
    "ledger": Key(_LEDGER, "what the time of each step was spent on", optional=True),
    "engine": Key(_ENGINE, "what the engines' own processes logged; null without their logs", optional=True),
    "servers": Key(SERVER_TOTALS, optional=True),
    "by": Key("string", "day or week; only with --by, in place of the keys above", optional=True),
    "timezone": Key("string", "UTC", optional=True),
    "periods": Key(PERIODS, optional=True),
    "health": Key(HEALTH, "what the reader read and what it left out"),
}

_Row = dict[str, Any]


@dataclass(frozen=True)
class _Summary:
    """Rows of `step_table`, `worker_table`, `step_ledger` and `worker_ledger`."""

    steps: list[_Row] = field(default_factory=list)
    workers: pl.DataFrame | None = None
    spent: pl.DataFrame | None = None
    spent_by_workers: pl.DataFrame | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `summary`."""
    select.add_arguments(parser)
    parser.add_argument("--by", choices=("day", "week"), help="a row a day or a week, in UTC, not one a step")
    parser.add_argument(
        "--window",
        type=_seconds,
        metavar="SECONDS",
        help="also rows of the engine's requests by windows of time",
    )


def _seconds(text: str) -> float:
    """Return a length of time that is more than 0.

    Raises:
        ArgumentTypeError: It is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds over 0, got {text!r}")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Print the steps, or the workers and the ledger of one step."""
    from sglang_instrument.analysis.answers.engine.call_times import paths_of
    from sglang_instrument.analysis.answers.engine.join import engine_summary, explain
    from sglang_instrument.analysis.answers.servers import are_servers_alone
    from sglang_instrument.analysis.settings.recorded import settings_of_run
    from sglang_instrument.analysis.verdict.verdict import judge

    if args.by and (long := large_run.of(args)) is not None:
        return large_run.tell(args, long)
    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress if args.by else _hinting(progress))
        chosen = select.steps_of(opened, args) if args.step else None
        paths = paths_of(opened, None if args.by else chosen)
        summary = _Summary() if args.by else _summarise(opened, paths, args.validate, chosen)
        periods = _periods(opened, paths, args, chosen) if args.by else []
        verdict = judge(opened, paths=paths)
        findings = verdict.findings
        tells_first_finding = bool(findings) and verdict.sentence.startswith(findings[0].sentence)
        why = explain(opened, findings[0]) if tells_first_finding else ""
        engine = engine_summary(opened)
    if args.json:
        said = {"verdict": verdict.sentence, "findings": FINDINGS.in_json(map(asdict, findings))}
        if args.by:
            rows = periods_printed.json_of(args.by, periods)
            print_json({"folder": str(opened.folder), **said, **rows, "health": asdict(opened.health)})
            return 0
        windows = WINDOWS.in_json(_windows(opened, args.window))
        _print_json(
            opened,
            chosen,
            summary,
            {**said, "windows": windows},
            engine and {**engine, "explains": why or None},
        )
        return 0
    windowed = args.window is not None or _are_unbound(opened)
    if args.by:
        where = select.named(chosen, validate=args.validate)
        periods_printed.print_periods(f"{opened.name}{where}, by {args.by}", periods)
    elif are_servers_alone(opened):
        engine_logs.print_servers(opened, args.window)
    elif chosen and len(chosen) == 1:
        _print_step(f"{opened.name}{select.named(chosen, validate=args.validate)}", summary)
    else:
        _print_steps(opened, args.validate, chosen, summary)
    if windowed and not are_servers_alone(opened):
        _print_windows(opened, args.window)
    of = "verdict of the whole run" if chosen else "verdict"
    print_told(of, verdict.sentence, "bold red" if findings else "bold green")
    if why:
        print_told("why", why)
    if verdict.advice:
        print_told("advice", verdict.advice.replace("LOGS", shlex.quote(str(args.logs))))
    if words := settings_words(settings_of_run(opened)):
        print_told("settings", f'{words}; `sql {shlex.quote(str(args.logs))} "from settings"` lists all')
    if engine:
        print_line(engine_logs.engine_line(engine))
    print_told("log", opened.health.sentence())
    return 0


def _hinting(progress: Progress) -> Progress:
    """Return what also says, before a large run is read, what reads it in less memory."""
    from sglang_instrument.analysis.long_runs.pieces import MOST_FILES

    hinted = False

    def tell(done: int, total: int) -> None:
        nonlocal hinted
        if total > MOST_FILES and not hinted:
            hinted = True
            say(f"{total:,} files at once: `--by day` and `--by week` read them in pieces", sys.stderr)
        progress(done, total)

    return tell


def _are_unbound(opened: Run) -> bool:
    """Return whether the program bound no step: the only step is 0, that of records without one."""
    steps = opened.digest.steps.filter(validate=False)["step"].unique().to_list()
    return steps == [0]


def _windows(opened: Run, window_sec: float | None) -> list[_Row]:
    from sglang_instrument.analysis.answers.servers import are_servers_alone, window_rows

    wanted = window_sec is not None or are_servers_alone(opened) or _are_unbound(opened)
    return window_rows(opened, window_sec) if wanted else []


def _print_windows(opened: Run, window_sec: float | None) -> None:
    from sglang_instrument.analysis.answers.engine.join import has_engine_logs

    if has_engine_logs(opened):
        engine_logs.print_windows(opened, window_sec)
    elif window_sec is not None:
        print_line(f"no windows: {_NO_ENGINE}")


def _summarise(opened: Run, paths: Paths, validate: bool, chosen: list[int] | None) -> _Summary:
    from sglang_instrument.analysis.answers.steps import step_table, worker_table
    from sglang_instrument.analysis.ledger.ledger import step_ledger, worker_ledger

    # A step ends with the begin of the next one or of a validation: all are measured before one is chosen.
    digest = opened.digest
    tables = [step_table(digest), worker_table(digest), step_ledger(paths), worker_ledger(paths)]
    tables = [table.filter(select.within(chosen), validate=validate) for table in tables]
    return _Summary(tables[0].to_dicts(), *tables[1:])


def _rows(table: pl.DataFrame | None) -> Iterator[_Row]:
    """Yield the rows of a table, for a list of all rows of a ledger can be a gigabyte."""
    return iter(()) if table is None else table.iter_rows(named=True)


def _periods(opened: Run, paths: Paths, args: argparse.Namespace, chosen: list[int] | None) -> list[_Row]:
    from sglang_instrument.analysis.long_runs.periods import launches_of, period_table, step_rows

    rows = step_rows(opened, paths).filter(select.chosen(args, chosen))
    return period_table(rows, launches_of(opened.files), args.by).to_dicts()


def _print_json(
    opened: Run, chosen: list[int] | None, summary: _Summary, verdict: _Row, engine: _Row | None
) -> None:
    from sglang_instrument.analysis.answers.servers import server_rows

    of_workers = {} if chosen is None else {"workers": LEDGER.in_json(_rows(summary.spent_by_workers))}
    answer = {
        "folder": str(opened.folder),
        **verdict,
        "steps": STEPS.in_json(map(_with_phases, summary.steps)),
        "workers": WORKERS.in_json(map(_with_phases, _rows(summary.workers))),
        "ledger": {"steps": LEDGER.in_json(_rows(summary.spent)), **of_workers},
        "engine": engine,
        "servers": SERVER_TOTALS.in_json(server_rows(opened)),
        "health": asdict(opened.health),
    }
    print_json(answer)


def _with_phases(row: _Row) -> _Row:
    columns = {key: value for key, value in row.items() if not key.startswith("share_")}
    return {**columns, "phases": {phase: row[f"share_{phase}"] for phase in PHASES if row[f"share_{phase}"]}}


def _print_steps(opened: Run, validate: bool, chosen: list[int] | None, summary: _Summary) -> None:
    steps = summary.steps
    validations = opened.digest.steps.filter(validate=True)["step"].n_unique()
    if validate and not steps:
        print_line(f"{opened.name}: this run has no validation; without --validate: its training steps")
        return
    if not steps and (untimed := opened.digest.requests.filter(validate=validate)["step"]).len():
        print_line(
            f"{opened.name}: {_many(len(untimed), 'request')} of {_many(untimed.n_unique(), 'step')} without "
            "times: `lengths` and `requests` show their tokens, rewards, ends and versions of the weights"
        )
        return
    shown = _slowest_and_newest(steps) if chosen is None else steps
    spent, waits = _by_part(summary.spent, "step"), _by_part(summary.spent_by_workers, "step")
    requests = [row["requests"] for row in steps if row["requests"] is not None]
    counted = (
        _many(len(steps), "validation step" if validate else "step"),
        _many(len(opened.workers), "worker"),
        _many(sum(requests), "request") if requests else "no request logged",
    )
    steps_printed.print_steps(f"{opened.name}: {', '.join(counted)}", shown, spent, waits)
    if len(shown) < len(steps):
        print_line(
            f"{len(shown)} of {len(steps)} steps are shown, the slowest and the last; --json prints all"
        )
    timed = [row for row in steps if row["duration_sec"]]
    if timed:
        print_line(_slowest(timed))
    if spent:
        print_line(_unaccounted(spent))
    if validations and not validate:
        steps_are = "step is" if validations == 1 else "steps are"
        print_line(f"{validations} validation {steps_are} not shown: --validate")


def _many(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _print_step(title: str, summary: _Summary) -> None:
    spent = _by_part(summary.spent_by_workers, "worker")
    steps_printed.print_workers(title, list(_rows(summary.workers)), spent)
    wall = sum(row["sec"] for row in _rows(summary.spent))
    title = f"\nwhat its {duration(wall)}, until the next step began, were spent on"
    print_ledger(title, list(_rows(summary.spent)), list(_rows(summary.spent_by_workers)))


def _by_part(ledger: pl.DataFrame | None, key: str) -> dict[int, dict[str, float]]:
    """Return the seconds of each part, by step or by worker."""
    sums: dict[int, dict[str, float]] = {}
    for row in _rows(ledger):
        parts = sums.setdefault(row[key], {})
        parts[row["part"]] = parts.get(row["part"], 0.0) + row["sec"]
    return sums


def _slowest_and_newest(steps: list[_Row]) -> list[_Row]:
    """Return the steps that fit one screen, in order: the last four, and the slowest of the others."""
    if len(steps) <= _SHOWN:
        return steps
    by_duration = sorted(steps[:-4], key=lambda row: float(row["duration_sec"]), reverse=True)
    return sorted([*by_duration[: _SHOWN - 4], *steps[-4:]], key=lambda row: int(row["step"]))


def _slowest(steps: list[_Row]) -> str:
    slowest = max(steps, key=lambda row: float(row["duration_sec"]))
    step, so_far = slowest["step"], " so far (unended)" if slowest["unended"] else ""
    times = slowest["duration_sec"] / statistics.median(row["duration_sec"] for row in steps)
    shown = f"{times:.1f} x the median; --step {step} shows its workers and parts"
    return f"slowest: step {step}, {duration(slowest['duration_sec'])}{so_far}, {shown}"


def _unaccounted(spent: dict[int, dict[str, float]]) -> str:
    """Return how much of the steps' wall time no part of the ledger explains."""
    unknown = {step: parts.get("unaccounted", 0.0) for step, parts in spent.items()}
    whole = {step: sum(parts.values()) for step, parts in spent.items()}
    worst = max(whole, key=lambda step: unknown[step] / (whole[step] or 1.0))
    share = percent(sum(unknown.values()) / (sum(whole.values()) or 1.0))
    most = percent(unknown[worst] / (whole[worst] or 1.0))
    return f"unaccounted: {share} % of the steps' wall time, at most {most} % (step {worst})"
