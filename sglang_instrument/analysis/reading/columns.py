"""Turn decoded lines into typed columns, chunk by chunk, while a chunk is still in the processor's cache."""

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.reading.field_columns import FIELD_COLUMNS, FieldColumns, column_of
from sglang_instrument.analysis.reading.folders import Place
from sglang_instrument.analysis.reading.records.fields import (
    ColumnFields,
    SampleFields,
    all_typed,
    is_object,
    typed,
    where_rewards,
)
from sglang_instrument.analysis.reading.records.lines import NO_EXTRA, Line
from sglang_instrument.analysis.reading.records.unfit import UnfitFields
from sglang_instrument.analysis.reading.sample_facts import SAMPLE_EVENTS, facts_of
from sglang_instrument.analysis.reading.times import with_times
from sglang_instrument.schema import EVENTS, kind_of

#: Columns of the table of records. Times are microseconds since the Unix epoch, on the clock of the
#: worker's host; durations are seconds; `duration_sec` is null for an instant event. `source` numbers each
#: pair of file and run, `position` the records. `exact` says that the start was logged; where it was not, the
#: start is the timestamp minus the duration. `sample_facts` is `facts_of` an event in SAMPLE_EVENTS.
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
    "weight_version": pl.Int64,
    "first_weight_version": pl.Int64,
    "group": pl.String,
    "sample": pl.String,
    "resumed_tokens": pl.Int64,
    "verifications": pl.Int64,
    "agent": pl.String,
    "parent_request": pl.String,
    "sample_facts": pl.String,
    "source": pl.Int64,
    "position": pl.Int64,
    "exact": pl.Boolean,
}


#: Columns that a digest does not need.
NOT_IN_DIGEST: Final = frozenset({"active_sec", "device_sec", "tool", "position"})
# Where columns come from: keys of a line, fields of `extra`.
_KEYS: Final = ("start_us", "duration_sec", "task", "phase", "spawned_by", "error", "stamp")
_KEYS_OF_RECORDS: Final = ("active_sec", "device_sec")
_KINDS: Final = {**COLUMNS, "stamp": pl.String}
# Events whose fields a digest does not need: they are part of other work, or outside of requests.
_FIELDLESS: Final = frozenset(
    name
    for name, kind in EVENTS.items()
    if kind.phase not in ("request", "generate", "engine", "tool", "interaction", "environment", "reward")
    and name != "request_group"
)


#: What most lines of a file share: their source, and the keys `workid`, `step` and `validate`.
_Origin = tuple[int, int | None, int | None, bool | None]
_OF_ORIGINS: Final = ("source", "role", "worker", "step", "validate")


class Columns:
    """The columns of a table while lines are added: one Python list each."""

    def __init__(self, for_digest: bool = False) -> None:
        """Begin with no lines; `for_digest` leaves out what a digest does not need."""
        self._wanted = [name for name in COLUMNS if not (for_digest and name in NOT_IN_DIGEST)]
        self._for_digest = for_digest
        self._events: list[int] = []
        self._origins: list[int] = []
        self._keys: dict[str, list[Any]] = {
            name: [] for name in (_KEYS if for_digest else _KEYS + _KEYS_OF_RECORDS)
        }
        self._fields = FieldColumns({name: COLUMNS[name] for name in self._wanted if name in FIELD_COLUMNS})
        self._facts: dict[int, str] = {}  # by the number of the line
        self._codes: dict[str, int] = {}
        self._has_fields: list[bool] = []  # by the code of an event: whether a digest needs fields of it
        self._of_samples: set[int] = set()
        self._numbers: dict[_Origin, int] = {}

    def __len__(self) -> int:
        return len(self._events)

    def add(
        self,
        lines: Sequence[Line],
        source: int,
        all_ids: bool = False,
        unfit: UnfitFields | None = None,
    ) -> None:
        """Add lines of one source.

        Args:
            lines: The lines.
            source: Its number.
            all_ids: Whether a digest needs all ids of requests, not only those of calls.
            unfit: Where values are counted that fit no column.
        """
        # One comprehension per column: much faster than one loop over the lines.
        codes = self._codes_of([line.event for line in lines])
        if not self._of_samples.isdisjoint(codes):
            self._add_facts(lines, codes)
        self._events += codes
        self._origins += self._origins_of(lines, source)
        self._add_keys(lines)
        extras = [line.extra for line in lines]
        looked_at = self._which_fields(lines, codes, extras, all_ids)
        self._fields.add(looked_at, all_typed(list(compress(extras, looked_at)), ColumnFields, unfit))

    def _codes_of(self, names: list[str]) -> list[int]:
        """Return small numbers for event names, given out in order of first appearance."""
        try:
            return [self._codes[name] for name in names]
        except KeyError:  # some names are new
            for name in set(names) - self._codes.keys():
                self._codes[name] = len(self._codes)
            self._has_fields = [name not in _FIELDLESS for name in self._codes]
            self._of_samples = {code for name, code in self._codes.items() if name in SAMPLE_EVENTS}
        return [self._codes[name] for name in names]

    def _add_facts(self, lines: Sequence[Line], codes: Sequence[int]) -> None:
        for number, (line, code) in enumerate(zip(lines, codes, strict=True), len(self)):
            if code in self._of_samples and is_object(line.extra):
                self._facts[number] = facts_of(typed(line.extra, SampleFields))

    def _origins_of(self, lines: Sequence[Line], source: int) -> list[int]:
        """Return for each line the number of its origin; in most files all lines have the same."""
        first = lines[0]
        worker, step, validate = first.workid, first.step, first.validate
        if [
            1 for line in lines if line.workid != worker or line.step != step or line.validate is not validate
        ]:
            return [self._origin((source, line.workid, line.step, line.validate)) for line in lines]
        return [self._origin((source, worker, step, validate))] * len(lines)

    def _origin(self, origin: _Origin) -> int:
        return self._numbers.setdefault(origin, len(self._numbers))

    def _add_keys(self, lines: Sequence[Line]) -> None:
        lists = self._keys
        lists["start_us"] += [line.start_us for line in lines]
        lists["duration_sec"] += [line.duration_sec for line in lines]
        lists["task"] += [line.task for line in lines]
        lists["phase"] += [line.phase for line in lines]
        lists["spawned_by"] += [line.spawned_by for line in lines]
        lists["error"] += [line.error for line in lines]
        # With a start, the timestamp is not needed: leave it out to save time.
        lists["stamp"] += [line.timestamp if line.start_us is None else None for line in lines]
        if not self._for_digest:
            lists["active_sec"] += [line.active_sec for line in lines]
            lists["device_sec"] += [line.device_sec for line in lines]

    def _which_fields(
        self, lines: Sequence[Line], codes: Sequence[int], extras: Sequence[msgspec.Raw], all_ids: bool
    ) -> list[bool]:
        """Return for each of the lines added last whether to read its fields."""
        # Without tasks, request ids separate concurrent spans: then every id is needed.
        if not self._for_digest or all_ids or [True for line in lines if line.task is None]:
            return [extra is not NO_EXTRA for extra in extras]
        has_fields = self._has_fields
        wanted = [
            extra is not NO_EXTRA and has_fields[code] for extra, code in zip(extras, codes, strict=True)
        ]
        for number in [number for number, line in enumerate(lines) if line.phase is not None]:
            wanted[number] = extras[number] is not NO_EXTRA
        others = [number for number, is_wanted in enumerate(wanted) if not is_wanted]
        for index in where_rewards([extras[number] for number in others]):
            wanted[others[index]] = True
        return wanted

    def table(self, places: Sequence[Place], position: int) -> pl.DataFrame:
        """Return the columns, and `local`: whether the timestamp has no UTC offset.

        Args:
            places: The place of each source.
            position: The number of the first line.
        """
        raw = self._raw_table(places)
        table = with_times(raw).with_columns(position=pl.int_range(position, position + len(raw)))
        return table.select(*self._wanted, "local")

    def _raw_table(self, places: Sequence[Place]) -> pl.DataFrame:
        """Return the logged columns and those of the origins; without a logged phase, the vocabulary's."""
        codes = pl.Series(self._events, dtype=pl.UInt32)
        keys = [column_of(name, values, _KINDS[name]) for name, values in self._keys.items()]
        phase = keys.pop(_KEYS.index("phase"))
        usual = _gathered("phase", [kind_of(name).phase for name in self._codes], codes)
        if phase.null_count() == len(phase):
            phase = usual
        else:
            phase = pl.select(pl.coalesce(phase, usual)).to_series()
        return pl.DataFrame(
            [
                _gathered("event", list(self._codes), codes),
                phase,
                *keys,
                *self._fields.filled(),
                self._facts_column(),
                *_described(self._numbers, places)[pl.Series(self._origins, dtype=pl.UInt32)],
            ]
        )

    def _facts_column(self) -> pl.Series:
        none = pl.Series("sample_facts", [None], dtype=pl.String)
        nothing: pl.Series = none.new_from_index(0, len(self))
        if not self._facts:
            return nothing
        return nothing.scatter(list(self._facts), pl.Series(list(self._facts.values()), dtype=pl.String))


def _gathered(name: str, words: list[str], codes: pl.Series) -> pl.Series:
    return pl.Series(name, words, dtype=pl.Categorical).gather(codes)


def _described(origins: Iterable[_Origin], places: Sequence[Place]) -> pl.DataFrame:
    """Return where the records of each origin belong: by their own keys, else by the name of their file."""
    rows = [
        {
            "source": source,
            "role": places[source].role,
            "worker": places[source].worker if worker is None else worker,
            "step": places[source].step if step is None else step,
            "validate": bool(validate) or places[source].validate,
        }
        for source, worker, step, validate in origins
    ]
    return pl.DataFrame(rows, schema={name: COLUMNS[name] for name in _OF_ORIGINS}, orient="row")
