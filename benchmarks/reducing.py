"""Reduce made digests as the caller of `--ray` does: `reducing.py make|reduce FOLDER NODES STEPS WORKERS R`.

`make` writes what each node would send: the files and digest of its share of the run, with R requests of two
turns in each step of a worker. `reduce` puts them together, and prints its seconds and its peak of memory.
"""

import json
import pickle
import resource
import sys
import time
from pathlib import Path

import msgspec
import polars as pl

from sglang_instrument.analysis.digests.digest import SCHEMAS, Digest
from sglang_instrument.analysis.executors.batches import in_order, join_results
from sglang_instrument.analysis.executors.ray_tasks import pack, unpack
from sglang_instrument.analysis.reading.files import Control, File
from sglang_instrument.analysis.reading.lines import Extra
from sglang_instrument.schema import LOG_OPENED, STEP_CLOSED

TEXTS = {"role": "worker", "event": "turn_engine_call", "phase": "generate", "finish_reason": "stop"}


def share_of(node, nodes, steps, workers, requests):
    """Return the files of one node's workers, and a digest as their logs would give."""
    ranks = range(node, workers, nodes)
    files = [made_file(step, rank) for step in range(steps) for rank in ranks]
    rows = {"steps": 1, "requests": requests, "turns": 2 * requests, "barriers": 1, "path": 4 * requests}
    rows["samples"] = 0
    place = pl.DataFrame({"source": range(len(files))}).with_columns(
        role=pl.lit("worker"),
        worker=pl.col("source") % len(ranks) * nodes + node,
        step=pl.col("source") // len(ranks),
        validate=pl.lit(False),
    )
    tables = {}
    for name, schema in SCHEMAS.items():
        source = pl.int_range(len(files) * rows[name], eager=True) // max(1, rows[name])
        at = pl.int_range(len(source), eager=True)
        columns = [pl.lit(made(column, kind, at)).alias(column) for column, kind in schema.items()]
        table = pl.select(*columns) if len(at) else pl.DataFrame(schema=schema)
        tables[name] = table.with_columns(place[source]).cast(schema).select(list(schema))
    return files, tables


def made_file(step, rank):
    """Return a file as read, with the control records of a usual log."""
    run_id, at_us = "20261123T180000-made", 1_700_000_000_000_000 + step * 60_000_000
    controls = [
        Control(LOG_OPENED, run_id, at_us, Extra(run_id=run_id, pid=4000 + rank, host=f"node{rank // 8}")),
        Control(STEP_CLOSED, run_id, at_us + 60_000_000, Extra(dropped=0, sampled_out=0)),
    ]
    return File(f"step_{step}/worker_{rank}.jsonl", 80_000, at_us * 1000, [run_id], [390], controls)


def made(column, kind, at):
    """Return values that compress about as well as real ones."""
    if kind == pl.String:
        if column == "request_id":
            return (at * 2_654_435_761 % 2**32).cast(pl.String)
        return pl.repeat(TEXTS.get(column), len(at), dtype=pl.String, eager=True)
    if kind == pl.Float64:
        return at * 7919 % 99_991 / 997
    return (at * 104_729 % 60_000_000).cast(kind) if kind == pl.Int64 else (at % 2 == 0)


def make(folder, nodes, steps, workers, requests):
    """Write what each node sends."""
    for node in range(nodes):
        packed = pack(share_of(node, nodes, steps, workers, requests))
        (folder / f"{node}.pickle").write_bytes(pickle.dumps(packed))


def reduce(folder, steps, workers):
    """Put together what the nodes sent; print seconds, the peak of memory and the sizes."""
    begun = time.perf_counter()
    sent = sorted(folder.glob("*.pickle"))
    parts = [unpack(pickle.loads(path.read_bytes())) for path in sent]
    wanted = [
        File(f"step_{step}/worker_{rank}.jsonl", 0, 0) for step in range(steps) for rank in range(workers)
    ]
    files, tables = in_order(wanted, join_results(parts))
    del parts
    digest = Digest(**tables)
    measured = {
        "seconds": time.perf_counter() - begun,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "sent_mb": sum(path.stat().st_size for path in sent) / 2**20,
        "files": len(files),
        "files_json_mb": len(msgspec.json.encode(files)) / 2**20,
        "tables_mb": {name: table.estimated_size("mb") for name, table in digest.tables().items()},
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    what, folder, nodes, steps, workers, requests = sys.argv[1:]
    if what == "make":
        make(Path(folder), int(nodes), int(steps), int(workers), int(requests))
    else:
        reduce(Path(folder), int(steps), int(workers))
