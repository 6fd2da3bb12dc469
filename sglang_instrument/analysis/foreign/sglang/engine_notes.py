"""Read what a server says besides its batches: retractions, aborts, errors, and requests that ended."""

import re
from collections.abc import Iterator
from typing import Final

import polars as pl

from sglang_instrument.analysis.foreign.sglang.log_prefixes import prefixes

FINISHED: Final = "Finish: obj="
FINISHED_AS_JSON: Final = '"request.finished"'
#: Our event for each text; the first one that a line holds counts.
_EVENTS: Final = {
    "Retract requests": "scheduler_retract",
    "Decode out of memory happened": "scheduler_retract",
    "retract_decode: aborted": "scheduler_abort",
    "KV cache pool is full": "scheduler_retract",
    "Scheduler hit an exception": "engine_error",
    "Cache flushed successfully": "engine_cache_flush",
    "Weight version changed": "weights_changed",
    FINISHED: "engine_request",
    FINISHED_AS_JSON: "engine_request",
}
MARKS: Final = tuple(text.encode() for text in _EVENTS)
_META: Final = re.compile(r"[\"']meta_info[\"']: ?\{")
_WITHIN: Final = r"[\"']{name}[\"']: ?"
_NUMBERS: Final = {
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "response_tokens",
    "cached_tokens": "cached_tokens",
    "num_retractions": "retractions",
    "total_retractions": "retractions",
    "dp_rank": "dp_rank",
}
_VALUES: Final = tuple(
    (ours, re.compile(_WITHIN.format(name=name) + r"(\d{1,12})\b")) for name, ours in _NUMBERS.items()
)
_LATENCY: Final = re.compile(_WITHIN.format(name="e2e_latency") + r"(\d{1,9}(?:\.\d{1,20})?(?:e-\d{1,3})?)")
_ID: Final = re.compile(_WITHIN.format(name="id") + r"[\"']([^\"']{1,256})[\"']")
_REASON: Final = re.compile(
    _WITHIN.format(name="finish_reason") + r"\{[\"']type[\"']: ?[\"']([a-z_]{1,40})[\"']"
)
_RETRACTED: Final = re.compile(r"#retracted_reqs: (\d{1,9})")
_NOTE: Final = {
    "event": pl.String,
    "request_id": pl.String,
    "finish_reason": pl.String,
    "latency_us": pl.Int64,
    **dict.fromkeys((*_NUMBERS.values(), "retracted"), pl.Int64),
}


def notes_in(lines: pl.DataFrame, changed_us: dict[int, int]) -> pl.DataFrame:
    """Return what lines say: `stamp`, `server`, `dp`, `event`, the numbers of a request, and their place.

    No text of a prompt or a reply is returned. A line without a time is left out.

    Args:
        lines: `file`, `line` and `trainer_step`, of lines that hold one of `MARKS`.
        changed_us: When each file was last changed.
    """
    rows = [_note(line) for line in lines["line"]]
    begins = [row.pop("begin") for row in rows]
    behind = [row.pop("behind") for row in rows]
    table = pl.DataFrame(rows, schema=_NOTE, orient="row")
    parts = lines.select("file").with_columns(
        prefix=pl.Series(begins, dtype=pl.String), rest=pl.Series(behind, dtype=pl.String)
    )
    places = prefixes(parts, changed_us).select("stamp", "server", "dp")
    origins = lines.select("file", "trainer_step")
    return pl.concat([origins, places, table], how="horizontal").drop_nulls("stamp")


def _note(line: str) -> dict[str, object]:
    matches = [(line.index(text), text) for text in _EVENTS if text in line]
    position, text = min(matches) if matches else (len(line), "")
    note: dict[str, object] = dict.fromkeys(_NOTE)
    note |= {"begin": line[:position], "behind": line[-300:], "event": _EVENTS.get(text)}
    if retracted := _RETRACTED.search(line, position):
        note["retracted"] = int(retracted[1])
    if text in (FINISHED, FINISHED_AS_JSON):
        note |= dict(_of_request(line[position:]))
    return note


def _of_request(text: str) -> Iterator[tuple[str, object]]:
    """Yield what the engine tells of a request that ended. A reply may hold a `meta_info` of its own."""
    begins = [match.end() for match in _META.finditer(text)]
    meta_info = text[begins[-1] :] if begins else ""
    for name, pattern in _VALUES:
        if value := pattern.search(meta_info):
            yield name, int(value[1])
    for name, pattern in (("request_id", _ID), ("finish_reason", _REASON)):
        if value := pattern.search(meta_info):
            yield name, value[1]
    if (latency := _LATENCY.search(meta_info)) and float(latency[1]) < 1e7:
        yield "latency_us", int(float(latency[1]) * 1e6)
