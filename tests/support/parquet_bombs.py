"""Replace Parquet files by small ones that stand for hundreds of megabytes, as real libraries write them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl

ROWS = 300_000
TEXTS, TEXT_BYTES = 2_000, 100_000
PACKED_BYTES = 70_000_000


def rows(path: Path) -> None:
    """Repeat the first row, in pages that name each value once."""
    draft = path.with_suffix(".draft")
    with duckdb.connect() as connection:
        first = f"(FROM read_parquet('{path}', hive_partitioning = false) LIMIT 1)"
        options = f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROWS}"
        connection.execute(f"COPY (SELECT f.* FROM range({ROWS}), {first} f) TO '{draft}' ({options})")
    shutil.move(draft, path)


def texts(path: Path) -> None:
    """Let one long text of a dictionary stand in every row."""
    table = pl.read_parquet(path, glob=False, hive_partitioning=False)
    name = next(name for name, kind in reversed(table.schema.items()) if kind in (pl.String, pl.Binary))
    long = pl.lit("x" * TEXT_BYTES).cast(table.schema[name]).alias(name)
    pl.concat([table.head(1)] * TEXTS).with_columns(long).write_parquet(path, statistics=False)


def packed(path: Path) -> None:
    """Let a text be seventy million times the same letter."""
    table = pl.read_parquet(path, glob=False, hive_partitioning=False).head(1)
    name = next(name for name, kind in reversed(table.schema.items()) if kind in (pl.String, pl.Binary))
    long = pl.lit("x" * PACKED_BYTES).cast(table.schema[name]).alias(name)
    table.with_columns(long).write_parquet(path, statistics=False)


def columns(path: Path) -> None:
    """Add columns of which there are thousands."""
    table = pl.read_parquet(path, glob=False, hive_partitioning=False).head(1)
    table.with_columns(pl.lit(0).alias(f"c{number}") for number in range(2_000)).write_parquet(path)


def lists(path: Path) -> None:
    """Let a column hold a long list in each row."""
    table = pl.read_parquet(path, glob=False, hive_partitioning=False).head(1)
    table.with_columns(of=pl.lit([0] * 100_000)).write_parquet(path)


#: How to make one of a file, by name.
BOMBS: dict[str, Callable[[Path], None]] = {
    "rows": rows,
    "texts": texts,
    "packed": packed,
    "columns": columns,
    "lists": lists,
}
