"""Read the records of the engine's processes, and of what calls them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from sglang_instrument.analysis.reading.records.engine_fields import EngineFields
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.schema import GATEWAY_ROLE

if TYPE_CHECKING:
    from sglang_instrument.analysis.reading.files import File
    from sglang_instrument.analysis.reading.records.lines import Line
    from sglang_instrument.analysis.run.opening import Run


def iter_records(
    run: Run, files: Sequence[File], events: Collection[str] = (), keys: Collection[str] = ()
) -> Iterator[tuple[File, Line, EngineFields]]:
    """Yield records that have a start, of newest runs; of files that `prune` deleted, the calls that it kept.

    Args:
        run: The run.
        files: Files of it.
        events: Which records, as in `newest_records`.
        keys: The same.
    """
    for file, line, fields in newest_records(
        run, files, EngineFields, events=events, keys=keys, with_kept=True
    ):
        if line.start_us is not None:
            yield file, line, fields


def engine_files(run: Run) -> list[File]:
    """Return the files of the engine's own processes."""
    return [file for file in _without_step(run) if file.place and file.place.role != GATEWAY_ROLE]


def gateway_files(run: Run) -> list[File]:
    """Return the files of a trainer's gateways, which speak to engines for black-box agents."""
    return [file for file in _without_step(run) if file.place and file.place.role == GATEWAY_ROLE]


def _without_step(run: Run) -> list[File]:
    return [file for file in run.files if file.place is not None and file.place.folder == "engine"]
