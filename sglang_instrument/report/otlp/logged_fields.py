"""Read the fields of calls and requests that no table holds: prompts' tokens, the server, `traceparent`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from sglang_instrument.analysis.answers.engine_requests import cached_engine_requests, engine_files
from sglang_instrument.analysis.answers.join import has_engine_logs
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.analysis.run.opening import Run

_NAMES: Final = ("prompt_tokens", "cached_tokens", "rid", "server", "agent", "traceparent")


class Fields(Struct, gc=False):
    """Fields of a record; each may have any type, for anybody may have written the log."""

    request_id: Any = None
    run_id: Any = None
    prompt_tokens: Any = None
    cached_tokens: Any = None
    rid: Any = None
    server: Any = None
    agent: Any = None
    traceparent: Any = None

    def tokens(self, name: str) -> int | None:
        """Return a number of tokens, if that is what the field holds."""
        value = getattr(self, name)
        return value if type(value) is int and 0 <= value < 2**62 else None

    def word(self, name: str) -> str | None:
        """Return a field that is text."""
        value = getattr(self, name)
        return value if isinstance(value, str) and value else None


class _Line(Struct, gc=False):
    event: str
    start_us: Any = None
    workid: Any = None
    extra: Fields | None = None


_LINES: Final = msgspec.json.Decoder(_Line)
#: Worker, request, event and start: they tell the records of a step apart.
Key = tuple[int, str, str, int]


def fields_of(run: Run, files: Sequence[File]) -> dict[Key, Fields]:
    """Return the fields of those records of some files that have any, of newest runs only."""
    found: dict[Key, Fields] = {}
    for file, line in newest_records(run, files, _NAMES, _LINES):
        if line.extra is None or file.place is None or not isinstance(line.start_us, int):
            continue
        worker = line.workid if isinstance(line.workid, int) else file.place.worker
        key = (worker, str(line.extra.request_id), line.event, line.start_us)
        found.setdefault(key, line.extra)
    return found


class Servers:
    """What the engine's processes logged of each call, by its `rid`."""

    def __init__(self, run: Run) -> None:
        """Read it once; a run without such logs has nothing."""
        self._tokens: dict[str, tuple[int | None, int | None]] = {}
        self._traceparents: dict[str, str] = {}
        if not has_engine_logs(run):
            return
        table = cached_engine_requests(run).select("rid", "prompt_tokens", "cached_tokens")
        self._tokens = {rid: (prompt, cached) for rid, prompt, cached in table.iter_rows()}
        for _, line in newest_records(run, engine_files(run), ("traceparent",), _LINES):
            rid, parent = (line.extra.word(name) if line.extra else None for name in ("rid", "traceparent"))
            if rid is not None and parent is not None:
                self._traceparents.setdefault(rid, parent)

    def tokens(self, rid: str | None) -> tuple[int | None, int | None]:
        """Return the tokens of the prompt, and those of them that the cache held."""
        return (None, None) if rid is None else self._tokens.get(rid, (None, None))

    def traceparent(self, rid: str | None) -> str | None:
        """Return the header with which the call came."""
        return None if rid is None else self._traceparents.get(rid)
