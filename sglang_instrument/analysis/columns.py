"""Turn decoded lines into typed columns, chunk by chunk, while a chunk is still in the processor's cache."""

from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import compress
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.lines import Extra, Line
from sglang_instrument.analysis.places import Place
from sglang_instrument.schema import EVENTS, kind_of

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
_OFFSET: Final = r"(Z|[+-]\d\d:?\d\d)$"


#: What a digest does not look at.
_CLOSER: Final = frozenset({"active_sec", "device_sec", "tool", "position"})
_DERIVED: Final = frozenset({"role", "end_us", "position", "exact"})  # of a file's name, or of other columns
_OF_FIELDS: Final = ("request_id", "turn", "turns", "finish_reason", "reward", "response_tokens", "tool")
_OF_LINES: Final = (*(name for name in COLUMNS if name not in {*_DERIVED, *_OF_FIELDS}), "stamp")
# Events whose fields a digest does not look at: they are part of something else, or of no request.
_FIELDLESS: Final = frozenset(
    name
    for name, kind in EVENTS.items()
    if kind.phase not in ("request", "generate", "engine", "tool", "interaction", "reward")
)


class Columns:
    """Columns in the making: a list each, of what was read of the lines."""

    def __init__(self, thin: bool = False) -> None:
        """Begin; `thin` leaves out what no digest looks at."""
        self._wanted = [name for name in COLUMNS if not (thin and name in _CLOSER)]
        self._thin = thin
        self._read: dict[str, list[Any]] = {name: [] for name in _OF_LINES}
        self._fields: dict[str, list[Any]] = {name: [] for name in _OF_FIELDS if name in self._wanted}
        self._looked_at: list[bool] = []  # whether the fields of a line are among these
        self._codes: dict[str, int] = {}
        self._fieldless: set[int] = set()

    def __len__(self) -> int:
        return len(self._read["event"])

    def add(self, lines: Sequence[Line], source: int) -> None:
        """Take lines of one source."""
        # One comprehension a column: a good deal faster than anything that goes over the lines once.
        read = self._read
        codes = self._codes_of([line.event for line in lines])
        read["event"] += codes
        read["source"] += [source] * len(lines)
        read["phase"] += [line.phase for line in lines]
        read["worker"] += [line.workid for line in lines]
        read["step"] += [line.step for line in lines]
        read["validate"] += [line.validate for line in lines]
        read["start_us"] += [line.start_us for line in lines]
        read["duration_sec"] += [line.duration_sec for line in lines]
        read["task"] += [line.task for line in lines]
        read["spawned_by"] += [line.spawned_by for line in lines]
        read["error"] += [line.error for line in lines]
        # Where there is a start the timestamp is not needed, and costs time.
        read["stamp"] += [line.timestamp if line.start_us is None else None for line in lines]
        if not self._thin:
            read["active_sec"] += [line.active_sec for line in lines]
            read["device_sec"] += [line.device_sec for line in lines]
        looked_at = self._which_fields(lines, codes)
        self._looked_at += looked_at
        self._add_fields([line.extra for line in compress(lines, looked_at)])

    def _codes_of(self, names: list[str]) -> list[int]:
        """Return events as small numbers, in the order in which they first came."""
        for name in set(names) - self._codes.keys():
            if name in _FIELDLESS:
                self._fieldless.add(len(self._codes))
            self._codes[name] = len(self._codes)
        return [self._codes[name] for name in names]

    def _add_fields(self, fields: Sequence[Any]) -> None:
        read = self._fields
        read["request_id"] += [one.request_id for one in fields]
        read["turn"] += [one.turn for one in fields]
        read["turns"] += [one.turns for one in fields]
        read["finish_reason"] += [one.finish_reason for one in fields]
        read["reward"] += [one.reward for one in fields]
        read["response_tokens"] += [_response_tokens(one) for one in fields]
        if not self._thin:
            read["tool"] += [one.tool for one in fields]

    def _which_fields(self, lines: Sequence[Line], codes: Sequence[int]) -> list[bool]:
        """Return for each of the lines that were added last whether its fields are looked at."""
        tasks, phases = (self._read[name][-len(lines) :] for name in ("task", "phase"))
        # Without tasks, requests tell apart what ran side by side: then all their ids are needed.
        if not self._thin or None in tasks or phases.count(None) < len(lines):
            return [line.extra is not None for line in lines]
        fieldless = self._fieldless
        return [
            line.extra is not None and (code not in fieldless or line.extra.reward is not None)
            for line, code in zip(lines, codes, strict=True)
        ]

    def table(self, places: Sequence[Place], position: int) -> pl.DataFrame:
        """Return the columns, and `local`: whether a time has no offset.

        Args:
            places: Of each source.
            position: Number of the first line.
        """
        own = self._own()
        table = pl.concat([own, _belonging(places)[own["source"]]], how="horizontal")
        table = _with_times(table).with_columns(
            worker=pl.coalesce("worker", "of_worker"),
            step=pl.coalesce("step", "of_step"),
            validate=pl.col("validate").fill_null(False) | pl.col("of_validate"),
            position=pl.int_range(position, position + len(table)),
        )
        return table.select(*self._wanted, "local")

    def _own(self) -> pl.DataFrame:
        """Return what the lines themselves say; where one names no phase, the vocabulary does."""
        codes = pl.Series(self._read["event"], dtype=pl.UInt32)
        phase = _gathered("phase", [kind_of(name).phase for name in self._codes], codes)
        named = pl.Series(self._read["phase"], dtype=pl.Categorical)
        if named.null_count() < len(named):
            phase = pl.select(pl.coalesce(named.alias("phase"), phase)).to_series()
        kinds = {**COLUMNS, "stamp": pl.String}
        plain = [name for name, values in self._read.items() if name not in ("event", "phase") and values]
        return pl.DataFrame(
            [
                _gathered("event", list(self._codes), codes),
                phase,
                *(_series(name, self._read[name], kinds[name]) for name in plain),
                *self._spread_fields(),
            ]
        )

    def _spread_fields(self) -> list[pl.Series]:
        """Return the columns of fields, with nulls for the lines whose fields are not looked at."""
        ids = self._fields["request_id"]
        if int in set(map(type, ids)):
            self._fields["request_id"] = [one if one is None else str(one) for one in ids]
        number = pl.int_range(len(ids), dtype=pl.UInt32, eager=True)
        rows = pl.Series(self._looked_at, dtype=pl.Boolean).arg_true()
        of_line = pl.repeat(None, len(self), dtype=pl.UInt32, eager=True).scatter(rows, number)
        return [_series(name, values, COLUMNS[name]).gather(of_line) for name, values in self._fields.items()]


def _gathered(name: str, words: list[str], codes: pl.Series) -> pl.Series:
    return pl.Series(name, words, dtype=pl.Categorical).gather(codes)


def _series(name: str, values: list[Any], kind: Any) -> pl.Series:
    """Return a column; one that holds the same everywhere, as many do, costs next to nothing."""
    if values and values[0] == values[-1] and values.count(values[0]) == len(values):
        same: pl.Series = pl.Series(name, values[:1], dtype=kind).new_from_index(0, len(values))
        return same
    return pl.Series(name, values, dtype=kind)


def _belonging(places: Sequence[Place]) -> pl.DataFrame:
    """Return what the file of each source says that its records belong to."""
    return pl.DataFrame(
        {
            "role": [place.role for place in places],
            "of_worker": [place.worker for place in places],
            "of_step": [place.step for place in places],
            "of_validate": [place.validate for place in places],
        },
        schema={
            "role": pl.Categorical,
            "of_worker": pl.Int64,
            "of_step": pl.Int64,
            "of_validate": pl.Boolean,
        },
    )


def _response_tokens(extra: Extra) -> int | None:
    """Return the tokens that the model wrote; `response_length` also counts replies of tools."""
    tokens = extra.actual_response_tokens
    if type(tokens) is not int:
        tokens = extra.generated_tokens if extra.completion_tokens is None else extra.completion_tokens
    return extra.response_length if tokens is None else tokens


def _with_times(table: pl.DataFrame) -> pl.DataFrame:
    """Fill in start and end; all rounded down, so that what follows never starts before this ends."""
    span_us = (pl.col("duration_sec").fill_null(0.0) * 1e6).cast(pl.Int64)
    exact = pl.col("start_us").is_not_null()
    if table["stamp"].null_count() == len(table):
        return table.with_columns(end_us=pl.col("start_us") + span_us, exact=exact, local=pl.lit(False))
    return table.with_columns(
        stamp_us=_stamps_us(table["stamp"]),
        local=pl.col("stamp").is_not_null() & ~pl.col("stamp").str.contains(_OFFSET),
        exact=exact,
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
    return found.scatter(rows, [epoch_us(stamp) for stamp in stamps.gather(rows)])


def epoch_us(timestamp: str) -> int | None:
    """Return a timestamp as microseconds since the epoch; one without an offset is taken as UTC."""
    try:
        moment = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return round(moment.timestamp() * 1e6)
