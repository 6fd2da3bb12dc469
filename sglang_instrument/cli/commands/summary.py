"""Show the steps of a run: how long each took and what that was spent on; the verdict; the log's state."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
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
from sglang_instrument.cli.commands.unbound import print_unbound
from sglang_instrument.cli.log_state import HEALTH
from sglang_instrument.cli.plain import say
from sglang_instrument.cli.summaries import large_run
from sglang_instrument.cli.summaries import periods as periods_printed
from sglang_instrument.cli.summaries.tables import StepTables, many, print_tables
from sglang_instrument.cli.tables import print_json, print_line, print_told, reading
from sglang_instrument.whole_commands import whole_commands

if TYPE_CHECKING:
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

    step  duration s  to next step s  requests  p99 s  straggler %  workers waited %  engine %  tool %
    66          38.4            41.0       256   30.9           21                12        78      10
    67         131.0           134.1       256  124.0           68                43        91       4"""

_NO_ENGINE: Final = 'SGLang\'s own processes logged nothing; engine_detail="requests" records their requests'
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
    from sglang_instrument.analysis.advice.findings import findings_with_changes, first_change
    from sglang_instrument.analysis.answers.engine.call_times import paths_of
    from sglang_instrument.analysis.answers.engine.join import engine_summary, explain
    from sglang_instrument.analysis.answers.servers import are_servers_alone
    from sglang_instrument.analysis.answers.summary import step_tables
    from sglang_instrument.analysis.settings.recorded import settings_of_run
    from sglang_instrument.analysis.verdict.verdict import judge

    if (args.window is None or args.by) and (long := large_run.of(args)) is not None:
        return large_run.tell(args, long, settings_words(long.settings))
    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress if args.by else _hinting(progress))
        chosen = select.steps_of(opened, args) if args.step else None
        paths = paths_of(opened, None if args.by else chosen)
        periods = _periods(opened, paths, args, chosen) if args.by else []
        verdict = judge(opened, paths=paths)
        # A step ends with the begin of the next one or of a validation: measure all, then choose. What the
        # verdict looked at is gone by now: a long run has no memory for both.
        of_steps = [] if args.by else step_tables(opened.digest, paths)
        findings = findings_with_changes(opened, verdict)
        tells_first_finding = bool(findings) and verdict.sentence.startswith(findings[0].sentence)
        why = explain(opened, findings[0]) if tells_first_finding else ""
        engine = engine_summary(opened)
    tables = (
        None
        if args.by
        else StepTables.of(opened.name, len(opened.worker_ranks), of_steps, args.validate, chosen)
    )
    if args.json:
        said = {"verdict": verdict.sentence, "findings": FINDINGS.in_json(map(asdict, findings))}
        if tables is None:
            rows = periods_printed.json_of(args.by, periods)
            print_json({"folder": str(opened.folder), **said, **rows, "health": asdict(opened.health)})
            return 0
        windows = WINDOWS.in_json(_windows(opened, args.window))
        _print_json(
            opened,
            chosen,
            tables,
            {**said, "windows": windows},
            engine and {**engine, "explains": why or None},
        )
        return 0
    windowed = args.window is not None or _are_unbound(opened)
    if tables is None:
        where = select.named(chosen, validate=args.validate)
        periods_printed.print_periods(f"{opened.name}{where}, by {args.by}", periods)
    elif are_servers_alone(opened):
        engine_logs.print_servers(opened, args.window)
    elif not tables.steps and not args.validate and len(opened.digest.requests.filter(validate=False)):
        _print_untimed(opened)
    else:
        print_tables(tables, args.validate, chosen)
    if windowed and not are_servers_alone(opened):
        _print_windows(opened, args.window)
    of = "verdict of the whole run" if chosen else "verdict"
    print_told(of, verdict.sentence, "bold red" if findings else "bold green")
    if why:
        print_told("why", why)
    if verdict.advice:
        print_told("advice", verdict.advice)
    if words := first_change(findings):
        print_told("change", words)
    if words := settings_words(settings_of_run(opened)):
        settings_line = f'{words}; `sql LOGS "from settings"` lists all'
        print_told("settings", whole_commands(settings_line, str(args.logs)))
    if engine:
        print_line(engine_logs.engine_line(engine))
    print_told("log", opened.health.sentence())
    print_unbound(opened)
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


def _periods(opened: Run, paths: Paths, args: argparse.Namespace, chosen: list[int] | None) -> list[_Row]:
    from sglang_instrument.analysis.long_runs.periods import launches_of, period_table, step_rows

    rows = step_rows(opened, paths).filter(select.chosen(args, chosen))
    return period_table(rows, launches_of(opened.files), args.by).to_dicts()


def _print_json(
    opened: Run, chosen: list[int] | None, tables: StepTables, verdict: _Row, engine: _Row | None
) -> None:
    from sglang_instrument.analysis.answers.servers import server_rows

    answer = {
        "folder": str(opened.folder),
        **verdict,
        **tables.as_json(chosen),
        "engine": engine,
        "servers": SERVER_TOTALS.in_json(server_rows(opened)),
        "health": asdict(opened.health),
    }
    print_json(answer)


def _print_untimed(opened: Run) -> None:
    untimed = opened.digest.requests.filter(validate=False)["step"]
    print_line(
        f"{opened.name}: {many(len(untimed), 'request')} of {many(untimed.n_unique(), 'step')} without "
        "times: `lengths` and `requests` show their tokens, rewards, ends and versions of the weights"
    )
