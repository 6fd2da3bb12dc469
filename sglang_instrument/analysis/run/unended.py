"""Tell which steps and requests did not end, and let them last until their process last said that they go on.

A step that was not closed goes on, hangs, or its process was killed. A request of it without a record of its
own did not end either: `open_now` names the oldest ones, of others the turns tell that they began.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.digest import KINDS, SCHEMAS, Digest
from sglang_instrument.analysis.reading.files import File, controls_of, ended_paths
from sglang_instrument.analysis.reading.folders import ROLE_OF_REQUESTS, Place
from sglang_instrument.analysis.reading.last_open import UNENDED
from sglang_instrument.analysis.run.outside import unbound_paths
from sglang_instrument.analysis.timing.grouped_sums import US
from sglang_instrument.schema import LOG_OPENED, OPEN_NOW, OPEN_SPANS

_OF_CHILD: Final = re.compile(r"-c\d+")  # ends the name of a file that children of a program use in turn
_SOURCE: Final = {"source": pl.Int64, "unended": pl.Boolean, "seen_us": pl.Int64}
_STEP_OF_REQUEST: Final = ["step", "validate", "request_id"]
_REQUEST: Final = ["source", "role", "worker", *_STEP_OF_REQUEST, "attempt"]


def unclosed_files(files: Sequence[File]) -> list[tuple[File, Place]]:
    """Return the files of workers whose step was not closed, nor their log at its end.

    A child that was killed closes no file; the step is that of the program that started it.
    """
    ended = ended_paths(files)
    left_out = ended | unbound_paths(files)
    closed = {_key(file.place) for file in files if file.place is not None and file.path in ended}
    opened = {file.path: file for file, _ in controls_of(files, LOG_OPENED) if file.path not in left_out}
    places = [(file, file.place) for file in opened.values() if file.place is not None]
    return [
        (file, place)
        for file, place in places
        if place.role == ROLE_OF_REQUESTS
        and place.step is not None
        and not (_OF_CHILD.search(place.stem) and _key(place) in closed)
    ]


def _key(place: Place) -> tuple[str, int, int | None, bool]:
    return place.role, place.worker, place.step, place.validate


def with_unended(files: Sequence[File], digest: Digest) -> Digest:
    """Mark the steps that did not end, let them last until their last report, and add their open requests.

    Args:
        files: The files of a run.
        digest: Of their newest runs; `source` numbers each pair of file and run.
    """
    ends = _ends(files)
    steps = digest.steps.drop("unended").join(ends, on="source", how="left", maintain_order="left")
    end_us = pl.when("unended").then(pl.max_horizontal("end_us", "seen_us")).otherwise("end_us")
    more_sec = (end_us - pl.col("end_us")).fill_null(0) * US
    steps = steps.with_columns(
        end_us=end_us,
        duration_sec=pl.col("duration_sec") + more_sec,
        unaccounted_sec=pl.col("unaccounted_sec") + more_sec,
    ).select(list(SCHEMAS["steps"]))
    is_open = ends.filter("unended").select("source", "seen_us")
    return (
        replace(digest, steps=steps, requests=_with_open_requests(digest, is_open)) if len(ends) else digest
    )


def _ends(files: Sequence[File]) -> pl.DataFrame:
    """Return for each file of a worker's step whether it did not end, and when that was last reported."""
    unclosed = {file.path for file, _ in unclosed_files(files)}
    opened = {file.path for file, _ in controls_of(files, LOG_OPENED)} - unbound_paths(files)
    sources = enumerate((file, run_id) for file in files for run_id in file.runs)
    rows = [
        (number, file.path in unclosed, _last_report_us(file, run_id))
        for number, (file, run_id) in sources
        if file.path in opened and file.place is not None and file.place.role == ROLE_OF_REQUESTS
    ]
    return pl.DataFrame(rows, schema=_SOURCE, orient="row")


def _last_report_us(file: File, run_id: str | None) -> int | None:
    reports = (OPEN_NOW, OPEN_SPANS)
    times = [
        control.time_us for control in file.controls if control.event in reports and control.run_id == run_id
    ]
    return max(times, default=None)


def _with_open_requests(digest: Digest, is_open: pl.DataFrame) -> pl.DataFrame:
    """Add the requests of which an unclosed step has turns, and nothing else."""
    requests = digest.requests
    if is_open.is_empty():  # as in runs that are over
        return requests
    turns = digest.turns.join(is_open, on="source").join(requests, on=_STEP_OF_REQUEST, how="anti")
    rows = (
        turns.filter(pl.col("request_id").is_not_null())
        .group_by(_REQUEST)
        .agg(
            *(pl.col(f"{kind}_sec").sum() for kind in KINDS),
            start_us=pl.col("start_us").min(),
            end_us=pl.max_horizontal(pl.col("end_us").max(), pl.col("seen_us").first()),
        )
    )
    if rows.is_empty():
        return requests
    rows = rows.with_columns(
        duration_sec=(pl.col("end_us") - pl.col("start_us")) * US, error=pl.lit(UNENDED), implied=False
    )
    return pl.concat([requests, rows], how="diagonal_relaxed").select(list(SCHEMAS["requests"]))
