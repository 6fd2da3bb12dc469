"""Open a run: its log files and their digest, and what reads its records."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.executors.executor import Executor, Progress
from sglang_instrument.analysis.executors.logged_records import read_logged
from sglang_instrument.analysis.executors.on_ray import RayExecutor
from sglang_instrument.analysis.foreign.executor import ForeignExecutor
from sglang_instrument.analysis.reading.all_fields import STAMPS
from sglang_instrument.analysis.reading.chunks import as_marks, marked_lines, readable_lines
from sglang_instrument.analysis.reading.files import File, RunFiles, newest_run_filter
from sglang_instrument.analysis.reading.folders import Place
from sglang_instrument.analysis.reading.last_open import Ended, open_at_their_end, spoken
from sglang_instrument.analysis.reading.liveness import (
    Process,
    gone_without_a_word,
    is_over,
    last_words,
    names_of,
)
from sglang_instrument.analysis.run.batch_job import BatchJob
from sglang_instrument.analysis.run.digest_of_run import read_digest, read_files_alone
from sglang_instrument.analysis.run.health import Health
from sglang_instrument.analysis.run.logged_runs import describe_runs, find_run_id, split_run_id
from sglang_instrument.analysis.run.losses import count_unfit, health_of, used_runs
from sglang_instrument.analysis.run.other_logs import (
    local_executor,
    other_log,
    rows_of_other,
    tell_other,
    why_nothing,
)
from sglang_instrument.analysis.run.outside import only_in_steps
from sglang_instrument.analysis.run.pruned import PATHS, kept_table, pruned_words
from sglang_instrument.analysis.store.parts import OtherLog, is_dataset
from sglang_instrument.analysis.store.records import EARLIER_NAMES
from sglang_instrument.analysis.timing.nesting import nest
from sglang_instrument.analysis.timing.wall_time import split_wall_time
from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    from typing_extensions import Self

#: One step, some steps, or all (None).
Steps = int | Collection[int] | None


@dataclass(frozen=True, eq=False)
class Run:
    """A run, as its log files describe it.

    Attributes:
        executor: Reads its files: on this machine, or where they lie.
        files: Its log files and their control records.
        everything: Steps, requests, turns and barriers of the newest runs, with records outside of any step.
        cached: Whether tables may be cached in the folder.
        run_id: The run that was asked for by its id; None for the newest of each step.
        answers: What answers made of its files and will ask for again: `cached_tables`.
    """

    executor: Executor = field(repr=False)
    files: RunFiles = field(repr=False)
    everything: Digest = field(repr=False)
    cached: bool = True
    run_id: str | None = None
    answers: dict[object, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def open(
        cls,
        path: str | Path,
        progress: Progress | None = None,
        cached: bool = True,
        on: str | None = None,
        files_alone: bool = False,
    ) -> "Self":
        """Read the run in a folder; `analysis.open_run` says what it takes and raises.

        With `files_alone`, the digest may be empty: enough for questions about records.
        """
        below, run_id = split_run_id(Path(path))
        executor = local_executor(below) if on is None else RayExecutor(below, on)
        cached = cached and not isinstance(executor, ForeignExecutor)
        folder = executor.folder
        if files_alone and cached:
            files, digest = read_files_alone(executor, progress, run_id)
        else:
            files, digest = read_digest(executor, progress, cached, run_id)
        if not any(file.controls or any(file.records) for file in files):
            known = f"; `sglang-instrument status {folder}` says which processes were reached"
            hint = why_nothing(executor) or (known if (executor.home / "processes").is_dir() else "")
            raise LogError(f"{folder}: no records yet{_reason(health_of(files))}{hint}")
        return cls(executor, files, digest, cached, run_id and find_run_id(folder, files, run_id))

    @property
    def folder(self) -> Path:
        """The experiment's folder, as it was asked for."""
        return self.executor.folder

    @property
    def home(self) -> Path:
        """A folder of this machine with the descriptions of its processes, where its cache may lie."""
        return self.executor.home

    @cached_property
    def name(self) -> str:
        """The folder and, if several runs share it, which of them is shown: for the headers of tables."""
        which = describe_runs(self.files) if self.run_id is None else f"run {self.run_id}"
        return f"{self.folder} ({which})" if which else str(self.folder)

    @property
    def logs(self) -> str:
        """What to give to a command, or to `open_run`, to open the same again."""
        return str(self.folder) if self.run_id is None else f"{self.folder}@{self.run_id}"

    @cached_property
    def digest(self) -> Digest:
        """`everything` without records outside of steps; if the workers have no others, with them."""
        return only_in_steps(self.files, self.everything)

    @property
    def tells_requests(self) -> bool:
        """Whether a request is one of the trainer's; a bare server's log tells of its decoder's slots."""
        return self.other is None or self.other.tells_requests

    @cached_property
    def other(self) -> OtherLog | None:
        """What is to be known of another project's log, also of a dataset of it; None for a run of ours."""
        return other_log(self.executor)

    @cached_property
    def rows_of_other(self) -> pl.DataFrame:
        """All rows of another project's log, with the fields that only it has."""
        return rows_of_other(self.executor, lambda: self.read_records(texts=True))

    @property
    def health(self) -> Health:
        """What was left out, and why; of fields that only some answers read, as far as answers read them."""
        count_unfit(self._health, self.files)
        return self._health

    @cached_property
    def _health(self) -> Health:
        health = health_of(self.files)
        health.ignored += [] if is_dataset(self.home) else self.executor.list_others()
        if self.other is not None:
            tell_other(health, self.executor, self.other)
        health.ended_abruptly = names_of(self.gone)
        health.open_at_end = [spoken(span) for ended in self.open_at_end for span in ended.spans]
        return health

    @cached_property
    def gone(self) -> list[Process]:
        """The processes that are gone and did not close their logs."""
        runs = self.files.members(used_runs(self.files))
        return gone_without_a_word(self.home, last_words(self.files), runs, self.is_over)

    @cached_property
    def open_at_end(self) -> list[Ended]:
        """What was open in children that were killed, as far as they had reported it."""
        return open_at_their_end(self.files, self.gone)

    def demand_records(self, step: Steps, worker: int | None = None, validate: bool | None = None) -> None:
        """Raise LogError if an earlier version deleted records of these steps; None stands for all steps."""
        gone = [file for file in self.files_of(step, worker, validate) if not file.has_records]
        if gone:
            raise LogError(
                f"{self.folder}: {pruned_words(gone)}; summary, requests, turns, workers,"
                " lengths, gaps and the report still answer for them"
            )

    @cached_property
    def is_over(self) -> bool:
        """Whether no process writes to it any more, as far as this host can tell."""
        return is_over(self.home, self.files, self.files.members(used_runs(self.files)))

    @cached_property
    def pruned_steps(self) -> set[tuple[int, bool]]:
        """The steps, and whether each is validation, of which `prune` deleted records."""
        places = [file.place for file in self.files if not file.has_records and file.place is not None]
        return {(place.step, place.validate) for place in places if place.step is not None}

    @cached_property
    def records(self) -> pl.DataFrame:
        """All events in memory, with the columns of `reader.COLUMNS`; without control records."""
        return self.read_records()

    @cached_property
    def spans(self) -> pl.DataFrame:
        """All records that have a duration, nested; see `nesting.nest` and `wall_time.split_wall_time`."""
        return split_wall_time(nest(self.records))

    def read_records(
        self, step: Steps = None, worker: int | None = None, validate: bool | None = None, texts: bool = False
    ) -> pl.DataFrame:
        """Read records of some steps, one worker; None: of all. `texts` adds `all_fields.TEXT_COLUMNS`.

        Raises:
            LogError: A file cannot be read, or records of a step that was asked for were pruned.
        """
        files = self._log_of(step, worker, validate)
        reading = read_logged(self.executor.bring(files), self.home, files, with_extra=texts)
        for before, now in zip(files, reading.files, strict=True):
            if before.unreadable is None and now.unreadable is not None:
                raise LogError(f"{self.folder / now.path}: {now.unreadable}")
        counts = newest_run_filter(self.files)
        left_out = [
            number
            for number, source in enumerate(reading.sources)
            if not counts(reading.files[source.file], source.run_id)
        ]
        return reading.records.filter(~pl.col("source").is_in(left_out)).drop(STAMPS, strict=False)

    def read_spans(
        self, step: Steps = None, worker: int | None = None, validate: bool | None = None
    ) -> pl.DataFrame:
        """Return the nested spans of the files of some steps and one worker; None stands for all."""
        if step is worker is validate is None:
            return self.spans
        return split_wall_time(nest(self.read_records(step, worker, validate)))

    def read_events(
        self,
        step: Steps = None,
        worker: int | None = None,
        validate: bool | None = None,
        progress: Progress | None = None,
    ) -> pl.DataFrame:
        """Return all events of some steps and one worker, in a few columns; None stands for all.

        Returns:
            role, step, validate, worker, event, phase, duration_sec, without_nested_sec, steps_sec; instant
            events have null.
        """
        return self.read_tables("events", (), step, worker, validate, progress)

    def read_paths(self, step: Steps = None) -> pl.DataFrame:
        """Return `event_paths.path_sums` of the files of some steps, pruned ones too; None stands for all."""
        files = self.files_of(step)
        sums = self._tables_of([file for file in files if file.has_records], BatchJob("paths"), None)
        of_pruned = kept_table(self.home, files, PATHS)
        if of_pruned is None:
            return sums
        of_pruned = of_pruned.rename(EARLIER_NAMES, strict=False)
        return pl.concat([sums, self._newest(of_pruned, files)], how="diagonal")

    def event_times(self, events: Sequence[str], progress: Progress | None = None) -> pl.DataFrame:
        """Return how long events lasted by request, and outside of requests: `event_tables.event_times`."""
        self.demand_records(None)
        return self.read_tables("times", tuple(events), None, None, None, progress)

    def read_tables(
        self,
        name: str,
        names: tuple[str, ...],
        step: Steps,
        worker: int | None,
        validate: bool | None,
        progress: Progress | None,
    ) -> pl.DataFrame:
        """Return a table that `BatchJob` makes, of some steps and one worker; `names` as there."""
        files = self._log_of(step, worker, validate)
        return self._tables_of(files, BatchJob(name, names), progress)

    def _tables_of(self, files: list[File], job: BatchJob, progress: Progress | None) -> pl.DataFrame:
        read, tables = self.executor.read(files, job, progress)
        table = tables.get(job.tables)
        return self._newest(job.empty() if table is None else table, read)

    def _newest(self, table: pl.DataFrame, files: list[File]) -> pl.DataFrame:
        """Return the rows of newest runs, without the number of their source among `files`."""
        counts = newest_run_filter(self.files)
        runs = ((file, run_id) for file in files for run_id in file.runs)
        left_out = [number for number, (file, run_id) in enumerate(runs) if not counts(file, run_id)]
        return table.filter(~pl.col("source").is_in(left_out)).drop("source")

    def _log_of(self, step: Steps, worker: int | None, validate: bool | None) -> list[File]:
        """Return the files that can be read of some steps; of all steps (None), those that are there.

        Raises:
            LogError: Records of a step that was asked for were pruned.
        """
        if step is not None:
            self.demand_records(step, worker, validate)
        files = self.files_of(step, worker, validate)
        return [file for file in files if file.has_records]

    def read_marked(
        self, files: Sequence[File], names: Sequence[str]
    ) -> Iterator[tuple[File, Iterable[bytes]]]:
        """Yield each file with chunks of its lines, at least of those that hold one of these names in quotes.

        Without names, of all lines.
        """
        if names and self.executor.is_far:
            _, tables = self.executor.read(files, BatchJob("lines", tuple(names)))
            texts = tables["lines"].partition_by("source", as_dict=True) if tables else {}
            for number, file in enumerate(files):
                yield file, texts[number,]["text"] if (number,) in texts else ()
            return
        self.executor.bring(files)
        marks = as_marks(names)
        for file in files:
            chunks = self.read_lines(file)
            yield file, (marked_lines(chunk, marks) for chunk in chunks) if marks else chunks

    def read_lines(self, file: File) -> Iterator[bytes]:
        """Yield the text of a log file in chunks of whole lines, until an error that was reported before."""
        return readable_lines(self.executor.bring([file]) / file.path)

    def files_of(
        self, step: Steps = None, worker: int | None = None, validate: bool | None = None
    ) -> list[File]:
        """Return the files of some steps and one worker; None stands for all."""
        steps = [step] if isinstance(step, int) else step
        wanted = {"worker": worker, "validate": validate}
        return [file for file in self.files if _lies_in(file.place, steps, wanted)]

    @property
    def steps(self) -> list[int]:
        """Training steps, in order."""
        return self._sorted("step", ~pl.col("validate"))

    @property
    def worker_ranks(self) -> list[int]:
        """Ranks of the rollout workers, in order."""
        return self._sorted("worker", pl.col("role") == "worker")

    def _sorted(self, column: str, where: pl.Expr) -> list[int]:
        numbers: list[int] = self.digest.steps.filter(where)[column].unique().sort().to_list()
        return numbers


def _lies_in(
    place: Place | None, steps: Collection[int] | None, wanted: dict[str, int | bool | None]
) -> bool:
    if place is None or (steps is not None and place.step not in steps):
        return False
    return all(value is None or getattr(place, name) == value for name, value in wanted.items())


def _reason(health: Health) -> str:
    return f" ({health.sentence()})" if health.files or health.unreadable else ""
