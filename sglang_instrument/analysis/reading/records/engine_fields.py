"""Name the fields of the engine's own records: which of its requests each is about, and their sizes."""

import re
from typing import Annotated, Any, Final

from msgspec import Meta

from sglang_instrument.analysis.reading.records.fields import Fields
from sglang_instrument.analysis.reading.records.lines import MOST, Integer

#: Prefix of SGLang's own health checks; no caller waits for these.
HEALTH_CHECK: Final = "HEALTH_CHECK"

#: What SGLang's Rust front end adds to the id that a caller gave, so that each request's id is unique.
_ADDED: Final = re.compile(r"#[0-9a-f]{16}\Z")

Count = Annotated[int, Meta(ge=0, le=MOST)]


class EngineFields(Fields, gc=False, omit_defaults=True):
    """The fields of `extra` that name the requests of a record, their sizes, and who served them."""

    rid: Any = None
    rids: Any = None
    request_id: str | Integer | None = None
    turn: Integer | None = None
    prompt_tokens: Integer | None = None
    cached_tokens: Integer | None = None
    cached_host_tokens: Integer | None = None
    cached_storage_tokens: Integer | None = None
    completion_tokens: Integer | None = None
    generated_tokens: Integer | None = None
    finish_reason: Any = None
    finish_reasons: Any = None
    reply_tokens: Any = None
    prefix_tokens: Any = None
    host_tokens: Any = None
    storage_tokens: Any = None
    verifications: Any = None
    spec_verify_ct: Any = None
    tokens: Any = None
    queue_time: float | None = None
    retractions: Integer | None = None
    server: Any = None
    mode: Any = None
    traceparent: Any = None
    request_header: Any = None
    session: Any = None
    weight_version: Any = None
    room: Any = None
    bootstrapping: Count | None = None
    waiting: Count | None = None
    running: Count | None = None
    kv_tokens: Count | None = None
    kv_free_pages: Count | None = None
    kv_evictable: Count | None = None
    kv_page_size: Count | None = None
    kv_budget: Any = None
    kv_reserved: Count | None = None


def rids_of(fields: EngineFields) -> list[str]:
    """Return the engine requests that a record is about, by their callers' ids, without health checks."""
    rids = next((value for value in (fields.rids, fields.rid) if isinstance(value, list)), [fields.rid])
    return [caller_rid(rid) for rid in rids if isinstance(rid, str) and not rid.startswith(HEALTH_CHECK)]


def caller_rid(rid: str) -> str:
    """Return the id that a caller gave to a request, of the id that the engine logs."""
    return _ADDED.sub("", rid) if "#" in rid else rid


def number(value: Any) -> int | None:
    """Return an integer that a column holds; None for anything else."""
    return value if type(value) is int and abs(value) <= MOST else None


def count(value: Any) -> int | None:
    """Return an integer that is not negative and that a column holds; None for anything else."""
    return value if type(value) is int and 0 <= value <= MOST else None


def of_request(rid: str, fields: EngineFields, values: Any) -> Any:
    """Return what a record of several requests logs of this one, in a list of a value for each; else None."""
    if not isinstance(fields.rids, list) or not isinstance(values, list):
        return None
    pairs = zip(fields.rids, values, strict=False)
    return next((value for name, value in pairs if isinstance(name, str) and caller_rid(name) == rid), None)


def tokens_of(rid: str, fields: EngineFields) -> int | None:
    """Return the tokens of prompt and reply that a record of several requests logs of this one."""
    return number(of_request(rid, fields, fields.tokens))


def kv_shares(fields: EngineFields) -> tuple[float | None, float | None]:
    """Return the shares of the cache that running requests hold, and that are not free."""
    size, pages, page = (
        count(gauge) for gauge in (fields.kv_tokens, fields.kv_free_pages, fields.kv_page_size)
    )
    if not size or pages is None:
        return None, None
    free = pages * (1 if page is None else page)
    used, evictable = max(0, size - free), _evictable(fields, free)
    return None if evictable is None else max(0, used - evictable) / size, used / size


def _evictable(fields: EngineFields, free: int) -> int | None:
    """Return how many tokens of the cache no running request uses."""
    if (logged := count(fields.kv_evictable)) is not None:
        return logged
    budget, reserved = fields.kv_budget, count(fields.kv_reserved)
    return max(0, budget + reserved - free) if type(budget) is int and reserved is not None else None
