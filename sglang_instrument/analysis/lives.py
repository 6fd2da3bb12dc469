"""Put together what the engine's processes logged of each request: queue, prefill, decode, retractions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
from msgspec import Struct

from sglang_instrument.analysis.cache import kept
from sglang_instrument.analysis.chunks import readable_lines
from sglang_instrument.analysis.files import counting
from sglang_instrument.schema import LOG_OPENED

if TYPE_CHECKING:
    from sglang_instrument.analysis.files import File
    from sglang_instrument.analysis.run import Run

#: SGLang asks itself whether it is well; nobody waits for these.
HEALTH_CHECK: Final = "HEALTH_CHECK"
_SCHEMA: Final[dict[str, Any]] = {
    "rid": pl.String,
    "server": pl.String,
    "scheduler": pl.String,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "duration_sec": pl.Float64,
    "tokenize_sec": pl.Float64,
    "queue_sec": pl.Float64,
    "prefill_sec": pl.Float64,
    "decode_sec": pl.Float64,
    "retractions": pl.Int64,
    "prompt_tokens": pl.Int64,
    "completion_tokens": pl.Int64,
}


class Fields(Struct, gc=False):
    """The fields of `extra` that say which requests a record is about, and how large they are."""

    rid: Any = None
    rids: Any = None
    request_id: Any = None
    turn: Any = None
    run_id: Any = None
    prompt_tokens: Any = None
    completion_tokens: Any = None


class Record(Struct, gc=False):
    """A record, as far as a join looks at it."""

    event: str
    start_us: int | None = None
    duration_sec: float | None = None
    extra: Fields | None = None
    error: Any = None

    @property
    def end_us(self) -> int:
        """When it ended."""
        return (self.start_us or 0) + int((self.duration_sec or 0.0) * 1e6)


_LINES: Final = msgspec.json.Decoder(Record)


def read(run: Run, files: Sequence[File], events: Sequence[str] = ()) -> Iterator[tuple[File, Record]]:
    """Yield the records of files of a run that have a start and fields, those of older runs left out.

    Args:
        run: The run.
        files: Files of it.
        events: Records of these events alone; lines that name none of them are not even decoded.
    """
    marks = [f'"{event}"'.encode() for event in (LOG_OPENED, *events)] if events else []
    counts = counting(run.files)
    for file in files:
        run_id = None
        for chunk in readable_lines(run.folder / file.path):
            for record in _decode(_marked(chunk, marks) if marks else chunk):
                if record.extra is None:
                    continue
                if record.event == LOG_OPENED:
                    run_id = record.extra.run_id
                elif record.start_us is not None and counts(file, run_id):
                    yield file, record


def _marked(chunk: bytes, marks: Sequence[bytes]) -> bytes:
    """Return the lines of a chunk that hold one of the marks."""
    return b"\n".join(line for line in chunk.split(b"\n") if any(mark in line for mark in marks))


def _decode(chunk: bytes) -> list[Record]:
    """Decode lines; torn and foreign ones were counted when the run was opened."""
    try:
        return _LINES.decode_lines(chunk)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return list(_decode_singly(chunk))


def _decode_singly(chunk: bytes) -> Iterator[Record]:
    for raw in chunk.split(b"\n"):
        try:
            yield _LINES.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue


@dataclass
class _Life:
    """What one scheduler, and those around it, did for one request; times are microseconds."""

    server: str | None = None
    scheduler: str | None = None
    arrived: int | None = None
    called: int | None = None
    answered: int | None = None
    detokenized: int | None = None
    tokenize_sec: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    moments: list[tuple[int, str]] = field(default_factory=list)

    def row(self, rid: str) -> dict[str, Any]:
        """Return a row of `engine_lives`."""
        end = self.answered if self.answered is not None else self.detokenized
        spent = self._spent(self.detokenized if self.detokenized is not None else end)
        starts = [one for one in (self.called, self.arrived) if one is not None]
        start = min(starts) if starts else None
        return {
            "rid": rid,
            "server": self.server,
            "scheduler": self.scheduler,
            "start_us": start,
            "end_us": end,
            "duration_sec": None if start is None or end is None else max(0, end - start) / 1e6,
            "tokenize_sec": self.tokenize_sec,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "retractions": None if self.arrived is None else self._retractions,
            **spent,
        }

    @property
    def _retractions(self) -> int:
        return sum(what == "retract" for _, what in self.moments)

    @property
    def is_ended(self) -> bool:
        """Whether anybody told when it ended."""
        return self.answered is not None or self.detokenized is not None

    def _spent(self, end: int | None) -> dict[str, float | None]:
        """Share the time from arrival to end among queue, prefill and decode.

        A prompt that is cut into pieces is admitted several times before its first token, and one that is
        retracted waits, is admitted and prefilled again. What lies between pieces is part of the prefill.
        """
        if self.arrived is None:
            return {}
        spent: dict[str, int] = {}
        doing, since = "queue", self.arrived
        ordered = sorted(self.moments)
        for (at, what), (_, then) in zip(ordered, [*ordered[1:], (0, "")], strict=False):
            if (what, then) == ("first", "admit"):
                continue  # a piece of a prompt ended, and gave no token
            spent[doing] = spent.get(doing, 0) + max(0, at - since)
            doing, since = _NEXT[what], max(at, since)
        if doing == "prefill" and self.completion_tokens:
            spent.pop(doing, None)  # its first token was lost: a killed scheduler's last records are
        elif end is not None:
            spent[doing] = spent.get(doing, 0) + max(0, end - since)
        return {
            f"{kind}_sec": spent[kind] / 1e6 if kind in spent else None
            for kind in ("queue", "prefill", "decode")
        }


#: What a request does from such a moment on.
_NEXT: Final = {"admit": "prefill", "first": "decode", "retract": "queue"}
_MOMENTS: Final = {
    "scheduler_admit": "admit",
    "scheduler_first_tokens": "first",
    "scheduler_retract": "retract",
}


def engine_lives(
    run: Run, files: Sequence[File] | None = None, ahead_us: Mapping[str, int] | None = None
) -> pl.DataFrame:
    """Return a row a request of the engine, by its `rid`, in the order of arrival.

    Args:
        run: The run.
        files: Files of workers to be read as well: an engine that lives in its worker's process has its
            tokenizer manager there. None: all of them, if the engine's own processes do not tell the ends of
            requests; without a detokenizer (`skip_tokenizer_init`) only the tokenizer manager knows them.
        ahead_us: By how much the clocks of processes are ahead, which is taken off: `round_trips.ahead_us`.

    Returns:
        rid; server, scheduler: the names of the files that tell of it; start_us, end_us, duration_sec: from
        its arrival at the server, or the scheduler, to its answer; tokenize_sec; queue_sec, prefill_sec,
        decode_sec: from its arrival at the scheduler to its last token, on the scheduler's clock;
        retractions; prompt_tokens, completion_tokens. Null is what nobody logged. SGLang's own health checks
        are left out.
    """
    lives: dict[str, _Life] = {}
    own = engine_files(run)
    _live(lives, read(run, own), ahead_us or {})
    if files is None:
        files = run.files if _lacks_ends(lives) else ()
    others = [file for file in files if file.place is not None and file not in own]
    _live(lives, read(run, others, tuple(_TAKES)), ahead_us or {})
    rows = [row for rid, life in lives.items() if (row := life.row(rid))["start_us"] is not None]
    return pl.DataFrame(rows, schema=_SCHEMA, strict=False).sort("start_us", "rid")


def _live(
    lives: dict[str, _Life], records: Iterator[tuple[File, Record]], ahead_us: Mapping[str, int]
) -> None:
    """Add what records tell of requests."""
    for file, record in records:
        take = _TAKES.get(record.event)
        if take is None:
            continue
        name = file.place.stem if file.place else ""
        record.start_us = (record.start_us or 0) - ahead_us.get(name, 0)
        for rid in rids_of(record):
            life = lives.get(rid)
            if life is None:
                life = lives[rid] = _Life()
            take(life, record, name)


def _lacks_ends(lives: Mapping[str, _Life]) -> bool:
    """Return whether of some scheduler the end of no request is known."""
    schedulers = {life.scheduler for life in lives.values() if life.scheduler is not None}
    return bool(schedulers - {life.scheduler for life in lives.values() if life.is_ended})


def kept_lives(run: Run) -> pl.DataFrame:
    """Return `engine_lives`, read again only when the run's files changed."""
    if not run.cached:
        return engine_lives(run)
    return kept(run.folder, "lives", run.files, lambda: engine_lives(run))


def engine_files(run: Run) -> list[File]:
    """Return the files of the engine's own processes."""
    return [file for file in run.files if file.place is not None and file.place.folder == "engine"]


def rids_of(record: Record) -> list[str]:
    """Return which requests of the engine a record is about, SGLang's own health checks left out."""
    fields = record.extra or Fields()
    named = next((one for one in (fields.rids, fields.rid) if isinstance(one, list)), [fields.rid])
    return [rid for rid in named if isinstance(rid, str) and not rid.startswith(HEALTH_CHECK)]


def _number(value: Any) -> int | None:
    return value if type(value) is int else None


def _take_request(life: _Life, record: Record, name: str) -> None:
    life.server, life.called, life.answered = name, record.start_us, record.end_us
    if record.extra is not None and isinstance(record.extra.rid, str):  # of a list it is the last one's
        life.completion_tokens = _number(record.extra.completion_tokens)


def _take_tokenize(life: _Life, record: Record, name: str) -> None:
    life.server, life.tokenize_sec = name, record.duration_sec


def _take_receive(life: _Life, record: Record, name: str) -> None:
    if life.arrived is None:  # a stage of a pipeline behind the first one tells it again
        life.scheduler, life.arrived = name, record.start_us
        life.prompt_tokens = _number(record.extra.prompt_tokens) if record.extra else None


def _take_moment(life: _Life, record: Record, name: str) -> None:
    what = _MOMENTS[record.event]
    at = record.end_us if what == "first" else record.start_us or 0
    if life.scheduler in (None, name):
        life.moments.append((at, what))


def _take_detokenize(life: _Life, record: Record, name: str) -> None:
    # A batch of answers is logged where one of them ends: the last that holds this request is its own end.
    life.detokenized = max(record.end_us, life.detokenized or 0)


_TAKES: Final = {
    "engine_request": _take_request,
    "engine_stream": _take_request,
    "engine_tokenize": _take_tokenize,
    "scheduler_receive": _take_receive,
    "engine_detokenize": _take_detokenize,
    **dict.fromkeys(_MOMENTS, _take_moment),
}
