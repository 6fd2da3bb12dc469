"""Write the records of log files as Parquet: all of their fields, and how their spans are nested."""

from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.digests.parquet import save_parquet
from sglang_instrument.analysis.reading.all_fields import STAMPS, TEXT_COLUMNS, with_texts
from sglang_instrument.analysis.reading.reader import COLUMNS, Reading
from sglang_instrument.analysis.store.packing import packed
from sglang_instrument.analysis.timing.nesting import nest_and_clip
from sglang_instrument.analysis.timing.wall_time import split_wall_time
from sglang_instrument.safe_files.folder import SafeFolder

#: The table of records in a part. What `prune` keeps lacks the columns of the nesting, a third of the bytes.
RECORDS: Final = "records"
_OF_NESTING: Final[dict[str, Any]] = {
    "without_nested_sec": pl.Float64,
    "steps_sec": pl.Float64,
    "counts_for": pl.String,
    "span": pl.Int64,
    "parent": pl.Int64,
    "concurrent": pl.Boolean,
}
#: Columns of the nesting as earlier versions called them, with their names now.
EARLIER_NAMES: Final = {"self_sec": "without_nested_sec", "wall_sec": "steps_sec"}
_LEVEL: Final = 6  # of zstd: 4 % smaller than by default in the same time; 9 takes twice as long for 1 % more
# What other columns tell: the view of SQL and `part_records` make them again.
_DERIVED: Final = frozenset({"position", "source"})
#: The columns of a table of records, whose rows are in the order of the lines. `file` and `run_id` say who
#: wrote a record. `STAMPS` tell a timestamp that is not the end of its record.
COLUMNS_OF_RECORDS: Final[dict[str, Any]] = {
    "file": pl.String,
    "run_id": pl.String,
    **{
        name: pl.String if kind == pl.Categorical else kind
        for name, kind in COLUMNS.items()
        if name not in _DERIVED
    },
    **_OF_NESTING,
    **TEXT_COLUMNS,
    **STAMPS,
}


def record_rows(reading: Reading) -> pl.DataFrame:
    """Return the records of files with `COLUMNS_OF_RECORDS`: spans nested, instant events, in their order.

    `source` is the last column, as in `Reading.records`.
    """
    records = with_texts(reading.records)
    spans = _numbered(split_wall_time(*nest_and_clip(records)))
    instants = records.filter(pl.col("duration_sec").is_null())
    rows = pl.concat([pl.DataFrame(schema=STAMPS), spans, instants], how="diagonal")
    rows = with_files(rows, reading).sort("position")
    # As text: not every reader of Parquet knows categories.
    rows = rows.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    return rows.select(*(pl.col(name).cast(kind) for name, kind in COLUMNS_OF_RECORDS.items()), "source")


def rows_as_read(reading: Reading) -> pl.DataFrame:
    """Return the records of files with `COLUMNS_OF_RECORDS`, but those of the nesting, in their order."""
    rows = with_files(with_texts(reading.records), reading).sort("position")
    kinds = {name: kind for name, kind in COLUMNS_OF_RECORDS.items() if name not in _OF_NESTING}
    return rows.select(pl.col(name).cast(kind) for name, kind in kinds.items())


def with_files(records: pl.DataFrame, reading: Reading) -> pl.DataFrame:
    """Return records with the path of their `file`, and the `run_id` of the run that wrote them."""
    sources = pl.DataFrame(
        {
            "source": list(range(len(reading.sources))),
            "file": [reading.files[source.file].path for source in reading.sources],
            "run_id": [source.run_id for source in reading.sources],
        },
        schema={"source": pl.Int64, "file": pl.String, "run_id": pl.String},
    )
    return records.join(sources, on="source", how="left", maintain_order="left")


def save_records(
    target: SafeFolder, rows: pl.DataFrame, sync: bool = False, level: int = _LEVEL, whole: bool = False
) -> None:
    """Write a table of records into the folder of a part; how spans are nested may be missing.

    Args:
        target: The folder.
        rows: The records.
        sync: Whether to wait until they are on the disk.
        level: The level of zstd.
        whole: Whether others are to read them without this package: then nothing is packed.

    Raises:
        OSError, polars.exceptions.PolarsError: It cannot be written.
    """
    save_parquet(target, f"{RECORDS}.parquet", rows if whole else packed(rows), sync, level)


def write_records(target: SafeFolder, reading: Reading, whole: bool = False) -> pl.DataFrame:
    """Write the records of files to a file in a folder, as `save_records`; return how many, by `source`.

    Raises:
        OSError, polars.exceptions.PolarsError: They cannot be written.
    """
    rows = record_rows(reading)
    save_records(target, rows.drop("source"), whole=whole)
    return rows.group_by("source", maintain_order=True).agg(rows=pl.len().cast(pl.Int64))


def _numbered(spans: pl.DataFrame) -> pl.DataFrame:
    """Number the spans of each log file from 0, whatever else the batch holds."""
    number = spans.select(pl.int_range(pl.len(), dtype=pl.Int64).over("source")).to_series()
    return spans.with_columns(span=number, parent=number.gather(spans["parent"]))
