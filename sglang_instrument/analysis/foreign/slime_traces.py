"""Read the traces in slime's dumps of rollout data: `--save-debug-rollout-data .../rollout_{rollout_id}.pt`.

`slime/observability/trace_utils.py` makes a trace of each sample: a list of events, of which "span_start" and
"span_end" with one `span_id` are a span.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.foreign.rows import ForeignLog, as_us, is_whole, printable, to_rows
from sglang_instrument.analysis.foreign.torch_files import is_torch_file, read_torch
from sglang_instrument.errors import LogError

NAME: Final = "slime's rollout traces"
FILES: Final = "rollout_N.pt of --save-debug-rollout-data"
_CANNOT_SHOW: Final = [
    "what the trainer does between rollouts, and weight updates",
    "samples that slime dropped, and who waited for whom: one process runs all requests",
]
_UNTRACED: Final = "{count:,} samples without a trace"
_OPEN: Final = "{count:,} spans that did not end"
_REQUEST: Final = "async_rollout_request_complete"
_CALL: Final = "turn_engine_call"
_GROUP: Final = "request_group"
#: Our event for each of slime's; others keep their names.
_EVENTS: Final = {
    "generate_and_rm": _REQUEST,
    "generate_and_rm_group": _GROUP,
    "sglang_generate": _CALL,
    "sglang_generate_stream": _CALL,
    "reward_model": "reward_calculation",
    "group_reward_model": "reward_calculation",
}
_PHASES: Final = {_CALL: "generate"}
#: The phase of a span of the user's own, by a word in its name.
_WORDS: Final = {"tool": "tool", "reward": "reward", "verif": "reward", "sglang_pd": "engine"}
_FINISHED: Final = {"completed": "stop", "truncated": "length", "aborted": "abort"}
_COLUMNS: Final[dict[str, Any]] = {
    "event": pl.String,
    "phase": pl.String,
    "step": pl.Int64,
    "validate": pl.Boolean,
    "start_sec": pl.Float64,
    "end_sec": pl.Float64,
    "task": pl.Int64,
    "request_id": pl.String,
    "turn": pl.Int64,
    "response_tokens": pl.Int64,
    "prompt_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "queue_sec": pl.Float64,
    "finish_reason": pl.String,
    "error": pl.String,
    "turns": pl.Int64,
    "reward": pl.Float64,
    "group": pl.String,
    "weight_version": pl.String,
    "first_weight_version": pl.String,
}
_Row = dict[str, Any]


def claims(path: Path, head: bytes) -> bool:
    """Return whether a file is a dump of rollout data."""
    return path.suffix == ".pt" and is_torch_file(head)


def read(paths: Sequence[Path]) -> ForeignLog:
    """Return a request for each sample, and the spans of its trace; each file is a step."""
    log = ForeignLog(pl.DataFrame(), [], list(_CANNOT_SHOW))
    reader = _Reader()
    tables = []
    for path in paths:
        log.files.append(path)
        try:
            dump = read_torch(path)
        except (OSError, LogError) as error:
            log.unreadable[path.name] = str(error)
            continue
        if isinstance(dump, dict) and isinstance(dump.get("samples"), list):
            rows = list(reader.rows_of(path, dump, log))
            tables.append(_table(rows))
        else:
            log.unreadable[path.name] = "not a dump of slime's rollout data: it has no list `samples`"
    log.rows = to_rows(pl.concat([_table([]), *tables]))
    if reader.untraced:
        log.cannot_show.append(_UNTRACED.format(count=reader.untraced))
    if reader.open:
        log.cannot_show.append(_OPEN.format(count=reader.open))
    return log


def _table(rows: list[_Row]) -> pl.DataFrame:
    columns = [pl.Series(name, [row.get(name) for row in rows], kind) for name, kind in _COLUMNS.items()]
    times = [as_us(pl.col(f"{end}_sec")).alias(f"{end}_us") for end in ("start", "end")]
    return pl.DataFrame(columns).with_columns(times).drop("start_sec", "end_sec")


class _Reader:
    """Makes rows of samples.

    Attributes:
        untraced: Samples without a trace.
        open: Spans without an end.
    """

    def __init__(self) -> None:
        self.untraced = self.open = 0

    def rows_of(self, path: Path, dump: dict[str, Any], log: ForeignLog) -> Iterator[_Row]:
        """Yield the rows of a file."""
        rollout = dump.get("rollout_id")
        place = {"step": rollout if is_whole(rollout) else None, "validate": "eval_" in path.stem}
        groups: set[Any] = set()
        for number, sample in enumerate(dump["samples"]):
            if not isinstance(sample, dict):
                log.rejects.foreign += 1
                continue
            trace = sample.get("trace")
            events = trace.get("events") if isinstance(trace, dict) else None
            if not isinstance(events, list) or not events:
                self.untraced += 1
                continue
            index = sample.get("index")
            same = {**place, "request_id": str(index if is_whole(index) else number), "task": number + 1}
            spans = self._spans(events, log)
            spans = [span for span in spans if span["event"] != _GROUP or _is_first(span, groups)]
            for span in spans:
                span.update(same)
            yield from _with_request(spans, sample, same)

    def _spans(self, events: list[Any], log: ForeignLog) -> list[_Row]:
        """Return the spans and the instant events of a trace, in the order of their ends."""
        begun: dict[Any, _Row] = {}
        done: list[_Row] = []
        turn = -1
        for event in events:
            kind, name, at, span_id, attributes = _values(event)
            if name is None or at is None:
                log.rejects.foreign += 1
            elif kind == "span_start":
                row = _begun(name, at)
                if row["event"] == _CALL:
                    turn += 1
                if row["phase"] in ("generate", "tool"):
                    row["turn"] = max(turn, 0)
                begun[span_id] = row
            elif kind == "span_end" and span_id in begun:
                done.append(_ended(begun.pop(span_id), at, attributes))
            elif kind == "event":
                done.append({"event": name, "start_sec": at})
        self.open += len(begun)
        return done


def _values(event: Any) -> tuple[Any, str | None, float | None, Any, dict[str, Any]]:
    """Return type, name, time, id and attributes of an event, as far as they have the right types."""
    if type(event) is not dict:
        return None, None, None, None, {}
    name, at, span_id, attributes = (
        event.get("name"),
        event.get("ts"),
        event.get("span_id"),
        event.get("attrs"),
    )
    return (
        event.get("type"),
        printable(name) if type(name) is str else None,
        _number(at),
        span_id if type(span_id) is str else None,
        attributes if type(attributes) is dict else {},
    )


def _begun(name: str, at: float) -> _Row:
    event = _EVENTS.get(name)
    if event is not None:
        return {"event": event, "phase": _PHASES.get(event), "start_sec": at}
    phase = next((phase for word, phase in _WORDS.items() if word in name), None)
    return {"event": name, "phase": phase, "start_sec": at}


def _ended(row: _Row, at: float, attributes: dict[str, Any]) -> _Row:
    row["end_sec"] = at
    if attributes:
        for ours, theirs in (
            ("response_tokens", "completion_tokens"),
            ("prompt_tokens", "prompt_tokens"),
            ("cached_tokens", "cached_tokens"),
        ):
            row[ours] = _whole(attributes.get(theirs))
        row["queue_sec"] = _number(attributes.get("queue_time"))
        row["finish_reason"] = _text(attributes.get("finish_reason"))
        row["error"] = _text(attributes.get("error_type"))
    return row


def _is_first(span: _Row, groups: set[Any]) -> bool:
    """Return whether no other sample of a group had this span: slime writes it into each."""
    key = span["start_sec"], span.get("end_sec")
    if key in groups:
        return False
    groups.add(key)
    return True


def _with_request(spans: list[_Row], sample: dict[str, Any], same: _Row) -> Iterator[_Row]:
    """Yield the spans of a sample; the request's, or one around all of them, knows the sample."""
    requests = [span for span in spans if span["event"] == _REQUEST]
    inner = [span for span in spans if span["event"] not in (_REQUEST, _GROUP)]
    yield from (span for span in spans if span["event"] != _REQUEST)
    ends = [span["end_sec"] for span in (requests or inner) if "end_sec" in span]
    if not ends:
        return
    request: _Row = {**same, "event": _REQUEST}
    request["start_sec"] = min(span["start_sec"] for span in (requests or inner))
    request["end_sec"] = max(ends)
    calls = [span for span in inner if span["event"] == _CALL]
    told = [span["finish_reason"] for span in calls if span.get("finish_reason")]
    versions = sample.get("weight_versions")
    known = [str(one) for one in versions if type(one) in (str, int)] if type(versions) is list else []
    yield {
        **request,
        "turns": len(calls),
        "reward": _number(sample.get("reward")),
        "error": requests[-1].get("error") if requests else None,
        "finish_reason": told[-1] if told else _FINISHED.get(_text(sample.get("status")) or ""),
        "response_tokens": _tokens(calls, sample),
        "group": _text(sample.get("group_index")),
        "first_weight_version": printable(known[0]) if known else None,
        "weight_version": printable(known[-1]) if known else None,
    }


def _tokens(calls: list[_Row], sample: dict[str, Any]) -> int | None:
    """Return the tokens that the model wrote; `response_length` also counts the replies of tools."""
    tokens = [call.get("response_tokens") for call in calls]
    known = [one for one in tokens if one is not None]
    return sum(known) if known and len(known) == len(tokens) else _whole(sample.get("response_length"))


def _whole(value: Any) -> int | None:
    return value if is_whole(value) else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) is float or is_whole(value) else None


def _text(value: Any) -> str | None:
    text: str | None = printable(value) if type(value) is str else str(value) if is_whole(value) else None
    return text
