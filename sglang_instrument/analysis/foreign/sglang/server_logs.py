"""Read what a bare SGLang server prints: its lines "Prefill batch" and "Decode batch", and what it warns of.

A line of decode stands for the decode steps since the line before. With so many requests running, and so many
tokens a second, a token took `running / throughput` seconds.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.foreign.records.console_steps import MARK, PATTERN
from sglang_instrument.analysis.foreign.records.rows import NO_STEPS, ForeignLog, to_rows
from sglang_instrument.analysis.foreign.records.windows import IDLE_SEC
from sglang_instrument.analysis.foreign.sglang import engine_notes
from sglang_instrument.analysis.foreign.sglang.batch_lines import BatchLines, batch_lines
from sglang_instrument.analysis.foreign.sglang.log_clocks import forward
from sglang_instrument.analysis.foreign.sglang.log_marks import BATCHES, SETTINGS, holds, lines_of
from sglang_instrument.analysis.foreign.sglang.servers import ServerNumbers
from sglang_instrument.analysis.foreign.sglang.slots import MOST_ROWS, all_slots, as_calls
from sglang_instrument.analysis.foreign.sglang.stretches import Stretches, stretches
from sglang_instrument.analysis.foreign.sglang.timer_lines import MARKS as TIMER_MARKS
from sglang_instrument.analysis.foreign.sglang.timer_lines import PATTERN as TIMER
from sglang_instrument.analysis.foreign.sglang.timer_lines import of_trainer, timers_in
from sglang_instrument.analysis.foreign.sglang.trainer_steps import printed_steps, trainer_rows
from sglang_instrument.plain_text import plain

NAME: Final = "a log of SGLang's server"
FILES: Final = 'what the server prints, with lines "Decode batch"'
_SLOTS: Final = (
    "single requests: each row is a slot of the decoder while it was busy, with one request or several"
)
_REASONS: Final = "reasons why replies ended"
_OF_SERVERS: Final = "prefill times, tools, rewards"
_AND_TRAINER: Final = "prefill times, tools, rewards, and what the trainer does"
_TIMES: Final = "times below a second, and their time zone: they are read as UTC where they name none"
_BATCH: Final = "(?:Decode|Prefill) batch"
_UNCOVERED: Final = "what {count:,} of the servers decoded: it takes two lines of a server to tell"
_MISREAD: Final = '{count:,} lines "{kind}" that were not understood, such as "{example}"'
_UNDATED: Final = (
    "the day of {count:,} lines without a date: the last one lies on the day of the file's last change"
)
_REPEATED: Final = (
    '{count:,} lines that Ray left out ("[repeated ...x across cluster]"): RAY_DEDUP_LOGS=0 keeps them'
)
_SET_BACK: Final = (
    "times after a clock was set back (times it was: {count:,}): they go on from the time before"
)
_TOO_MANY: Final = f"slots beyond {MOST_ROWS:,}"
_EXAMPLE: Final = 200  # characters of a line that is shown
_MARKS: Final = (*BATCHES, SETTINGS, MARK, *TIMER_MARKS, *engine_notes.MARKS)
_NO_TEXT: Final = (
    ".jsonl",
    ".json",
    ".db",
    ".pt",
    ".sqlite",
    ".sqlite3",
)  # formats with readers of their own
_INTERVAL: Final = re.compile(r"\bdecode_log_interval=(\d{1,6})\b")
_FIELDS_OF_REQUESTS: Final = (
    "request_id",
    "response_tokens",
    "prompt_tokens",
    "cached_tokens",
    "retractions",
)


def claims(path: Path, head: bytes) -> bool:
    """Return whether a file has such lines, near its begin or later."""
    if any(mark in head for mark in (*BATCHES, SETTINGS)):
        return True
    return b"\0" not in head and not path.name.endswith(_NO_TEXT) and holds(path, BATCHES)


def read(paths: Sequence[Path]) -> ForeignLog:
    """Return an instant event for each line, and a request for each time in which a slot was busy.

    Where the server logs its requests (`--log-requests`), these are the requests.
    """
    log = ForeignLog(pl.DataFrame(), [*paths], [], tells_requests=False, workers_are_servers=True)
    changed_us = {number: path.stat().st_mtime_ns // 1000 for number, path in enumerate(paths)}
    every = pl.concat([lines_of(path, number, _MARKS, log.unreadable) for number, path in enumerate(paths)])
    every, steps = printed_steps(every)
    is_batch, is_note, is_setting, is_timer = _kinds_of(every["line"])
    lines = batch_lines(every.filter(is_batch), changed_us)
    servers = ServerNumbers(lines.table)
    batches, set_back = forward(servers.numbered(lines.table))
    notes = servers.numbered(engine_notes.notes_in(every.filter(is_note), changed_us))
    requests = notes.filter(pl.col("latency_us").is_not_null())
    work = stretches(batches, requests, _intervals(every.filter(is_setting)))
    logged = set(requests["worker"])
    slots, is_cut = all_slots(
        {key: lines_of_key for key, lines_of_key in work.lines.items() if key[0] not in logged}
    )
    notes = notes.with_columns(step=work.step_at(notes["stamp"]))
    calls = pl.concat([as_calls(slots), _logged(work.requests)], how="diagonal_relaxed")
    frames = [_batches(work.batches, lines.fields), _notes(notes), calls, _requests(calls)]
    frames += [trainer_rows(steps, work.batches)] if steps else []
    timers = timers_in(every.filter(is_timer), changed_us)
    if len(timers):
        frames.append(of_trainer(timers.with_columns(step=work.step_at(timers["end_us"]))))
    log.rows = to_rows(pl.concat(frames, how="diagonal_relaxed"))
    log.tells_requests = bool(logged) and not slots
    log.rejects.foreign += sum(count for count, _ in lines.misread.values())
    log.misread = [
        _MISREAD.format(count=count, kind=kind, example=plain(example[:_EXAMPLE]))
        for kind, (count, example) in lines.misread.items()
    ]
    log.cannot_show = [
        *_lacks(lines, set_back, is_cut),
        *_usual_lacks(work, logged, bool(slots), bool(steps)),
    ]
    return log


def _kinds_of(lines: pl.Series) -> tuple[pl.Series, pl.Series, pl.Series, pl.Series]:
    """Return of each line whether it is about a batch, a note, the server's settings, or a timer."""
    is_step = lines.str.contains(PATTERN)
    is_note = lines.str.contains_any([mark.decode() for mark in engine_notes.MARKS])
    is_setting = lines.str.contains(SETTINGS.decode(), literal=True) & ~is_note
    is_batch = ~is_note & ~is_setting & ~is_step
    about_batch = is_batch & lines.str.contains(_BATCH)
    return about_batch, is_note, is_setting, lines.str.contains(TIMER) & ~about_batch


def _intervals(lines: pl.DataFrame) -> dict[int, int]:
    """Return the decode steps from line to line, by file, as the settings in it say; the last ones count."""
    rows = ((file, _INTERVAL.search(line)) for file, line in lines.select("file", "line").iter_rows())
    return {file: int(match[1]) for file, match in rows if match and int(match[1]) > 0}


def _batches(batches: pl.DataFrame, fields: Sequence[str]) -> pl.DataFrame:
    """Return each line as an instant event; of a server that only prefills, as a span."""
    has_decode = (pl.col("kind") == "Decode").any().over("worker")
    span = pl.col("busy_us").is_not_null() & ~has_decode
    return batches.select(
        *("worker", "step", *fields, "kind"),
        start_us=pl.when(span).then("start_us").otherwise("stamp"),
        end_us=pl.when(span).then("stamp"),
        task=pl.lit(0),
        event=pl.lit("scheduler_batch"),
    )


def _notes(notes: pl.DataFrame) -> pl.DataFrame:
    """Return what else the servers say as instant events; requests that have times are rows of their own."""
    untimed = notes.filter(pl.col("latency_us").is_null())
    return untimed.select("worker", "step", "event", "retracted", start_us="stamp", task=pl.lit(0))


def _logged(requests: pl.DataFrame) -> pl.DataFrame:
    """Return a call of the engine for each request that a server logged."""
    return requests.select(
        *("worker", "step", "start_us", *_FIELDS_OF_REQUESTS, "finish_reason"),
        end_us="stamp",
        event=pl.lit("turn_engine_call"),
        turn=pl.lit(0),
        task=pl.int_range(pl.len()) + 2 * MOST_ROWS,
    )


def _requests(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.with_columns(event=pl.lit("async_rollout_request_complete"), turns=pl.lit(1)).drop("turn")


def _lacks(lines: BatchLines, set_back: int, is_cut: bool) -> list[str]:
    """Return what of these lines is not shown, or not as it stands there."""
    lacks: list[str] = []
    repeated = int(lines.table["repeated"].sum())
    for count, words in ((lines.undated, _UNDATED), (repeated, _REPEATED), (set_back, _SET_BACK)):
        if count:
            lacks.append(words.format(count=count))
    return [*lacks, _TOO_MANY] if is_cut else lacks


def _usual_lacks(work: Stretches, logged: set[int], has_slots: bool, has_steps: bool) -> list[str]:
    """Return what such a log cannot show."""
    usual = [_OF_SERVERS, _TIMES] if has_steps else [_AND_TRAINER, _TIMES, NO_STEPS.format(sec=IDLE_SEC)]
    lacks = [_UNCOVERED.format(count=work.uncovered)] if work.uncovered else []
    lacks += [_SLOTS] if has_slots or not logged else []
    return [*lacks, *([] if logged else [_REASONS]), *usual]
