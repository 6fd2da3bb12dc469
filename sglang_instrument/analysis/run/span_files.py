"""Write the nested spans and instant events of a batch of log files as Parquet, a file a run and step."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import polars as pl

from sglang_instrument.analysis.digests.parquet import save_parquet
from sglang_instrument.analysis.reading.all_fields import with_texts
from sglang_instrument.analysis.reading.files import Newest
from sglang_instrument.analysis.reading.reader import Reading
from sglang_instrument.analysis.timing.nesting import nest_and_clip
from sglang_instrument.analysis.timing.wall_time import split_wall_time
from sglang_instrument.safe_files.folder import SafeFolder

#: The folder of `spans` in a dataset.
SPANS: Final = "spans"
#: Hive's name for a partition whose value is null.
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_PARTITION: Final = ("run_id", "step")


def write_spans(target: SafeFolder, reading: Reading, newest: Newest, columns: Sequence[str]) -> pl.DataFrame:
    """Write the spans and instant events of newest runs below `target`, each file at once.

    Args:
        target: The dataset's folder.
        reading: The log files as read.
        newest: The newest run of each folder of the log.
        columns: The columns of the files, in order.

    Returns:
        source, output: which log file went into which Parquet file; rows: how many.
    """
    numbers = [
        number
        for number, source in enumerate(reading.sources)
        if newest.counts(source.place.folder, source.run_id)
    ]
    files = pl.DataFrame(
        {
            "source": numbers,
            "run_id": [reading.sources[number].run_id for number in numbers],
            "file": [reading.files[reading.sources[number].file].path for number in numbers],
        },
        schema={"source": pl.Int64, "run_id": pl.String, "file": pl.String},
    )
    records = with_texts(reading.records)
    records = records.join(files.select("source"), on="source", how="semi", maintain_order="left")
    spans = _numbered(split_wall_time(*nest_and_clip(records)))
    instants = records.filter(pl.col("duration_sec").is_null())
    spans = pl.concat([spans, instants], how="diagonal")
    spans = spans.join(files, on="source", how="left", maintain_order="left")
    written = [
        _write(
            target,
            quote(run_id or NULL_PARTITION, safe=""),
            NULL_PARTITION if step is None else str(step),
            rows,
            columns,
        )
        for (run_id, step), rows in spans.partition_by(_PARTITION, as_dict=True).items()
    ]
    nothing = pl.DataFrame(schema={"source": pl.Int64, "output": pl.String, "rows": pl.Int64})
    return pl.concat([nothing, *written])


def output_name(log: str) -> str:
    """Return the name of the Parquet file whose first spans are those of a log file of this path."""
    return f"{quote(log, safe='').replace('%2F', '-')}.parquet"


def _numbered(spans: pl.DataFrame) -> pl.DataFrame:
    """Number the spans of each log file from 0, whatever else the batch holds."""
    number = spans.select(pl.int_range(pl.len(), dtype=pl.Int64).over("source")).to_series()
    return spans.with_columns(span=number, parent=number.gather(spans["parent"]))


def _write(
    target: SafeFolder, run_id: str, step: str, rows: pl.DataFrame, columns: Sequence[str]
) -> pl.DataFrame:
    first = min(rows["file"].unique())
    output = f"{SPANS}/run_id={run_id}/step={step}/{output_name(first)}"
    # As text: not every reader of Parquet knows categories.
    texts = rows.with_columns(
        pl.col(pl.Categorical, pl.Enum).cast(pl.String),
        timestamp=pl.col("end_us").cast(pl.Datetime("us")).dt.replace_time_zone("UTC"),
    )
    save_parquet(*target.split(output), texts.select(columns))
    return (
        rows.group_by("source")
        .agg(rows=pl.len().cast(pl.Int64))
        .select(pl.col("source").cast(pl.Int64), pl.lit(output).alias("output"), "rows")
    )
