"""Keep what the reader found out about one log file: its control records, and what it could not read."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Final

import msgspec

from sglang_instrument.analysis.reading.folders import Place, place_at
from sglang_instrument.analysis.reading.launches import Launch, launches_in
from sglang_instrument.analysis.reading.records.fields import ControlFields
from sglang_instrument.analysis.reading.records.unfit import UnfitFields
from sglang_instrument.schema import EVENTS, LOG_CLOSED, LOG_OPENED, STEP_CLOSED

#: Events and keys that most files lack, of which some answers look for every line.
TRACKED: Final = frozenset(
    {name for name, kind in EVENTS.items() if kind.phase == "weights" or name.startswith("scheduler_")}
    | {"engine_request", "engine_stream", "engine_tokenize", "engine_detokenize", "server_generate"}
    | {"generation_drain", "weights_pull", "weights_process", "weights_version", "engine_cache_flush"}
    | {"server_wait", "rid", "rids"}
)


class Control(msgspec.Struct, omit_defaults=True):
    """A control record, or the record of a blocked event loop with its stack."""

    event: str
    run_id: str | None
    time_us: int
    extra: ControlFields
    duration_sec: float | None = None


class Range(msgspec.Struct, omit_defaults=True):
    """The bytes of a log file that are read, where parts of the store hold those before.

    Attributes:
        begin: The first of them, which begins a line.
        end: The first one after them; None for the end of the file.
        opened: The last `log_opened` before them.
        parts: The folders of the parts that hold what lies before, in order.
    """

    begin: int = 0
    end: int | None = None
    opened: Control | None = None
    parts: list[str] = []

    @property
    def run_id(self) -> str | None:
        """The run that wrote the line before."""
        return None if self.opened is None else self.opened.run_id


class File(msgspec.Struct, omit_defaults=True):
    """One log file.

    Attributes:
        path: The path below the run's folder, with slashes.
        size: Its bytes on disk when it was read.
        mtime_ns: Its modification time.
        runs: Ids of the runs that wrote records to it, in order; None stands for records before any header.
        records: The number of records of each of these runs.
        controls: Its control records.
        headerless: Whether it has no `log_opened`.
        torn, foreign, local_times: As in `Health`.
        unreadable: Why the file, or the rest of it, could not be read.
        tracked: Those of `TRACKED` that its lines hold; None if not known.
        pruned_us: When `prune` deleted it and kept its digest, in Unix microseconds; None if it is there.
        part: The folder below the run's in which `prune` keeps all that it held; None if it is there, or if
            only its digest was kept, as earlier versions did.
        inode: Its number on the disk; 0 if not known, as of files on other nodes.
        range: Which of its bytes are read; None for all.
        unfit: Values of its records that fit no column.
    """

    path: str
    size: int
    mtime_ns: int
    runs: list[str | None] = []
    records: list[int] = []
    controls: list[Control] = []
    headerless: bool = False
    torn: int = 0
    foreign: int = 0
    local_times: int = 0
    unreadable: str | None = None
    tracked: list[str] | None = None
    pruned_us: int | None = None
    part: str | None = None
    inode: int = 0
    range: Range | None = None
    unfit: UnfitFields = {}

    def may_hold(self, names: Iterable[str]) -> bool:
        """Return whether a line may hold one of these events or keys."""
        if self.tracked is None:
            return True
        return any(name in self.tracked or name not in TRACKED for name in names)

    @property
    def has_records(self) -> bool:
        """Whether its records can be read: in the log, or in what `prune` kept of it."""
        return self.pruned_us is None or self.part is not None

    @property
    def place(self) -> Place | None:
        """Where its records belong, by its name; None if the name does not tell."""
        return place_at(self.path)

    @property
    def folder(self) -> str:
        """The name of the folder that it is in, such as "step_12"."""
        return self.path.partition("/")[0]


class Newest(dict[str, str | None]):
    """The newest run of each folder; of a launch whose ranks made several ids, the first.

    Attributes:
        launches: By each other id of such a launch, its first one.
    """

    launches: Mapping[str, str] = {}

    def counts(self, folder: str, run_id: str | None) -> bool:
        """Return whether records of this run in this folder count; those of no run do."""
        return run_id is None or self.launches.get(run_id, run_id) == self.get(folder)

    def of_folders(self, folders: Iterable[str]) -> "Newest":
        """Return the newest runs of some folders alone."""
        some = Newest({folder: self.get(folder) for folder in folders})
        some.launches = self.launches
        return some


class RunFiles(tuple[File, ...]):
    """The log files of a run. What many answers ask of all of them is found out once."""

    @cached_property
    def newest(self) -> Newest:
        """`newest_runs` of the files."""
        newest = Newest(_newest_runs(self))
        newest.launches = self.launches
        return newest

    @cached_property
    def all_launches(self) -> list[Launch]:
        """The launches that wrote the files, the oldest first."""
        return launches_in(self)

    @cached_property
    def begins(self) -> dict[str, int]:
        """When each launch wrote its first header, in Unix microseconds; the oldest one first.

        The order is that of the headers in files that launches share; otherwise, that of the times.
        """
        begun: dict[str, int] = {}
        late_us: dict[str, int] = {}
        for _, header in _headers(self):
            if header.run_id is not None:
                run_id = self.launch_of(header.run_id)
                begun[run_id] = min(header.time_us, begun.get(run_id, header.time_us))
                late_us[run_id] = max(late_us.get(run_id, 0), self.late_us.get(header.run_id, 0))
        return dict(sorted(begun.items(), key=lambda launch: launch[1] + late_us[launch[0]]))

    @cached_property
    def late_us(self) -> Mapping[str, int]:
        """By run, how many microseconds its clock lies at least behind that of runs before it.

        A run whose header follows another run in a file began later, whatever their clocks say.
        """
        late: dict[str, int] = {}
        shared = [file for file in self if is_shared(file)]
        runs = {control.run_id for file in shared for control in file.controls}
        for _ in runs:  # a correction may make another one necessary
            before = dict(late)
            for file in shared:
                latest_us = 0
                for control in file.controls:
                    run_id = control.run_id or ""
                    if control.event == LOG_OPENED and (behind := latest_us - control.time_us) > 0:
                        late[run_id] = max(late.get(run_id, 0), behind)
                    latest_us = max(latest_us, control.time_us + late.get(run_id, 0))
            if late == before:
                break
        return late

    @cached_property
    def launches(self) -> Mapping[str, str]:
        """By each id of a run that is part of another one's launch, the id of that launch."""
        return {run: launch.run_id for launch in self.all_launches for run in launch.runs[1:]}

    def members(self, launches: Collection[str]) -> set[str]:
        """Return the ids of all runs of these launches."""
        return {*launches, *(run for run, launch in self.launches.items() if launch in launches)}

    def launch_of(self, run_id: str | None) -> str:
        """Return the id of the launch that a run is part of."""
        return "" if run_id is None else self.launches.get(run_id, run_id)

    @cached_property
    def controls(self) -> dict[str, list[tuple[File, Control]]]:
        """By event, the control records that newest runs wrote, each with its file, in the order of files."""
        by_event: dict[str, list[tuple[File, Control]]] = {}
        for file in self:
            for control in file.controls:
                if self.newest.counts(file.folder, control.run_id):
                    by_event.setdefault(control.event, []).append((file, control))
        return by_event

    @cached_property
    def ended(self) -> set[str]:
        """`ended_paths` of the files."""
        ended = {file.path for file, _ in controls_of(self, STEP_CLOSED)}
        may_have_ended = {file.path: file for file, _ in controls_of(self, LOG_CLOSED)}
        for path, file in may_have_ended.items():
            counted = [
                control for control in file.controls if self.newest.counts(file.folder, control.run_id)
            ]
            events = [control.event for control in counted if control.event in (LOG_OPENED, LOG_CLOSED)]
            if events[-1] == LOG_CLOSED:
                ended.add(path)
        return ended

    @staticmethod
    def of(files: Sequence[File]) -> "RunFiles":
        """Return these files, with what is known of them."""
        return files if isinstance(files, RunFiles) else RunFiles(files)

    @staticmethod
    def part(files: Sequence[File], newest: Newest) -> "RunFiles":
        """Return some files of a run; `newest` is that of all of its files, which these may not tell."""
        some = RunFiles(files)
        some.newest, some.launches = newest, newest.launches
        return some


def only_run(files: Sequence[File], run_id: str) -> list[File]:
    """Return the files that one launch wrote to, without what others wrote to them."""
    files = RunFiles.of(files)
    runs = files.members({files.launch_of(run_id)})
    written = [file for file in files if not runs.isdisjoint(control.run_id for control in file.controls)]
    return [_only_of(file, runs.__contains__) for file in written]


def only_newest(files: Sequence[File], newest: Newest) -> list[File]:
    """Return files without what runs other than the `newest` of their folder wrote to them."""
    return [_only_of(file, partial(newest.counts, file.folder)) for file in files]


def _only_of(file: File, counts: Callable[[str | None], bool]) -> File:
    """Return a file without what other runs wrote to it; None stands for records before any header."""
    wrote = [number for number, run_id in enumerate(file.runs) if counts(run_id)]
    return msgspec.structs.replace(
        file,
        runs=[file.runs[number] for number in wrote],
        records=[file.records[number] for number in wrote],
        controls=[control for control in file.controls if counts(control.run_id)],
    )


def newest_runs(files: Sequence[File]) -> Newest:
    """Return for each folder the id of its newest run: the one with the latest header there.

    A run that begins at step 3 replaces all later steps of older runs, also those that it has not reached
    yet: the folders of these steps are left out. It does not replace earlier ones: the workers of an
    asynchronous trainer write to step 0 until they know the version of the weights.
    """
    return RunFiles.of(files).newest


def _newest_runs(files: RunFiles) -> dict[str, str | None]:
    newest: dict[str, tuple[int, str | None]] = {}
    first_steps = _first_steps(files)
    for file, header in _headers(files):
        run_id = header.run_id and files.launch_of(header.run_id)
        if not _is_of_other(file, header, run_id, first_steps):
            before = newest.get(file.folder)
            time_us = header.time_us + files.late_us.get(header.run_id or "", 0)
            if before is None or time_us >= before[0]:
                newest[file.folder] = (time_us, run_id)
    return {folder: run_id for folder, (_, run_id) in newest.items()}


def _first_steps(files: RunFiles) -> dict[str, int]:
    """Return the first training step of each run, the oldest run first; {} if there is only one run.

    It is the first of the trainer's, where the trainer logs.
    """
    begun = files.begins
    if len(begun) < 2:
        return {}
    trainers = [file for file in files if file.place and file.place.role == "trainer"]
    first = {**_first_bound(files, files.launch_of), **_first_bound(trainers, files.launch_of)}
    return {run_id: first[run_id] for run_id in begun if run_id in first}


def _first_bound(files: Sequence[File], launch_of: Callable[[str | None], str]) -> dict[str, int]:
    """Return the first training step of each run among these files."""
    first: dict[str, int] = {}
    for file, header in _headers(files):
        place = file.place
        if place is None or place.step is None or place.validate or not _binds_step(place, header):
            continue
        run_id = launch_of(header.run_id)
        first[run_id] = min(place.step, first.get(run_id, place.step))
    return first


def _headers(files: Iterable[File]) -> Iterator[tuple[File, Control]]:
    """Yield the headers of files, each with its file."""
    return ((file, control) for file in files for control in file.controls if control.event == LOG_OPENED)


def _binds_step(place: Place, control: Control) -> bool:
    """Return whether a header is that of a step: records without one are in the folder of step 0, too."""
    return place.step is not None and (place.step > 0 or control.extra.step_bound is True)


def _is_of_other(file: File, header: Control, run_id: str | None, first_steps: dict[str, int]) -> bool:
    """Return whether a later run began at the step of a file, or before it; or this one after it."""
    if file.place is None or file.place.step is None or run_id not in first_steps:
        return False
    if file.place.step < first_steps[run_id] and _binds_step(file.place, header):
        return True
    runs = list(first_steps)
    return any(first_steps[later] <= file.place.step for later in runs[runs.index(run_id) + 1 :])


def newest_run_filter(files: Sequence[File]) -> Callable[[File, str | None], bool]:
    """Return a function (file, run id) that is true for records of the newest run, or of no run."""
    newest = newest_runs(files)
    return lambda file, run_id: newest.counts(file.folder, run_id)


def controls_of(files: Sequence[File], event: str) -> list[tuple[File, Control]]:
    """Return the control records of one kind that newest runs wrote, in the order of their files."""
    return RunFiles.of(files).controls.get(event, [])


def is_shared(file: File) -> bool:
    """Return whether several runs wrote records to a file."""
    return len(set(file.runs)) > 1


def ended_paths(files: Sequence[File]) -> set[str]:
    """Return the paths of files whose step was closed, or whose log was closed after its last opening."""
    return RunFiles.of(files).ended
