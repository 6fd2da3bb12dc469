"""What a Ray task does on a node: read a batch of files, or put results together, and pack what travels."""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import polars as pl

from sglang_instrument.analysis.executors.batches import join_results
from sglang_instrument.analysis.executors.executor import BatchResult, Job
from sglang_instrument.analysis.reading.files import File

#: Files as JSON and tables as Arrow, both compressed: versions of polars may differ between nodes.
Packed = tuple[bytes, dict[str, bytes]]


def read_batch(folder: str, batch: Sequence[File], names: Mapping[str, str], job: Job) -> Packed:
    """Return what a job makes of files.

    Args:
        folder: The run's folder; variables are expanded here, on the node.
        batch: The files, as the run names them.
        names: The names that some of them have on this node.
        job: What to make.
    """
    here = [msgspec.structs.replace(file, path=names.get(file.path, file.path)) for file in batch]
    read, tables = job.run(Path(os.path.expandvars(folder)), here)
    named = [
        msgspec.structs.replace(file, path=wanted.path) for file, wanted in zip(read, batch, strict=True)
    ]
    return pack((named, tables))


def combine(*parts: Packed) -> Packed:
    """Return several results as one."""
    return pack(join_results([unpack(part) for part in parts]))


def pack(result: BatchResult) -> Packed:
    """Return a result as bytes."""
    import zstandard  # not at the top: readers of logs import this module, and may lack zstandard

    files, tables = result
    text = zstandard.ZstdCompressor().compress(msgspec.json.encode(files))
    return text, {name: _packed(table) for name, table in tables.items()}


def unpack(packed: Packed) -> BatchResult:
    """Return the result that `pack` made bytes of."""
    import zstandard

    text, tables = packed
    files = msgspec.json.decode(zstandard.ZstdDecompressor().decompress(text), type=list[File])
    return files, {name: pl.read_ipc(content) for name, content in tables.items()}


def _packed(table: pl.DataFrame) -> bytes:
    target = io.BytesIO()
    table.write_ipc(target, compression="zstd")
    return target.getvalue()
