"""Read log files into one table of typed columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.chunks import open_log, whole_lines
from sglang_instrument.analysis.files import LOOP_BLOCK, Control, File
from sglang_instrument.analysis.lines import Extra, Line, Rejects, decode
from sglang_instrument.analysis.places import Place
from sglang_instrument.errors import LogError
from sglang_instrument.schema import CONTROL_EVENTS, LOG_OPENED, kind_of

#: Columns of the table of records. Times are microseconds since the Unix epoch, on the clock of the
#: worker's host; durations are seconds; `duration_sec` is null for a point event. `source` numbers what one
#: run wrote to one file, and `position` its records. `exact` says that the start was logged; where it was
#: not, the end is exact and the start is the end minus the duration.
COLUMNS: Final[dict[str, Any]] = {
    "event": pl.Categorical,
    "phase": pl.Categorical,
    "role": pl.Categorical,
    "worker": pl.Int64,
    "step": pl.Int64,
    "validate": pl.Boolean,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "duration_sec": pl.Float64,
    "request_id": pl.String,
    "turn": pl.Int64,
    "task": pl.Int64,
    "spawned_by": pl.Int64,
    "active_sec": pl.Float64,
    "device_sec": pl.Float64,
    "error": pl.Categorical,
    "turns": pl.Int64,
    "finish_reason": pl.Categorical,
    "response_tokens": pl.Int64,
    "reward": pl.Float64,
    "tool": pl.Categorical,
    "source": pl.Int64,
    "position": pl.Int64,
    "exact": pl.Boolean,
}
_STRETCH: Final = 100_000  # lines that are turned into columns at once; bounds the memory of Python's objects
_NOTHING: Final = Extra()
_STAMP_LENGTH: Final = len("2026-01-05T08:00:01.500000+00:00")
_OFFSET: Final = r"(Z|[+-]\d\d:?\d\d)$"


@dataclass
class Source:
    """What one run wrote to one file."""

    place: Place
    file: int
    run_id: str | None


@dataclass
class Reading:
    """Some files as they were read: `records` with `COLUMNS`, whose `source` is an index of `sources`."""

    files: list[File] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    tables: list[pl.DataFrame] = field(default_factory=list)

    @property
    def records(self) -> pl.DataFrame:
        """All records read."""
        return pl.concat(self.tables) if self.tables else pl.DataFrame(schema=COLUMNS)


def read_files(folder: Path, files: Sequence[File], points: bool = True) -> Reading:
    """Read files of a run's folder; what cannot be read is noted in them, and costs no other file.

    Args:
        folder: The run's folder.
        files: Files in it.
        points: Whether records without a duration are wanted. If not, most are counted and left out.
    """
    reading = Reading()
    stretch = _Stretch(reading, points)
    for listed in files:
        file = File(listed.path, listed.size, listed.mtime_ns)
        reading.files.append(file)
        place = file.place
        if place is None:
            continue
        rejects = Rejects()
        try:
            _read_file(folder / file.path, place, file, rejects, stretch)
        except (OSError, EOFError, LogError) as error:
            file.unreadable = str(error)
        file.headerless = not any(control.event == LOG_OPENED for control in file.controls)
        file.torn, file.foreign = rejects.torn, file.foreign + rejects.foreign
    stretch.close()
    return reading


def _read_file(path: Path, place: Place, file: File, rejects: Rejects, stretch: "_Stretch") -> None:
    run_id = None
    with open_log(path) as stream:
        for chunk in whole_lines(stream):
            lines = decode(chunk, rejects)
            begun = 0
            for at in [at for at, line in enumerate(lines) if line.event in _APART]:
                line = lines[at]
                if line.event == LOG_OPENED:
                    stretch.add(lines[begun:at], place, file, run_id)
                    run_id = line.extra.run_id if line.extra else None
                    begun = at + 1
                file.controls.append(_control(line, run_id))
            stretch.add(lines[begun:], place, file, run_id)


def _control(line: Line, run_id: str | None) -> Control:
    time_us = _epoch_us(line.timestamp) or 0
    return Control(line.event, run_id, time_us, line.extra or _NOTHING, line.duration_sec)


_APART: Final = CONTROL_EVENTS | {LOOP_BLOCK}


class _Stretch:
    """Lines that wait to be turned into columns, and whose they are."""

    def __init__(self, reading: Reading, points: bool) -> None:
        self._reading = reading
        self._points = points
        self._lines: list[Line] = []
        self._sources: list[int] = []
        self._numbers: dict[tuple[int, str | None], int] = {}
        self._position = 0

    def add(self, lines: list[Line], place: Place, file: File, run_id: str | None) -> None:
        """Take lines of one run in a file, control records left out."""
        lines = [line for line in lines if line.event not in CONTROL_EVENTS]
        if not lines:
            return
        index = len(self._reading.files) - 1
        source = self._numbers.get((index, run_id))
        if source is None:
            source = self._numbers[index, run_id] = len(self._reading.sources)
            self._reading.sources.append(Source(place, index, run_id))
            file.runs.append(run_id)
            file.records.append(0)
        if not self._points:
            wanted = [line for line in lines if line.duration_sec is not None or not _is_plain_point(line)]
            file.records[file.runs.index(run_id)] += len(lines) - len(wanted)
            lines = wanted
        self._lines += lines
        self._sources += [source] * len(lines)
        if len(self._lines) >= _STRETCH:
            self.close()

    def close(self) -> None:
        """Turn what waits into a table."""
        if self._lines:
            table = _table(self._lines, self._sources, self._reading.sources, self._position)
            self._position += len(self._lines)
            self._lines, self._sources = [], []
            self._reading.tables.append(self._count(table))

    def _count(self, table: pl.DataFrame) -> pl.DataFrame:
        """Count the rows of each file, and leave out those without a time."""
        timeless = pl.col("start_us").is_null()
        counts = table.group_by("source").agg(pl.len(), timeless=timeless.sum(), local=pl.col("local").sum())
        for number, records, without, local in counts.iter_rows():
            source = self._reading.sources[number]
            file = self._reading.files[source.file]
            file.records[file.runs.index(source.run_id)] += records - without
            file.foreign += without
            file.local_times += local
        return table.filter(~timeless).select(list(COLUMNS))


def _is_plain_point(line: Line) -> bool:
    """Return whether a record without a duration tells only that it was: no reward, no odd time."""
    plain = line.extra is None or line.extra.reward is None
    return plain and len(line.timestamp) == _STAMP_LENGTH and line.timestamp[-6:-5] in "+-"


def _table(lines: list[Line], numbers: list[int], sources: list[Source], position: int) -> pl.DataFrame:
    own = pl.DataFrame(
        {**_own_columns(lines), **_extra_columns(lines), "source": numbers},
        schema_overrides={**COLUMNS, "phase": pl.String, "stamp": pl.String},
    ).with_columns(position=pl.int_range(position, position + len(lines)))
    events = own["event"].unique()
    phases = pl.DataFrame(
        {"event": events, "usual": [kind_of(event).phase for event in events.cast(pl.String)]}
    )
    places = pl.DataFrame(
        {
            "role": [source.place.role for source in sources],
            "of_worker": [source.place.worker for source in sources],
            "of_step": [source.place.step for source in sources],
            "of_validate": [source.place.validate for source in sources],
        },
        schema={
            "role": pl.Categorical,
            "of_worker": pl.Int64,
            "of_step": pl.Int64,
            "of_validate": pl.Boolean,
        },
    )
    own = own.join(phases, on="event", how="left", maintain_order="left")
    own = pl.concat([own, places[own["source"]]], how="horizontal")
    own = own.with_columns(
        phase=pl.coalesce("phase", "usual").cast(pl.Categorical),
        worker=pl.coalesce("worker", "of_worker"),
        step=pl.coalesce("step", "of_step"),
        validate=pl.col("validate").fill_null(False) | pl.col("of_validate"),
        exact=pl.col("start_us").is_not_null(),
    )
    return _with_times(own)


def _own_columns(lines: list[Line]) -> dict[str, Any]:
    return {
        "event": [line.event for line in lines],
        "phase": [line.phase for line in lines],
        "worker": [line.workid for line in lines],
        "step": [line.step for line in lines],
        "validate": [line.validate for line in lines],
        "start_us": [line.start_us for line in lines],
        "duration_sec": [line.duration_sec for line in lines],
        "task": [line.task for line in lines],
        "spawned_by": [line.spawned_by for line in lines],
        "active_sec": [line.active_sec for line in lines],
        "device_sec": [line.device_sec for line in lines],
        "error": [line.error for line in lines],
        # Where there is a start the timestamp is not needed, and costs time.
        "stamp": [line.timestamp if line.start_us is None else None for line in lines],
    }


def _extra_columns(lines: list[Line]) -> dict[str, Any]:
    extras = [line.extra or _NOTHING for line in lines]
    ids = [extra.request_id for extra in extras]
    return {
        "request_id": [one if one is None or type(one) is str else str(one) for one in ids],
        "turn": [extra.turn for extra in extras],
        "turns": [extra.turns for extra in extras],
        "finish_reason": [extra.finish_reason for extra in extras],
        "response_tokens": list(_response_tokens(extras)),
        "reward": [extra.reward for extra in extras],
        "tool": [extra.tool for extra in extras],
    }


def _response_tokens(extras: list[Extra]) -> Iterator[int | None]:
    """Yield the tokens that the model wrote; `response_length` also counts replies of tools."""
    for extra in extras:
        tokens = extra.actual_response_tokens
        if type(tokens) is not int:
            tokens = extra.generated_tokens if extra.completion_tokens is None else extra.completion_tokens
        yield extra.response_length if tokens is None else tokens


def _with_times(table: pl.DataFrame) -> pl.DataFrame:
    """Fill in start and end; all rounded down, so that what follows never starts before this ends."""
    span_us = (pl.col("duration_sec").fill_null(0.0) * 1e6).cast(pl.Int64)
    return table.with_columns(
        stamp_us=_stamps_us(table["stamp"]),
        local=pl.col("stamp").is_not_null() & ~pl.col("stamp").str.contains(_OFFSET),
    ).with_columns(
        start_us=pl.coalesce("start_us", pl.col("stamp_us") - span_us),
        end_us=pl.coalesce(pl.col("start_us") + span_us, "stamp_us"),
    )


def _stamps_us(stamps: pl.Series) -> pl.Series:
    """Return timestamps as microseconds since the epoch; null where they are none."""
    usual = stamps.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%:z", time_unit="us", time_zone="UTC", strict=False)
    found = usual.dt.epoch("us")
    odd = found.is_null() & stamps.is_not_null()
    if not odd.any():
        return found
    rows = odd.arg_true()
    return found.scatter(rows, [_epoch_us(stamp) for stamp in stamps.gather(rows)])


def _epoch_us(timestamp: str) -> int | None:
    """Return a timestamp as microseconds since the epoch; one without an offset is taken as UTC."""
    try:
        moment = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return round(moment.timestamp() * 1e6)
