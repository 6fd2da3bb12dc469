"""Read the records of the engine's own processes: which of its requests each is about, and their sizes."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from sglang_instrument.analysis.reading.records.decoding import decode_lines
from sglang_instrument.schema import LOG_OPENED

#: Prefix of SGLang's own health checks; no caller waits for these.
HEALTH_CHECK: Final = "HEALTH_CHECK"


class Fields(Struct, gc=False, omit_defaults=True):
    """The fields of `extra` that name the requests of a record, their sizes, and who served them."""

    rid: Any = None
    rids: Any = None
    request_id: Any = None
    turn: Any = None
    run_id: Any = None
    prompt_tokens: Any = None
    cached_tokens: Any = None
    completion_tokens: Any = None
    generated_tokens: Any = None
    finish_reason: Any = None
    tokens: Any = None
    queue_time: Any = None
    retractions: Any = None
    server: Any = None
    waiting: Any = None
    running: Any = None
    kv_tokens: Any = None
    kv_free_pages: Any = None
    kv_evictable: Any = None
    kv_page_size: Any = None
    kv_budget: Any = None
    kv_reserved: Any = None


class Record(Struct, gc=False):
    """The keys of a record that the join needs."""

    event: str
    start_us: int | None = None
    duration_sec: float | None = None
    extra: Fields | None = None
    error: Any = None

    @property
    def end_us(self) -> int:
        """When it ended."""
        return (self.start_us or 0) + int((self.duration_sec or 0.0) * 1e6)


LINES: Final = msgspec.json.Decoder(Record)


def records_in(chunks: Iterable[bytes]) -> Iterator[tuple[str | None, Record]]:
    """Yield the records of a log file that have a start and fields, each with the run that wrote it."""
    run_id = None
    for chunk in chunks:
        # Torn and foreign lines were counted when the run was opened.
        for record in decode_lines(LINES, chunk):
            if record.extra is not None and record.event == LOG_OPENED:
                run_id = record.extra.run_id
            elif record.extra is not None and record.start_us is not None:
                yield run_id, record


def rids_of(record: Record) -> list[str]:
    """Return the engine requests that a record is about, without SGLang's own health checks."""
    fields = record.extra or Fields()
    named = next((one for one in (fields.rids, fields.rid) if isinstance(one, list)), [fields.rid])
    return [rid for rid in named if isinstance(rid, str) and not rid.startswith(HEALTH_CHECK)]


def number(value: Any) -> int | None:
    """Return an integer; None for anything else."""
    return value if type(value) is int else None


def count(value: Any) -> int | None:
    """Return an integer that is not negative; None for anything else."""
    return value if type(value) is int and value >= 0 else None


def tokens_of(rid: str, record: Record) -> int | None:
    """Return the tokens of prompt and reply that a record of several requests logs of this one."""
    fields = record.extra or Fields()
    if not isinstance(fields.rids, list) or not isinstance(fields.tokens, list):
        return None
    pairs = zip(fields.rids, fields.tokens, strict=False)
    return next((number(tokens) for one, tokens in pairs if one == rid), None)
