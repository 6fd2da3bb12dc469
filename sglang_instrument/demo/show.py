"""Show the demo's progress: one bar for the model, one for each worker, a line for each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sglang_instrument.demo.launch import Report
from sglang_instrument.demo.model import ensure_model, model_folder
from sglang_instrument.demo.options import DemoOptions


def train_model(parent: Path, console: Console) -> Path:
    """Return the folder of the tiny model; train it with a progress bar if it is missing."""
    if model_folder(parent).is_dir():
        return ensure_model(parent)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training the tiny model", total=1.0)
        folder = ensure_model(parent, lambda share: progress.update(bar, completed=share))
        progress.update(bar, completed=1.0)
    return folder


def follow(reports: Iterable[tuple[int, Report]], options: DemoOptions, console: Console) -> None:
    """Show all reports."""
    with Bars(options, console) as bars:
        for rank, report in reports:
            bars.update(rank, report)


class Bars:
    """A bar for each worker, and a line for each step that all workers have finished."""

    def __init__(self, options: DemoOptions, console: Console) -> None:
        self._options = options
        self._outcomes: defaultdict[str, list[Report]] = defaultdict(list)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("requests"),
            TimeElapsedColumn(),
            console=console,
        )
        self._total = (options.steps + options.validate) * options.requests
        self._bars = [
            self._progress.add_task(f"worker {rank}: starting its engine", total=None)
            for rank in range(options.workers)
        ]

    def __enter__(self) -> Bars:
        """Begin to draw."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing; the bars stay on the screen."""
        self._progress.stop()

    def update(self, rank: int, report: Report) -> None:
        """Show one report of one worker."""
        bar = self._bars[rank]
        if report["event"] == "ready":
            self._progress.update(bar, description=f"worker {rank}", total=self._total)
        elif report["event"] == "request":
            self._progress.advance(bar)
        elif report["event"] == "step":
            self._step_done(report)

    def _step_done(self, report: Report) -> None:
        name = f"{'validation' if report['validate'] else 'step'} {report['step']}"
        outcomes = self._outcomes[name]
        outcomes.append(report)
        if len(outcomes) == self._options.workers:
            tokens = sum(outcome["tokens"] for outcome in outcomes)
            reward = sum(outcome["reward"] for outcome in outcomes) / len(outcomes)
            requests = self._options.workers * self._options.requests
            self._progress.console.print(
                f"{name}: {requests} requests, {tokens} tokens generated, mean reward {reward:.2f}"
            )
