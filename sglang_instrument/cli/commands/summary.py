"""Show the steps of a run: how long, how many requests, where the time went; the verdict; the log's state."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.cli import select
from sglang_instrument.cli.commands import engine_logs
from sglang_instrument.cli.numbers import count, percent, seconds, short_count
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading
from sglang_instrument.schema import PHASES

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.analysis.verdict.verdict import Finding

HELP: Final = """\
Show the steps of a run: how long each took, its requests, and the phases that the time went to. The verdict
names what cost most.

    sglang-instrument summary logs/gsm8k_600
    sglang-instrument summary logs/gsm8k_600 --step 67      # its workers, and the parts that add up to it

time s   of the longest worker            next s            from this start to the next step's start
busy s   the time without barriers        p50, p99, max s   durations of the requests
tail%    share of the time in which only the last 20 % of the requests run
gen%, tool%, rew%, wait%, rest%   of all workers' time: engine, tools, rewards, barriers, everything else

--json prints {"folder", "findings": [{"cause", "step", "validate", "worker", "lost_sec", "sentence",
"evidence": {...}}], "steps": [{"step", "validate", "workers", "slowest_worker", "duration_sec",
"busy_sec", "interval_sec", "unaccounted_sec", "requests", "response_tokens", "p50_sec", "p99_sec",
"max_sec", "tail", "start_us", "phases": {PHASE: share}}], "workers": [the same of each worker],
"engine": {"requests", "retractions", "shares": {"queue", "prefill", "decode"}, "explains"} or null (a null in
it means unknown),
"health": {...}} and, with --step, "accounting": {WORKER: [{"event", "count", "sec", "share"}]}.
Shares and tail are from 0 to 1."""

_SHOWN: Final = 16  # rows; more leave no room for the rest on one screen
_SHARES: Final = {
    "gen%": ("generate", "engine"),
    "tool%": ("tool", "interaction"),
    "rew%": ("reward",),
    "wait%": ("barrier",),
}
_COLUMNS: Final = ("req", "tokens", "p50 s", "p99 s", "max s", "tail%", *_SHARES, "rest%")
_OPTIONAL: Final = ("p50 s", "max s")

_Row = dict[str, Any]


@dataclass(frozen=True)
class _Summary:
    """Rows of `step_table` and `worker_table`, and for one step those of `accounting` by worker."""

    steps: list[_Row]
    workers: list[_Row]
    parts: dict[int, list[_Row]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `summary`."""
    select.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the steps, or the workers and parts of one step."""
    from sglang_instrument.analysis.answers.join import engine_summary, explain
    from sglang_instrument.analysis.run.opening import open_run
    from sglang_instrument.analysis.verdict.verdict import findings_of, verdict_of

    with reading() as progress:
        opened = open_run(args.logs, progress)
        summary = _summarise(opened, args)
        found = findings_of(opened)
        why = explain(opened, found[0]) if found else ""
        engine = engine_summary(opened)
    if args.json:
        _print_json(opened, args, summary, found, engine and {**engine, "explains": why or None})
        return 0
    if args.step is None:
        _print_steps(opened, args, summary.steps)
    else:
        _print_step(opened, args, summary)
    said = f"; {why}" if why else ""
    of = "verdict" if args.step is None else "verdict of the whole run"
    print_line(f"{of}: {verdict_of(opened)}{said}")
    if engine:
        print_line(engine_logs.told(engine))
    print_line(f"log: {opened.health.sentence()}")
    return 0


def _summarise(opened: Run, args: argparse.Namespace) -> _Summary:
    import polars as pl

    from sglang_instrument.analysis.answers.steps import accounting, step_table, worker_table

    # Intervals need the neighbours of a step, so all steps are measured before one is chosen.
    every = opened.digest.filter(pl.col("validate") == args.validate)
    steps, workers = step_table(every), worker_table(every)
    parts = {}
    if args.step is not None:
        select.demand(opened, args)
        steps, workers = steps.filter(step=args.step), workers.filter(step=args.step)
        spans = opened.read_spans(step=args.step, validate=args.validate)
        parts = {
            worker: accounting(spans, args.step, worker, args.validate).to_dicts()
            for worker in workers["worker"]
        }
    return _Summary(steps.to_dicts(), workers.to_dicts(), parts)


def _print_json(
    opened: Run,
    args: argparse.Namespace,
    summary: _Summary,
    found: list[Finding],
    engine: _Row | None,
) -> None:
    answer = {
        "folder": str(opened.folder),
        "findings": [asdict(one) for one in found],
        "steps": [_with_phases(row) for row in summary.steps],
        "workers": [_with_phases(row) for row in summary.workers],
        "engine": engine,
        "health": asdict(opened.health),
    }
    if args.step is not None:
        answer["accounting"] = {str(worker): parts for worker, parts in summary.parts.items()}
    print_json(answer)


def _with_phases(row: _Row) -> _Row:
    kept = {key: value for key, value in row.items() if not key.startswith("share_")}
    return {**kept, "phases": {phase: row[f"share_{phase}"] for phase in PHASES if row[f"share_{phase}"]}}


def _print_steps(opened: Run, args: argparse.Namespace, steps: list[_Row]) -> None:
    shown = _slowest_and_newest(steps)
    rows = [(str(row["step"]), *_cells(row, "interval_sec")) for row in shown]
    requests = sum(row["requests"] for row in steps)
    kind = "validation steps" if args.validate else "steps"
    title = f"{opened.folder}: {len(steps)} {kind}, {len(opened.workers)} workers, {requests:,} requests"
    print_table(("step", "time s", "next s", *_COLUMNS), rows, title=title, optional=_OPTIONAL)
    if len(shown) < len(steps):
        print_line(
            f"{len(shown)} of {len(steps)} steps are shown, the slowest and the last; --json prints all"
        )
    timed = [row for row in steps if row["duration_sec"]]
    if timed:
        print_line(_slowest(timed))
        print_line(_unaccounted(timed))
    validations = opened.digest.steps.filter(validate=True)["step"].n_unique()
    if validations and not args.validate:
        kept = "step is" if validations == 1 else "steps are"
        print_line(f"{validations} validation {kept} not shown: --validate")


def _print_step(opened: Run, args: argparse.Namespace, summary: _Summary) -> None:
    kind = "validation" if args.validate else "step"
    rows = [(str(row["worker"]), *_cells(row, "busy_sec")) for row in summary.workers]
    title = f"{opened.folder}, {kind} {args.step}"
    print_table(("worker", "time s", "busy s", *_COLUMNS), rows, title=title, optional=_OPTIONAL)
    for step in summary.steps:
        worker = step["slowest_worker"]
        rows = [
            (part["event"], percent(part["share"]), count(part["count"]), seconds(part["sec"]))
            for part in summary.parts[worker]
        ]
        title = f"\nthe parts of worker {worker}, which was busy longest"
        print_table(("part", "share %", "count", "time s"), rows, title=title)


def _cells(row: _Row, second: str) -> tuple[str, ...]:
    shares = [sum(row[f"share_{phase}"] for phase in phases) for phases in _SHARES.values()]
    rest = sum(row[f"share_{phase}"] for phase in PHASES) - sum(shares)
    return (
        seconds(row["duration_sec"]),
        seconds(row[second]),
        count(row["requests"]),
        short_count(row["response_tokens"]),
        seconds(row["p50_sec"]),
        seconds(row["p99_sec"]),
        seconds(row["max_sec"]),
        percent(row["tail"]),
        *map(percent, shares),
        percent(max(0.0, rest)),
    )


def _slowest_and_newest(steps: list[_Row]) -> list[_Row]:
    """Return the steps that fit one screen, in order: the last four, and the slowest of the others."""
    if len(steps) <= _SHOWN:
        return steps
    by_duration = sorted(steps[:-4], key=lambda row: float(row["duration_sec"]), reverse=True)
    return sorted([*by_duration[: _SHOWN - 4], *steps[-4:]], key=lambda row: int(row["step"]))


def _slowest(steps: list[_Row]) -> str:
    by_duration = sorted(steps, key=lambda row: float(row["duration_sec"]))
    slowest, typical = by_duration[-1], by_duration[len(steps) // 2]
    step, took = slowest["step"], seconds(slowest["duration_sec"])
    times = slowest["duration_sec"] / typical["duration_sec"]
    return (
        f"slowest: step {step}, {took} s, {times:.1f} x the median; --step {step} shows its workers and parts"
    )


def _unaccounted(steps: list[_Row]) -> str:
    """Return how much of the slowest workers' time no part of a step accounts for."""
    worst = max(steps, key=lambda row: float(row["unaccounted_sec"] / row["duration_sec"]))
    whole = percent(sum(row["unaccounted_sec"] for row in steps) / sum(row["duration_sec"] for row in steps))
    most = percent(worst["unaccounted_sec"] / worst["duration_sec"])
    return f"unaccounted: {whole} % of the steps' time, at most {most} % (step {worst['step']})"
