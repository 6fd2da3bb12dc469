"""Read records of the newest runs into a Struct of the caller's own, which names the fields that it needs."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar

import msgspec

from sglang_instrument.analysis.reading.files import File, newest_run_filter
from sglang_instrument.analysis.reading.records.decoding import decode_lines
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.schema import LOG_OPENED


class _Record(Protocol):
    @property
    def event(self) -> str: ...

    @property
    def extra(self) -> Any: ...


_Kind = TypeVar("_Kind", bound=_Record)


def newest_records(
    run: Run, files: Sequence[File], names: Sequence[str], decoder: msgspec.json.Decoder[_Kind]
) -> Iterator[tuple[File, _Kind]]:
    """Yield records that hold one of some names in quotes, and perhaps others, each with its file.

    Headers, torn and foreign lines, and files that `prune` deleted are left out.

    Args:
        run: The run.
        files: Files of it.
        names: Events or keys.
        decoder: Of a Struct with `event` and `extra`, and in `extra` the field `run_id`.
    """
    counts = newest_run_filter(run.files)
    there = [file for file in files if file.pruned_us is None]
    for file, chunks in run.read_marked(there, (LOG_OPENED, *names)):
        run_id = None
        for record in chain.from_iterable(decode_lines(decoder, chunk) for chunk in chunks):
            if record.event == LOG_OPENED:
                run_id = None if record.extra is None else record.extra.run_id
            elif counts(file, run_id):
                yield file, record
