"""Read a batch of files and make of them what is wanted."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import polars as pl

from sglang_instrument.analysis.digest import digest_records
from sglang_instrument.analysis.files import File
from sglang_instrument.analysis.narrow import event_times, narrow_events
from sglang_instrument.analysis.reader import read_files
from sglang_instrument.uncollected import uncollected

Tables = dict[str, pl.DataFrame]
Part = tuple[list[File], Tables]


class Work(msgspec.Struct, frozen=True):
    """Which tables are wanted: "digest", "events", or "times" of the events that are named."""

    tables: str
    names: tuple[str, ...] = ()

    def of(self, folder: Path, batch: Sequence[File]) -> Part:
        """Return the files as they were read, and their tables."""
        with uncollected():
            reading = read_files(folder, batch, thin=self.tables == "digest")
            if self.tables == "digest":
                return reading.files, digest_records(reading.records).tables()
            if self.tables == "times":
                return reading.files, {"times": event_times(reading.records, self.names)}
            return reading.files, {"events": narrow_events(reading.records)}
