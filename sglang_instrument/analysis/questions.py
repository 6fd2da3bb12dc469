"""Ask a run the usual questions in a notebook: its verdict, steps, requests, figures and report."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import polars as pl

from sglang_instrument import __version__
from sglang_instrument.analysis.advice.findings import findings_with_changes
from sglang_instrument.analysis.answers.engine.call_times import paths_of
from sglang_instrument.analysis.answers.engine.gateway_turns import with_gateway_turns
from sglang_instrument.analysis.answers.summary import summary_table
from sglang_instrument.analysis.dataset.query import ask
from sglang_instrument.analysis.executors.executor import Progress
from sglang_instrument.analysis.existing import demand_step
from sglang_instrument.analysis.long_runs.periods import PERIODS, launches_of, period_table, step_rows
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.tables.registry import all_tables
from sglang_instrument.analysis.tables.rollout.events import EVENTS, events_of
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import Verdict, judge
from sglang_instrument.errors import InstrumentError, LogError
from sglang_instrument.extras import install_extra
from sglang_instrument.plain_text import plain
from sglang_instrument.safe_files.output import write_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NEXT: Final = 'run.findings, run.summary(), run.workers(), run.requests(), run.plot("cdf"), run.report()'


class NotebookRun(Run):
    """A run, as its log files describe it. In a notebook, `run` shows a short card with the verdict.

    Attributes:
        executor: Reads its files: on this machine, or where they lie.
        files: Its log files and their control records.
        everything: Steps, requests, turns and barriers of the newest runs, with records outside of any step.
        cached: Whether tables may be cached in the folder.
        run_id: The run that was asked for by its id; None for the newest of each step.
    """

    def summary(self, validate: bool = False, by: str | None = None) -> pl.DataFrame:
        """Return one row per step: how long it took, its requests, and what its wall time was spent on.

        Args:
            validate: Validations instead of training steps.
            by: "day" or "week": one row for each of a long run instead, in UTC.

        Returns:
            The columns of `summary_table`, without `validate`; with `by`, those of `period_table`.

        Raises:
            InstrumentError: `by` is something else.
        """
        if by is not None:
            if by not in PERIODS:
                raise InstrumentError(f"by must be one of {', '.join(PERIODS)}, got {by!r}")
            rows = step_rows(self, paths_of(self)).filter(validate=validate)
            return period_table(rows, launches_of(self.files), by)
        digest = self.digest.filter(pl.col("validate") == validate)
        return summary_table(digest, paths_of(self)).drop("validate")

    def requests(
        self, step: int | None = None, worker: int | None = None, validate: bool = False
    ) -> pl.DataFrame:
        """Return one row per request, the slowest first.

        Args:
            step: Only of this step.
            worker: Only of this worker.
            validate: Of validations instead of training steps.

        Returns:
            The columns of the table `requests`, without `validate`, such as `request_id`, `duration_sec`,
            `engine_sec`, `tool_sec` (seconds), `turns`, `response_tokens` (counts).

        Raises:
            LogError: There is no such step or worker; the message names the nearest.
        """
        rows = self._rows("requests", step, worker, validate)
        return rows.sort("duration_sec", "request_id", descending=[True, False])

    def turns(
        self, step: int | None = None, worker: int | None = None, validate: bool = False
    ) -> pl.DataFrame:
        """Return one row per turn of a request, in the order of step, worker, request and turn.

        `turn_table(run.digest)` sums them up by their number; it is what the command `turns` prints.

        Args:
            step: Only of this step.
            worker: Only of this worker.
            validate: Of validations instead of training steps.

        Returns:
            The columns of the table `turns`, without `validate`: `turn` counts from 0; `engine_sec`,
            `tool_sec`, `interaction_sec` and `reward_sec` are seconds, null where the log does not tell;
            `start_us` and `end_us` microseconds of the Unix epoch; `response_tokens` is a count.

        Raises:
            LogError: As of `requests`.
        """
        return self._rows("turns", step, worker, validate)

    def workers(self, step: int | None = None, validate: bool = False) -> pl.DataFrame:
        """Return one row per step of a worker: how long it took, and how long it waited for others.

        Args:
            step: Only of this step.
            validate: Of validations instead of training steps.

        Returns:
            The columns of the table `workers`, without `validate`: `duration_sec`, `busy_sec`, `wait_sec`
            (at barriers), `caused_wait_sec` (of others) in seconds; `requests`, `response_tokens` are
            counts; a column of `share_` is a part of its time, from 0 to 1.

        Raises:
            LogError: As of `requests`.
        """
        return self._rows("workers", step, None, validate)

    def events(
        self, step: int | None = None, worker: int | None = None, validate: bool = False
    ) -> pl.DataFrame:
        """Return one row per event by its name, the largest share of the steps' time first.

        It reads the records of the steps asked for, all other methods but `sql` only what was summed up.

        Args:
            step: Only of this step.
            worker: Only of this worker.
            validate: Of validations instead of training steps.

        Returns:
            The columns of the table `events`: `steps_share` from 0 to 1, `count`, and `total_sec`,
            `without_nested_sec`, `p50_sec`, `p99_sec`, `max_sec` in seconds, null of instant events.

        Raises:
            LogError: As of `requests`, or records of this step were pruned.
        """
        demand_step(self, step, worker, validate)
        return EVENTS.fitted(events_of(self, step, worker, validate))

    @property
    def verdict(self) -> str:
        """What was out of the ordinary in one sentence: what cost most time, or that nothing stands out."""
        return self._judged.sentence

    @property
    def findings(self) -> list[Finding]:
        """All that was out of the ordinary: hangs and deaths first, then by the time lost.

        `lost_sec` of a finding is in seconds; `change` is the change of a setting that answers it, if
        `advise` proposes one. `run.table("findings")` has them as a frame, without changes.
        """
        return self._findings

    def _rows(self, table: str, step: int | None, worker: int | None, validate: bool) -> pl.DataFrame:
        demand_step(self, step, worker, validate)
        wanted = {"step": step, "worker": worker, "validate": validate}
        asked = {name: value for name, value in wanted.items() if value is not None}
        return self.table(table).filter(**asked).drop("validate")

    def table(self, name: str) -> pl.DataFrame:
        """Return a table of docs/reference/tables.md of the whole run, such as `run.table("turns")`.

        Args:
            name: Of the table.

        Returns:
            The columns that the reference describes.

        Raises:
            InstrumentError: There is no such table, or it depends on options of a command.
        """
        tables = {table.name: table for table in all_tables().values() if table.make is not None}
        if name not in tables:
            raise InstrumentError(f"no table {name!r}; the tables are: {', '.join(tables)}")
        return tables[name].frame(self)

    def sql(self, query: str) -> pl.DataFrame:
        """Return the rows of a query in DuckDB's SQL over the tables of docs/reference/dataset.md.

        The first query about spans writes them to the run's store, as Parquet; later ones read them there.

        Args:
            query: One SELECT; it can read these tables, no other files and no network.

        Raises:
            InstrumentError: The query is wrong, or the extra `sql` is not installed.
        """
        return ask(self, query)

    def plot(
        self,
        figure: str = "cdf",
        step: int | None = None,
        worker: int | None = None,
        validate: bool = False,
        limit: int = 20,
        against: Run | None = None,
    ) -> "Figure":
        """Return a figure, which a notebook shows.

        Args:
            figure: overview, shares, lengths, workers, cdf, cdf-workers, slowest, turns, turn-counts or
                turn-durations.
            step: For workers, cdf-workers and slowest: the step; default is the one that took longest.
            worker: Only requests of this worker.
            validate: Validations instead of training steps.
            limit: How many of the slowest requests.
            against: A second run, B: a dashed line in the cdf.

        Raises:
            LogError: The log lacks what the figure shows, or there is no such step or worker.
            InstrumentError: There is no such figure, or the extra `report` is not installed.
        """
        try:
            from sglang_instrument.report.figures.drawing import FIGURES, choose, figure_of
            from sglang_instrument.report.figures.parts import NothingToDrawError
        except ModuleNotFoundError as missing:
            raise InstrumentError(f"plot() needs {missing.name}: {install_extra('report')}") from missing
        if figure not in FIGURES:
            raise InstrumentError(f"no figure {figure!r}; the figures are: {', '.join(FIGURES)}")
        demand_step(self, step, worker, validate)
        try:
            return figure_of(choose(self, step, worker, validate, limit, against), figure)
        except NothingToDrawError as reason:
            raise LogError(f"{self.folder}: nothing to draw: {reason}") from None

    def report(
        self,
        steps: Sequence[int] = (),
        other: Run | None = None,
        most_spans: int = 50_000,
        height: int = 800,
    ) -> "Report":
        """Return the report, which a notebook shows inline.

        Args:
            steps: Training steps that get a timeline; by default those with a finding, and the slowest.
            other: A second run to compare with.
            most_spans: The most spans of all timelines together; a notebook keeps them in its file.
            height: Of the report in the notebook, in pixels.

        Raises:
            LogError: One of `steps` does not exist.
            InstrumentError: The extra `report` is not installed.
        """
        try:
            from sglang_instrument.report.html.build import write_report
        except ModuleNotFoundError as missing:
            raise InstrumentError(f"report() needs {missing.name}: {install_extra('report')}") from missing
        with TemporaryDirectory() as folder:
            path = Path(folder, "report.html")
            write_report(self, path, other=other, steps=steps, most_spans=most_spans, version=__version__)
            return Report(path.read_text(encoding="utf-8"), height)

    @cached_property
    def _judged(self) -> Verdict:
        return judge(self)

    @cached_property
    def _findings(self) -> list[Finding]:
        return findings_with_changes(self, self._judged)

    @cached_property
    def _card(self) -> dict[str, str]:
        """What the card says, line by line: its heading first."""
        verdict = self._judged
        counts = {"step": len(self.steps), "worker": len(self.worker_ranks), "request": len(self.requests())}
        lines = {
            self.name: ", ".join(f"{n:,} {word}{'s' * (n != 1)}" for word, n in counts.items()),
            "verdict": verdict.sentence,
            "advice": verdict.advice,
            "log": self.health.sentence(),
            "next": _NEXT,
        }
        return {plain(name): plain(words) for name, words in lines.items() if words}

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {words}" for name, words in self._card.items())

    def _repr_html_(self) -> str:
        rows = (f"<div><b>{escape(name)}</b>: {escape(words)}</div>" for name, words in self._card.items())
        style = "border-left: 3px solid #8a94a3; padding-left: 10px; max-width: 60em; line-height: 1.5"
        return f'<div style="{style}">{"".join(rows)}</div>'


@dataclass(frozen=True)
class Report:
    """A report of a run, which a notebook shows inline.

    Attributes:
        html: The page, which needs no network and no server.
        height: Of the page in the notebook, in pixels.
    """

    html: str = field(repr=False)
    height: int = 800

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, and return its path."""
        path = Path(path)
        write_output(path, self.html.encode())
        return path

    def _repr_html_(self) -> str:
        # Without the base, the links of the page would lead to the notebook.
        page = self.html.replace("<head>", '<head><base href="about:srcdoc">', 1)
        style = f"width: 100%; height: {self.height}px; border: 0"
        return f'<iframe title="report" style="{style}" srcdoc="{escape(page)}"></iframe>'


def open_run(
    path: str | Path, progress: Progress | None = None, cached: bool = True, on: str | None = None
) -> NotebookRun:
    """Read the run in a folder.

    Args:
        path: The experiment's folder, or a folder that holds just one experiment. `FOLDER@RUN` opens an older
            run by its id; the begin of an id will do.
        progress: Called with the number of files read so far and the number of files to read.
        cached: Whether to use and write a cache in the folder (or in the user's cache folder).
        on: "ray" to read the files in Ray tasks on the nodes that hold them, or the address of a cluster in
            place of this machine's; None to read them on this machine.

    Raises:
        InstrumentError: There is no such cluster, or its nodes lack this package.
        LogError: There is no such folder or run, or it holds several experiments, no run, or no records yet.
    """
    return with_gateway_turns(NotebookRun.open(path, progress, cached, on))
