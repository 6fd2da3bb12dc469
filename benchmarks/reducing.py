"""Reduce the pieces of a long run as `summary --by --ray` does, and join what is left of them.

    reducing.py make FOLDER NODES WORKERS REQUESTS  # what each node sends of ten steps
    reducing.py reduce FOLDER STEPS WORKERS  # one piece of so many steps: what a task on a node does
    reducing.py join FOLDER PIECES  # so many of these pieces: what the caller does

`make` reads a made run with so many requests in each step of a worker. `reduce` takes what the nodes send as
if it had just come, gives the steps their numbers and times, and reduces the piece. All that follows Ray is
real: unpacking, joining, ordering, rows, findings, health. `join` gives the pieces their numbers and times.
Both print their seconds and their peak of memory.
"""

import json
import pickle
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.digests.file_sources import only_files
from sglang_instrument.analysis.executors.batches import in_order, join_results
from sglang_instrument.analysis.executors.local import LocalExecutor
from sglang_instrument.analysis.executors.ray_tasks import pack, unpack
from sglang_instrument.analysis.long_runs import reduced, summary
from sglang_instrument.analysis.long_runs.pieces import Piece
from sglang_instrument.analysis.long_runs.reduced import Reduced
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.digest_of_run import digest_files
from sglang_instrument.testing import synthetic_run

MADE = 10  # steps
TIMES = ("start_us", "end_us", "at_us")


def moved(files, digest, step, at_us):
    """Return files and digest with steps that are later by `step`, and times by `at_us`."""
    tables = {
        name: table.with_columns(
            pl.col("step") + step, *(pl.col(column) + at_us for column in TIMES if column in table.columns)
        )
        for name, table in digest.tables().items()
    }
    return [moved_file(file, step, at_us) for file in files], Digest(**tables)


def moved_file(file, step, at_us):
    """Return a file of a step that is later by `step`."""
    place = file.place
    controls = [
        msgspec.structs.replace(
            control, time_us=control.time_us + at_us if control.event != "log_opened" else control.time_us
        )
        for control in file.controls
    ]
    path = f"step_{place.step + step}/{Path(file.path).name}"
    return msgspec.structs.replace(file, path=path, controls=controls)


def make(folder, nodes, workers, requests):
    """Write what each node sends of ten steps, and how long they took."""
    with tempfile.TemporaryDirectory() as scratch:
        run = synthetic_run(scratch, steps=MADE, workers=workers, requests=requests, seed=1)
        executor = LocalExecutor(run)
        files, digest = digest_files(executor, executor.list_files())
    steps = digest.steps.filter(role="worker")
    took_us = steps["end_us"].max() - steps["start_us"].min()
    begun = [0]
    for file in files:
        begun.append(begun[-1] + len(file.runs))
    for node in range(nodes):
        of_node = [index for index, file in enumerate(files) if file.place.worker % nodes == node]
        sources = {begun[index]: number for number, index in enumerate(of_node)}
        mine = {
            name: table.filter(pl.col("source").is_in(list(sources))).with_columns(
                pl.col("source").replace_strict(sources, return_dtype=pl.Int64)
            )
            for name, table in digest.tables().items()
        }
        sent = pack(([files[index] for index in of_node], mine))
        (folder / f"{node}.pickle").write_bytes(pickle.dumps((took_us, sent)))


class Sent:
    """What reads a piece: a stand-in for the nodes, which have sent their digests."""

    is_far = True

    def __init__(self, folder, steps, workers):
        self.folder = self.home = folder
        self.lost = {}
        self._steps, self._workers = steps, workers

    def list_files(self):
        """Return the files of the piece, as the nodes list them."""
        return [
            File(f"step_{step}/{name}.jsonl", 0, 0)
            for step in self._steps
            for name in (f"worker_{rank}" for rank in range(self._workers))
        ]

    def list_others(self):
        """Return nothing: there are only logs."""
        return []

    def read(self, files, job, progress=None):
        """Put together what the nodes sent, for each ten steps of the piece."""
        if job.tables != "digest":  # there are no logs in which a detector could look for lines
            return list(files), {}
        wanted = {file.path for file in files}
        parts = []
        for path in sorted(self.folder.glob("*.pickle")):
            took_us, sent = pickle.loads(path.read_bytes())
            for ten in range((self._steps[0] - 1) // MADE, (self._steps[-1] - 1) // MADE + 1):
                read, tables = unpack(sent)
                read, digest = moved(read, Digest(**tables), ten * MADE, ten * took_us)
                wanted_files = [file for file in read if file.path in wanted]
                parts.append((wanted_files, only_files(digest, read, wanted_files).tables()))
        listed = {file.path for read, _ in parts for file in read}
        return in_order([file for file in files if file.path in listed], join_results(parts))


@dataclass(frozen=True)
class MadeWhere:
    """Where a made piece lies."""

    folder: Path
    workers: int
    on = None

    def executor_of(self, piece):
        """Return what reads the piece."""
        return Sent(self.folder, piece.steps, self.workers)


class MadeRun:
    """A run of so many equal pieces, each as `reduce` left it."""

    def __init__(self, folder, pieces):
        self.reduced = (folder / "reduced").read_bytes()
        piece = msgspec.msgpack.decode(self.reduced, type=Reduced)
        steps = len(pl.read_ipc(piece.rows))
        self.pieces = [
            piece_of(range(number * steps + 1, (number + 1) * steps + 1), 0) for number in range(pieces)
        ]
        self.others, self.unreadable = [], {}
        self.base = self
        self.home = folder / "home"
        self.lost = {}
        self.where = MadeWhere(folder, 0)


def piece_of(steps, workers):
    """Return a piece of so many steps."""
    return Piece(steps, [f"step_{step}" for step in steps], [], [], len(steps) * workers, False)


def reduce(folder, steps, workers):
    """Reduce a piece; print seconds, the peak of memory and the sizes."""
    begun, used = time.perf_counter(), time.process_time()
    packed = reduced.reduce_piece(MadeWhere(folder, workers), piece_of(range(1, steps + 1), workers), None)
    tell(begun, used, packed, sent_mb=sum(path.stat().st_size for path in folder.glob("*.pickle")) / 2**20)
    (folder / "reduced").write_bytes(packed)


def join(folder, pieces):
    """Join pieces; print seconds and the peak of memory."""
    run = MadeRun(folder, pieces)
    template = msgspec.msgpack.decode(run.reduced, type=Reduced)
    rows = pl.read_ipc(template.rows)
    took_us = rows["start_us"].max() - rows["start_us"].min()

    def moved_piece(where, piece, newest):
        step = piece.steps[0] - 1
        later = rows.with_columns(pl.col("step") + step, pl.col("start_us") + step // len(rows) * took_us)
        headers = [moved_file(file, step, 0) for file in template.headers]
        newest = {f"step_{file.place.step}": file.controls[0].run_id for file in headers}
        moved_template = msgspec.structs.replace(
            template, rows=reduced._as_bytes(later), headers=headers, newest=newest
        )
        return msgspec.msgpack.encode(moved_template)

    summary.reduce_piece = moved_piece
    begun, used = time.perf_counter(), time.process_time()
    answer = summary.summarise(run)
    tell(
        begun,
        used,
        run.reduced,
        steps=len(answer.rows),
        files=answer.health.files,
        events=answer.health.records,
    )


def tell(begun, used, packed, **more):
    """Print what was measured."""
    decoded = msgspec.msgpack.decode(packed, type=Reduced)
    measured = {
        "seconds": time.perf_counter() - begun,
        "cpu_sec": time.process_time() - used,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "kept_kb": len(packed) / 1024,
        "files": decoded.health.files,
        "events": decoded.health.records,
        **more,
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    what, folder, *numbers = sys.argv[1:]
    {"make": make, "reduce": reduce, "join": join}[what](Path(folder), *map(int, numbers))
