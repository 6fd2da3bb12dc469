"""Give what a foreign log holds the columns of our own records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.reading.columns import COLUMNS
from sglang_instrument.analysis.reading.records.decoding import printable
from sglang_instrument.analysis.reading.records.lines import Rejects
from sglang_instrument.schema import kind_of

#: What every reader says of the requests that it made of records without steps.
NO_STEPS: Final = "the trainer's steps: a step here is a stretch of work after {sec:g} s without any"
_PLACE: Final = ("role", "worker", "step", "validate")
_LONGEST_TEXT: Final = 256  # characters of a name or an id
_LARGEST: Final = 999_999_999  # number of a step or worker
_NOT_OURS: Final = ("source", "position")  # they depend on which files are read


@dataclass
class ForeignLog:
    """What a reader made of a foreign log.

    Attributes:
        rows: Records in the order of their files, with the columns of `COLUMNS` but `source` and `position`.
            Further columns are fields of the record: they have no column of their own.
        files: The files that were read.
        cannot_show: What the format does not hold, a phrase each: "tools: SGLang does not know them".
        misread: What was found and not understood, a sentence each, with how often and an example.
        rejects: Lines, or records, that are none.
        unreadable: By file that could not be read to its end, the reason.
        tells_requests: Whether a request here is one of the trainer's, so that its length is that of a reply.
        workers_are_servers: Whether a worker here is a server, and its calls are what that server ran.
    """

    rows: pl.DataFrame
    files: list[Path]
    cannot_show: list[str]
    misread: list[str] = field(default_factory=list)
    rejects: Rejects = field(default_factory=Rejects)
    unreadable: dict[str, str] = field(default_factory=dict)
    tells_requests: bool = True
    workers_are_servers: bool = False


def to_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """Complete the columns of records.

    Args:
        frame: `event`, `start_us`, `end_us`, and any others of `COLUMNS`; a null `end_us` stands for an
            instant event. Where they are missing, `role` is "worker" and `worker` 0; without `step`, a
            record is outside of any step.
    """
    defaults: Mapping[str, pl.Expr] = {
        "role": pl.lit("worker"),
        "worker": pl.lit(0, pl.Int64),
        "validate": pl.lit(False),
        "exact": pl.lit(True),
        "duration_sec": (pl.col("end_us") - pl.col("start_us")).clip(lower_bound=0) / 1e6,
        "phase": _phase(frame["event"]),
    }
    frame = frame.filter(pl.col("start_us").is_not_null())
    known = [name for name in COLUMNS if name not in _NOT_OURS]
    missing = [pl.lit(None).alias(name) for name in known if name not in frame.columns]
    frame = frame.with_columns(missing).with_columns(
        pl.coalesce(name, value).alias(name) for name, value in defaults.items()
    )
    # Numbers of steps and workers are parts of the names of our files.
    worker, step = (pl.col(name).cast(pl.Int64, strict=False) for name in ("worker", "step"))
    frame = frame.with_columns(
        end_us=pl.coalesce("end_us", "start_us"),
        worker=pl.when(worker.is_between(0, _LARGEST)).then(worker).otherwise(0),
        step=pl.when(step.is_between(-_LARGEST, _LARGEST)).then(step),
    )
    columns = [pl.col(name).cast(COLUMNS[name], strict=False) for name in known]
    return frame.select(*columns, *(name for name in frame.columns if name not in COLUMNS))


def _phase(events: pl.Series) -> pl.Expr:
    names = events.unique().cast(pl.String).drop_nulls().to_list()
    phases = [kind_of(name).phase for name in names]
    return pl.col("event").cast(pl.String).replace_strict(names, phases, return_dtype=pl.String)


def places_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the distinct role, worker, step and validate of rows, in the order of steps."""
    return rows.select(*_PLACE).unique().sort("validate", "step", "role", "worker", nulls_last=True)


def as_us(seconds: pl.Expr) -> pl.Expr:
    """Return Unix seconds as whole microseconds; null beyond what a clock can show."""
    usable = seconds.is_finite() & seconds.is_between(0, 1e11)
    return pl.when(usable).then((seconds * 1e6).round()).cast(pl.Int64, strict=False)


def texts(name: str, values: Sequence[str | None]) -> pl.Series:
    """Return a column of text; lone surrogates are replaced, and long texts cut.

    One long text that a file holds once, and refers to in each sample, would be copied for each.
    """
    values = [value and value[:_LONGEST_TEXT] for value in values]
    try:
        return pl.Series(name, values, pl.String)
    except UnicodeEncodeError:
        return pl.Series(name, [printable(value) for value in values], pl.String)


def is_whole(value: Any) -> bool:
    """Return whether a value is an integer that a column of 64 bits holds."""
    return type(value) is int and abs(value) < 2**62
