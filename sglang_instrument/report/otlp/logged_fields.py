"""Read the fields of calls and requests that no table holds: prompts' tokens, the server, `traceparent`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta

from sglang_instrument.analysis.answers.engine.join import has_engine_logs
from sglang_instrument.analysis.answers.engine.records import engine_files
from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.records.fields import RequestIds
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.analysis.run.opening import Run

_NAMES: Final = ("prompt_tokens", "cached_tokens", "rid", "server", "agent", "traceparent")


_Tokens = Annotated[int, Meta(ge=0, lt=2**62)]


class CallFields(RequestIds, gc=False):
    """Fields of a call or a request."""

    prompt_tokens: _Tokens | None = None
    cached_tokens: _Tokens | None = None
    rid: str | None = None
    server: str | None = None
    agent: str | None = None
    traceparent: str | None = None


#: Worker, request, event and start: they tell the records of a step apart.
Key = tuple[int, str, str, int]


def fields_of(run: Run, files: Sequence[File]) -> dict[Key, CallFields]:
    """Return the fields of those records of some files that have any, of newest runs only."""
    by_key: dict[Key, CallFields] = {}
    for file, line, fields in newest_records(run, files, CallFields, keys=_NAMES):
        if file.place is not None and line.start_us is not None:
            worker = file.place.worker if line.workid is None else line.workid
            by_key.setdefault((worker, str(fields.request_id), line.event, line.start_us), fields)
    return by_key


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
        for _, _, fields in newest_records(run, engine_files(run), CallFields, keys=("traceparent",)):
            if fields.rid and fields.traceparent:
                self._traceparents.setdefault(fields.rid, fields.traceparent)

    def tokens(self, rid: str | None) -> tuple[int | None, int | None]:
        """Return the tokens of the prompt, and those of them that the cache held."""
        return (None, None) if rid is None else self._tokens.get(rid, (None, None))

    def traceparent(self, rid: str | None) -> str | None:
        """Return the header with which the call came."""
        return None if rid is None else self._traceparents.get(rid)
